/* SPDX-License-Identifier: Apache-2.0 */
/* One row for the groups of neighbouring blocks that have the same size and are gathered as often, so that a model of
 * equal blocks has three. */
#include "run/plan_groups.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/wrap.h"
#include "rank/gather.h"

/* When a group is gathered. first: of its parameters. ngathers: by a micro-batch. The last blocks of the forward pass
 * may still be there when the backward pass begins with them. */
static const char *when(const struct job *job, const struct param *first, const struct group_policy *p, bool linked,
                        uint32_t ngathers)
{
    if (job->nranks == 1 && !job_rests_on_host(job))
        return "never: there is one rank";
    if (!job_copies(job))
        return "never: mapped";
    if (!job_gathers(job, job_has_device_memory(job)) || job_has_whole(job, linked, first))
        return "never: whole on every rank";
    if (job_hosts_hold_all(job))
        return "never: whole on every host";
    if (p->stays)
        return "once; what is trained, every step";
    if (ngathers < 2)
        return "every micro-batch";
    return p->keeps && job_keeps(job, linked) ? "forward; backward from parts" : "forward and backward";
}

/* Of FLUX.2. Blocks of both kinds in one row have names of both. */
static void name_of_pictures(const struct layout *l, uint32_t first, uint32_t last, char name[64])
{
    const uint32_t ndouble = (uint32_t)l->flux2->ndouble;
    const char *kind = first <= ndouble ? "transformer_blocks" : "single_transformer_blocks";
    const uint32_t before = first <= ndouble ? 1 : ndouble + 1;
    if (layout_is_end(l, first))
        snprintf(name, 64, "%s", first == 0 ? "embedders, modulations" : "norm_out, proj_out");
    else if (first <= ndouble && last > ndouble)
        snprintf(name, 64, "transformer_blocks, single_transformer_blocks");
    else if (first == last)
        snprintf(name, 64, "%s.%u", kind, first - before);
    else
        snprintf(name, 64, "%s.%u-%u", kind, first - before, last - before);
}

static enum layout_part first_part(const struct layout *l, uint32_t group)
{
    const uint32_t *groups = l->blocks[layout_block_of(l, group)].groups;
    int part = 0;
    while (groups[part] != group)
        part++;
    return (enum layout_part)part;
}

static enum layout_part last_part(const struct layout *l, uint32_t group)
{
    const uint32_t *groups = l->blocks[layout_block_of(l, group)].groups;
    int part = LAYOUT_PARTS - 1;
    while (groups[part] != group)
        part--;
    return (enum layout_part)part;
}

void plan_groups_name(const struct layout *l, uint32_t first, uint32_t last, char name[64])
{
    if (l->flux2) {
        name_of_pictures(l, first, last, name);
        return;
    }
    const char *end = first == 0 ? "model.embed_tokens" : layout_is_tied(l) ? "model.norm" : "model.norm, lm_head";
    if (layout_is_end(l, first)) {
        snprintf(name, 64, "%s", end);
        return;
    }
    const uint32_t from = layout_block_of(l, first), to = layout_block_of(l, last);
    const enum layout_part begin = first_part(l, first), stop = last_part(l, last);
    char parts[64], numbers[24];
    snprintf(numbers, sizeof numbers, from == to ? "%u" : "%u-%u", from, to);
    if (begin > stop || (begin == PART_QKV && stop == PART_DOWN))
        snprintf(name, 64, "model.layers.%s", numbers);
    else
        snprintf(name, 64, "model.layers.%s.%.26s", numbers, policy_parts_name(l, begin, stop, parts));
}

static const struct param *first_of(const struct layout *l, uint32_t group)
{
    const struct param *p = l->params;
    while (p->group != group)
        p++;
    return p;
}

/* The group as a row of its own. first, last: its groups in the layout. */
static struct train_plan_group describe(const struct job *job, uint32_t first, uint32_t last,
                                        const struct group_policy *p, const char *when)
{
    const struct layout *l = &job->layout;
    struct train_plan_group row = { .ngroups = 1, .nshards = first_of(l, first)->nshards, .when = when };
    for (size_t i = 0; i < l->nparams; i++) {
        const struct param *p = &l->params[i];
        if (p->group < first || p->group > last || p->owned)
            continue;
        row.nelem += (uint64_t)(p->nrow * p->ncol);
        row.nbytes += (uint64_t)(p->nrow * param_row_nbytes(p));
    }
    train_config_word("fsdp.sharding_strategy", p->strategy, row.strategy);
    train_config_word("dtype.param", p->dtype == KERN_BF16 ? TRAIN_BF16 : TRAIN_FP32, row.dtype);
    plan_groups_name(l, first, last, row.pattern);
    return row;
}

