/* SPDX-License-Identifier: Apache-2.0 */
/* One row for neighbouring groups that have the same size and are gathered as often, so that a model of equal blocks
 * has three. */
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
    if (job->nranks == 1)
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

void plan_groups_name(const struct layout *l, uint32_t first, uint32_t last, char name[64])
{
    if (l->flux2) {
        name_of_pictures(l, first, last, name);
        return;
    }
    const char *end = first == 0 ? "model.embed_tokens" : layout_is_tied(l) ? "model.norm" : "model.norm, lm_head";
    if (layout_is_end(l, first))
        snprintf(name, 64, "%s", end);
    else if (first == last)
        snprintf(name, 64, "model.layers.%u", first - 1);
    else
        snprintf(name, 64, "model.layers.%u-%u", first - 1, last - 1);
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

int plan_groups(const struct job *job, const struct compute *c, bool linked, struct train_plan *out,
                struct fsdpck_error *err)
{
    const uint32_t n = job->layout.ngroups;
    uint32_t row_first = 0, *ngathers = calloc(n, sizeof *ngathers);
    struct wrap wrap = { 0 };
    int rc =
        ngathers ? wrap_make(job->config, &job->layout, &wrap, err) : fsdpck_error_nomem(err, n * sizeof *ngathers);
    if (!rc)
        rc = gather_counts(job, linked, ngathers, err);
    for (uint32_t g = 0, last; g < n && !rc; g = last + 1) {
        for (last = g; last + 1 < n && wrap.unit[last + 1] == wrap.unit[g]; last++)
            ;
        const struct group_policy *p = &wrap.policy[g];
        struct train_plan_group row = describe(job, g, last, p,
                                               when(job, first_of(&job->layout, g), p, linked, ngathers[g])),
                                *before = out->ngroups ? &out->groups[out->ngroups - 1] : NULL;
        for (uint32_t i = g; i <= last && !layout_is_end(&job->layout, g); i++)
            row.nrecomputed += c->blocks[i - 1].recomputed;
        const bool block = g > 1 && last < n - 1;
        const bool full = out->ngroups == TRAIN_PLAN_GROUPS - 1 && last < n - 1;
        if (block && before && (full || is_same(before, &row))) {
            add_to(before, &row);
            plan_groups_name(&job->layout, row_first, last, before->pattern);
            continue;
        }
        row_first = g;
        out->groups[out->ngroups++] = row;
    }
    wrap_free(&wrap);
    free(ngathers);
    return rc;
}
