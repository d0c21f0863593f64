/* SPDX-License-Identifier: Apache-2.0 */
/* Creates one comm_piece per parameter, and one ring_group per group. Embedding and head have their own buffers: they
 * are large, and used at both ends. */
#include "rank/gather.h"

#include <stdlib.h>
#include <string.h>

struct tables {
    struct comm_piece *pieces; /* (nparams) */
    struct ring_group *groups; /* (ngroups) */
    size_t *group_at;          /* (ngroups) bytes: offset of a group's parameters in the layout */
    uint32_t ngroups;
    struct schedule schedule;
    bool stays; /* all groups are resident, for a step at least */
    bool whole; /* NO_SHARD: frozen parameters are resident for the whole run */
};

struct gather {
    const struct job *job;
    struct comm *comm;
    struct compute *compute;
    struct tables tables;
    struct ring *ring; /* NULL if ranks map each other's rows */
    bool begun;        /* the first micro-batch has begun */
};

static void tables_free(struct tables *t)
{
    schedule_free(&t->schedule);
    free(t->pieces);
    free(t->groups);
    free(t->group_at);
}

/* Adds the pieces of a group's frozen or trained parameters. Frozen ones come first. */
static size_t add_pieces(const struct layout *l, uint32_t group, bool trained, struct comm_piece *pieces,
                         struct tables *t)
{
    size_t n = 0;
    for (size_t i = 0; i < l->nparams; i++) {
        const struct param *p = &l->params[i];
        if (p->group != group || p->trainable != trained)
            continue;
        int64_t row_nbytes = p->ncol * kern_dtype_bytes(p->dtype);
        size_t into = p->value_at - t->group_at[group], chunk = (size_t)(p->chunk * row_nbytes),
               end = into + chunk * l->nranks;
        pieces[n++] = (struct comm_piece){ .at = p->value_at,
                                           .into = into,
                                           .nbytes = (size_t)(p->nrow * row_nbytes),
                                           .chunk = chunk,
                                           .own = p->shard_at };
        if (end > t->groups[group].nbytes)
            t->groups[group].nbytes = end;
    }
    return n;
}

static void fill_groups(const struct layout *l, struct tables *t)
{
    struct comm_piece *next = t->pieces;
    for (size_t i = l->nparams; i-- > 0;)
        t->group_at[l->params[i].group] = l->params[i].value_at; /* the parameters of a group are adjacent, in order */
    for (uint32_t g = 0; g < l->ngroups; g++) {
        struct ring_group *group = &t->groups[g];
        group->pieces = next;
        group->nfrozen = add_pieces(l, g, false, next, t);
        group->npieces = group->nfrozen + add_pieces(l, g, true, next + group->nfrozen, t);
        next += group->npieces;
    }
}

static int make_schedule(const struct job *job, struct tables *t, struct fsdpck_error *err)
{
    const struct layout *l = &job->layout;
    struct schedule_use *uses = calloc(2 * (size_t)l->ngroups + 2, sizeof *uses);
    bool *stays = calloc(l->ngroups, sizeof *stays);
    int rc = uses && stays ? 0 : fsdpck_error_nomem(err, 2 * (size_t)l->ngroups * sizeof *uses);
    if (!rc) {
        struct schedule_request req = { .uses = uses,
                                        .ngroups = l->ngroups,
                                        .forward_prefetch = (uint32_t)job->config->fsdp.forward_prefetch,
                                        .backward_prefetch = (uint32_t)job->config->fsdp.backward_prefetch,
                                        .stays = stays };
        uint32_t nforward;
        req.nuses = compute_uses(&job->model, l, &nforward, NULL);
        for (uint32_t u = 0; u < req.nuses; u++)
            uses[u].backward = u >= nforward;
        uint32_t *order = calloc(req.nuses, sizeof *order);
        rc = order ? 0 : fsdpck_error_nomem(err, req.nuses * sizeof *order);
        if (!rc)
            compute_uses(&job->model, l, &nforward, order);
        for (uint32_t u = 0; u < req.nuses && !rc; u++)
            uses[u].group = order[u];
        for (uint32_t g = 0; g < l->ngroups; g++)
            stays[g] = t->stays || g == 0 || g == l->ngroups - 1;
        if (!rc)
            rc = schedule_make(&req, &t->schedule, err);
        free(order);
    }
    free(uses);
    free(stays);
    return rc;
}