static bool is_same(const struct train_plan_group *a, const struct train_plan_group *b)
{
    return a->nelem == b->nelem && a->nbytes == b->nbytes && a->nshards == b->nshards && a->when == b->when &&
           a->nrecomputed == b->nrecomputed && strcmp(a->strategy, b->strategy) == 0 && strcmp(a->dtype, b->dtype) == 0;
}

/* Adds a group to a row. Once the table is full, that of blocks which differ has the largest sizes. */
static void add_to(struct train_plan_group *row, const struct train_plan_group *group)
{
    static const char several[] = "several";
    row->ngroups++;
    row->nelem = row->nelem > group->nelem ? row->nelem : group->nelem;
    row->nbytes = row->nbytes > group->nbytes ? row->nbytes : group->nbytes;
    row->nrecomputed = row->nrecomputed > group->nrecomputed ? row->nrecomputed : group->nrecomputed;
    if (row->nshards != group->nshards || strcmp(row->strategy, group->strategy) != 0)
        snprintf(row->strategy, sizeof row->strategy, "%s", several);
    if (strcmp(row->dtype, group->dtype) != 0)
        snprintf(row->dtype, sizeof row->dtype, "%s", several);
    if (row->when != group->when)
        row->when = several;
}

/* The groups of each row of the plan. */
struct spans {
    uint32_t first[TRAIN_PLAN_GROUPS], last[TRAIN_PLAN_GROUPS];
};

/* True if the groups are the same parts of the next block as the row's are. */
static bool follows(const struct layout *l, const struct spans *spans, uint32_t row, uint32_t first, uint32_t last)
{
    return !layout_is_end(l, spans->first[row]) &&
           layout_block_of(l, spans->last[row]) + 1 == layout_block_of(l, first) &&
           first_part(l, spans->first[row]) == first_part(l, first) &&
           last_part(l, spans->last[row]) == last_part(l, last);
}

/* The row that the groups are added to, or out->ngroups. Once the table is full, the last row of blocks takes all. */
static uint32_t find_row(const struct layout *l, const struct train_plan *out, const struct spans *spans,
                         const struct train_plan_group *row, uint32_t first, uint32_t last)
{
    const uint32_t n = out->ngroups;
    uint32_t i = n > LAYOUT_PARTS ? n - LAYOUT_PARTS : 0;
    if (layout_is_end(l, first))
        return n;
    while (i < n && !(follows(l, spans, i, first, last) && is_same(&out->groups[i], row)))
        i++;
    return i == n && n == TRAIN_PLAN_GROUPS - 1 ? n - 1 : i;
}

static void put_row(const struct layout *l, const struct train_plan_group *row, uint32_t first, uint32_t last,
                    struct spans *spans, struct train_plan *out)
{
    const uint32_t i = find_row(l, out, spans, row, first, last);
    spans->last[i] = last;
    if (i < out->ngroups) {
        add_to(&out->groups[i], row);
        plan_groups_name(l, spans->first[i], last, out->groups[i].pattern);
        return;
    }
    spans->first[i] = first;
    out->groups[out->ngroups++] = *row;
}

static uint32_t count_recomputed(const struct layout *l, const struct compute *c, uint32_t first, uint32_t last)
{
    uint32_t n = 0;
    if (layout_is_end(l, first))
        return 0;
    for (uint32_t i = layout_block_of(l, first); i <= layout_block_of(l, last); i++)
        n += c->blocks[i].recomputed;
    return n;
}

int plan_groups(const struct job *job, const struct compute *c, bool linked, struct train_plan *out,
                struct fsdpck_error *err)
{
    const struct layout *l = &job->layout;
    const uint32_t n = l->ngroups;
    uint32_t *ngathers = calloc(n, sizeof *ngathers);
    struct wrap wrap = { 0 };
    struct spans spans;
    int rc = ngathers ? wrap_make(job->config, l, &wrap, err) : fsdpck_error_nomem(err, n * sizeof *ngathers);
    if (!rc)
        rc = gather_counts(job, linked, ngathers, err);
    for (uint32_t g = 0, last; g < n && !rc; g = last + 1) {
        for (last = g; last + 1 < n && wrap.unit[last + 1] == wrap.unit[g]; last++)
            ;
        const struct group_policy *p = &wrap.policy[g];
        struct train_plan_group row = describe(job, g, last, p, when(job, first_of(l, g), p, linked, ngathers[g]));
        row.nrecomputed = count_recomputed(l, c, g, last);
        put_row(l, &row, g, last, &spans, out);
    }
    wrap_free(&wrap);
    free(ngathers);
    return rc;
}
