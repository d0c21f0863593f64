/* SPDX-License-Identifier: Apache-2.0 */
/* Creates one comm_piece per parameter, and one ring_group per unit of fsdp.auto_wrap_policy. Embedding and head have
 * their own buffers: they are large, and used at both ends. Blocks of one unit that follow each other in the
 * computation are one use of the ring. */
#include "rank/gather_tables.h"

#include <stdlib.h>

#include "model/compute.h"

void gather_tables_free(struct gather_tables *t)
{
    schedule_free(&t->schedule);
    free(t->pieces);
    free(t->groups);
    free(t->group_at);
    free(t->unit_at);
    free(t->rest_at);
    free(t->whole);
    free(t->enters);
    free(t->leaves);
    wrap_free(&t->wrap);
}

static struct comm_piece piece_of(const struct job *job, bool linked, size_t number, size_t unit_at, size_t rest_at)
{
    const struct param *p = &job->layout.params[number];
    const int64_t row_nbytes = param_row_nbytes(p);
    return (struct comm_piece){ .number = (uint32_t)number,
                                .within = job_gathers_from(job, linked, p),
                                .at = p->value_at,
                                .into = p->value_at - unit_at,
                                .nbytes = (size_t)(p->nrow * row_nbytes),
                                .chunk = (size_t)(p->chunk * row_nbytes),
                                .own = p->shard_at,
                                .stride = param_shard_nbytes(p),
                                .rest_at = rest_at };
}

/* Adds the pieces of a unit's frozen or trained parameters. Frozen ones come first. */
static size_t add_pieces(const struct job *job, bool linked, uint32_t unit, bool trained, struct comm_piece *pieces,
                         struct gather_tables *t)
{
    const struct layout *l = &job->layout;
    size_t n = 0;
    for (size_t i = 0; i < l->nparams; i++) {
        const struct param *p = &l->params[i];
        if (t->wrap.unit[p->group] != unit || p->trainable != trained || p->owned)
            continue;
        pieces[n] = piece_of(job, linked, i, t->unit_at[unit], t->rest_at[i]);
        const size_t end = pieces[n].into + pieces[n].chunk * l->nranks;
        n++;
        t->whole[unit] = job_has_whole(job, linked, p);
        if (end > t->groups[unit].nbytes)
            t->groups[unit].nbytes = end;
    }
    return n;
}

static size_t add_owned(const struct job *job, bool linked, bool trained, struct comm_piece *pieces)
{
    size_t n = 0;
    for (size_t i = 0; i < job->layout.nparams; i++)
        if (job->layout.params[i].owned && job->layout.params[i].trainable == trained)
            pieces[n++] = piece_of(job, linked, i, job->layout.params[i].value_at, 0);
    return n;
}

static void fill_groups(const struct job *job, bool linked, struct gather_tables *t)
{
    const struct layout *l = &job->layout;
    struct comm_piece *next = t->pieces;
    for (size_t i = l->nparams; i-- > 0;)
        t->group_at[l->params[i].group] = l->params[i].value_at; /* the parameters of a group are adjacent, in order */
    for (uint32_t g = l->ngroups; g-- > 0;)
        t->unit_at[t->wrap.unit[g]] = t->group_at[g];
    for (uint32_t g = 0; g < t->ngroups; g++) {
        struct ring_group *group = &t->groups[g];
        group->pieces = next;
        group->nfrozen = add_pieces(job, linked, g, false, next, t);
        group->npieces = group->nfrozen + add_pieces(job, linked, g, true, next + group->nfrozen, t);
        next += group->npieces;
    }
    t->owned = next;
    t->nowned_frozen = add_owned(job, linked, false, next);
    t->nowned = t->nowned_frozen + add_owned(job, linked, true, next + t->nowned_frozen);
}

/* Lists the uses of the ring: those of the computation, without the groups that follow another one of their unit. The
 * backward pass begins a use of its own, as evaluations end before it. */