static int tables_make(const struct job *job, struct tables *t, struct fsdpck_error *err)
{
    const struct layout *l = &job->layout;
    *t = (struct tables){ .ngroups = l->ngroups };
    t->whole = job->config->fsdp.strategy == TRAIN_NO_SHARD;
    t->stays =
        t->whole || job->config->fsdp.strategy == TRAIN_SHARD_GRAD_OP || !job->config->fsdp.reshard_after_forward;
    t->pieces = calloc(l->nparams, sizeof *t->pieces);
    t->groups = calloc(l->ngroups, sizeof *t->groups);
    t->group_at = calloc(l->ngroups, sizeof *t->group_at);
    if (!t->pieces || !t->groups || !t->group_at) {
        tables_free(t);
        return fsdpck_error_nomem(err, l->nparams * sizeof *t->pieces);
    }
    fill_groups(l, t);
    int rc = make_schedule(job, t, err);
    if (rc)
        tables_free(t);
    return rc;
}

int gather_new(const struct job *job, struct comm *comm, struct compute *c, char *memory, struct gather **out,
               struct fsdpck_error *err)
{
    const struct ring_device on = { .memory = memory, .device = c->device, .index = c->index, .compute = c->stream };
    struct gather *g = calloc(1, sizeof *g);
    *out = NULL;
    if (!g)
        return fsdpck_error_nomem(err, sizeof *g);
    g->job = job;
    g->comm = comm;
    g->compute = c;
    int rc = tables_make(job, &g->tables, err);
    if (rc) {
        free(g);
        return rc;
    }
    if (!comm->views)
        rc = ring_new(comm->lanes[COMM_GATHER], &g->tables.schedule, g->tables.groups, g->tables.ngroups, &on, &g->ring,
                      err);
    if (rc)
        gather_free(g);
    else
        *out = g;
    return rc;
}

void gather_free(struct gather *g)
{
    if (!g)
        return;
    ring_free(g->ring);
    tables_free(&g->tables);
    free(g);
}

int gather_publish(struct gather *g, bool all, struct fsdpck_error *err)
{
    int rc = 0;
    for (uint32_t i = 0; g->comm->ops->publish && i < g->tables.ngroups && !rc; i++) {
        const struct ring_group *group = &g->tables.groups[i];
        const size_t first = all ? 0 : group->nfrozen;
        rc = g->comm->ops->publish(g->comm, group->pieces + first, group->npieces - first, err);
    }
    return rc;
}

static int before_group(void *ctx, uint32_t group, struct fsdpck_error *err)
{
    struct gather *g = ctx;
    char *data;
    comm_heartbeat(g->comm);
    if (job_status_failed(g->comm->job_status))
        return comm_other_failed(g->comm, "forward and backward", err);
    if (!g->ring)
        return 0;
    int rc = ring_enter(g->ring, group, &data, err);
    g->compute->group_data[group] = (struct compute_group_data){ (unsigned char *)data, g->tables.group_at[group] };
    return rc;
}

static void after_group(void *ctx, uint32_t group)
{
    struct gather *g = ctx;
    (void)group;
    if (g->ring)
        ring_leave(g->ring);
}

struct compute_hook gather_hook(struct gather *g)
{
    return (struct compute_hook){ .before_group = before_group, .after_group = after_group, .ctx = g };
}

void gather_begin(struct gather *g, bool first, bool backward)
{
    enum ring_mode mode = RING_ALL;
    if (g->tables.stays && !first)
        mode = RING_NOTHING;
    else if (g->tables.whole && g->begun)
        mode = RING_TRAINED;
    g->begun = true;
    if (g->ring)
        ring_begin(g->ring, mode, backward ? g->compute->nuses : g->compute->nforward);
}

struct ring_times gather_times(const struct gather *g)
{
    return g->ring ? ring_times(g->ring) : (struct ring_times){ 0 };
}

uint64_t gather_hash(const struct gather *g)
{
    return schedule_hash(&g->tables.schedule);
}

int gather_count(const struct job *job, struct gather_sizes *out, struct fsdpck_error *err)
{
    struct tables t;
    *out = (struct gather_sizes){ 0 };
    int rc = tables_make(job, &t, err);
    if (rc)
        return rc;
    for (uint32_t u = 0; u < t.schedule.nentries; u++) {
        if (t.schedule.entries[u].gather)
            out->micro_nbytes += t.groups[t.schedule.entries[u].group].nbytes;
    }
    out->later_micro_nbytes = t.stays ? 0 : out->micro_nbytes;
    out->buffer_nbytes = ring_nbytes(&t.schedule, t.groups, t.ngroups);
    for (uint32_t g = 0; g < t.ngroups; g++)
        out->largest_nbytes = t.groups[g].nbytes > out->largest_nbytes ? t.groups[g].nbytes : out->largest_nbytes;
    tables_free(&t);
    return 0;
}