static int make_uses(const struct job *job, struct gather_tables *t, struct schedule_use *uses,
                     struct fsdpck_error *err)
{
    uint32_t nforward, n = compute_uses(&job->layout, &nforward, NULL);
    struct compute_use *order = calloc(n, sizeof *order);
    t->enters = calloc(n, sizeof *t->enters);
    t->leaves = calloc(n, sizeof *t->leaves);
    if (!order || !t->enters || !t->leaves) {
        free(order);
        return fsdpck_error_nomem(err, n * sizeof *order);
    }
    compute_uses(&job->layout, &nforward, order);
    for (uint32_t u = 0; u < n; u++) {
        const uint32_t unit = t->wrap.unit[order[u].group];
        t->enters[u] = u == 0 || u == nforward || unit != t->wrap.unit[order[u - 1].group];
        t->leaves[u] = true;
        if (t->enters[u])
            uses[t->nuses++] = (struct schedule_use){ .group = unit, .backward = u >= nforward };
        else
            t->leaves[u - 1] = false;
        t->nforward = u < nforward ? t->nuses : t->nforward;
    }
    free(order);
    return 0;
}

/* The groups of the schedule are units; what holds for a unit holds for each of its groups. */
static struct schedule_group *make_groups(const struct job *job, bool keeps, const struct gather_tables *t)
{
    struct schedule_group *groups = calloc(t->ngroups, sizeof *groups);
    for (uint32_t g = 0; g < job->layout.ngroups && groups; g++) {
        const struct group_policy *p = &t->wrap.policy[g];
        const uint32_t unit = t->wrap.unit[g];
        const bool keeps_part = keeps && p->keeps && t->groups[unit].pieces[0].within > job->mesh.nkept;
        groups[unit] = (struct schedule_group){ .stays = p->stays && !t->whole[unit],
                                                .apart = !p->stays && !t->whole[unit] && layout_is_end(&job->layout, g),
                                                .keeps = keeps_part,
                                                .whole = t->whole[unit],
                                                .forward_prefetch = p->forward_prefetch,
                                                .backward_prefetch = p->backward_prefetch };
    }
    return groups;
}

static int make_schedule(const struct job *job, bool keeps, struct gather_tables *t, struct fsdpck_error *err)
{
    uint32_t nforward;
    const size_t most = compute_uses(&job->layout, &nforward, NULL);
    struct schedule_use *uses = calloc(most, sizeof *uses);
    struct schedule_group *groups = make_groups(job, keeps, t);
    int rc = uses && groups ? 0 : fsdpck_error_nomem(err, most * sizeof *uses);
    if (!rc)
        rc = make_uses(job, t, uses, err);
    const struct schedule_request req = { .uses = uses, .groups = groups, .nuses = t->nuses, .ngroups = t->ngroups };
    if (!rc)
        rc = schedule_make(&req, &t->schedule, err);
    free(uses);
    free(groups);
    return rc;
}

int gather_tables_make(const struct job *job, bool linked, bool keeps, struct gather_tables *t,
                       struct fsdpck_error *err)
{
    const struct layout *l = &job->layout;
    *t = (struct gather_tables){ 0 };
    int rc = wrap_make(job->config, l, &t->wrap, err);
    if (rc)
        return rc;
    t->ngroups = t->wrap.nunits;
    t->pieces = calloc(l->nparams, sizeof *t->pieces);
    t->groups = calloc(t->ngroups, sizeof *t->groups);
    t->group_at = calloc(l->ngroups, sizeof *t->group_at);
    t->unit_at = calloc(t->ngroups, sizeof *t->unit_at);
    t->rest_at = calloc(l->nparams, sizeof *t->rest_at);
    t->whole = calloc(t->ngroups, sizeof *t->whole);
    if (!t->pieces || !t->groups || !t->group_at || !t->unit_at || !t->rest_at || !t->whole) {
        gather_tables_free(t);
        return fsdpck_error_nomem(err, l->nparams * sizeof *t->pieces);
    }
    job_place_on_device(job, linked, t->rest_at);
    fill_groups(job, linked, t);
    rc = make_schedule(job, keeps, t, err);
    if (rc)
        gather_tables_free(t);
    return rc;
}
