/* SPDX-License-Identifier: Apache-2.0 */
/* Moves groups of parameters in the hooks of a micro-batch, and counts what moves. */
#include "rank/gather.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "rank/gather_tables.h"

struct gather {
    const struct job *job;
    struct comm *comm;
    struct compute *compute;
    struct gather_tables tables;
    struct ring *ring; /* NULL if ranks map each other's rows */
    bool begun;        /* the first micro-batch has begun */
    uint32_t use;      /* uses of this micro-batch that have begun */
    char *data;        /* the unit that was entered last */
};

/* Groups that are not gathered stay where they are: on the host, where all parameters have their places. */
static void set_whole(struct gather *g, struct compute *c)
{
    const struct layout *l = &g->job->layout;
    for (size_t i = l->nparams; i-- > 0 && c->device->separate_memory;) { /* the first parameter of a group counts */
        const struct param *p = &l->params[i];
        if (g->tables.whole[g->tables.wrap.unit[p->group]])
            c->group_data[p->group] =
                (struct compute_group_data){ g->comm->values + g->tables.rest_at[i], p->value_at };
    }
}

int gather_new(const struct job *job, bool linked, struct comm *comm, struct compute *c, char *memory,
               struct gather **out, struct fsdpck_error *err)
{
    const struct ring_device on = { .memory = memory, .device = c->device, .index = c->index, .compute = c->stream };
    struct gather *g = calloc(1, sizeof *g);
    *out = NULL;
    if (!g)
        return fsdpck_error_nomem(err, sizeof *g);
    g->job = job;
    g->comm = comm;
    g->compute = c;
    int rc = gather_tables_make(job, linked, comm->kept_within > 0, &g->tables, err);
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
    if (!rc)
        set_whole(g, c);
    return rc;
}

void gather_free(struct gather *g)
{
    if (!g)
        return;
    ring_free(g->ring);
    gather_tables_free(&g->tables);
    free(g);
}

typedef int spread_fn(struct comm *, const struct comm_piece *pieces, size_t npieces, struct fsdpck_error *err);

static int each_group(struct gather *g, bool all, spread_fn *spread, struct fsdpck_error *err)
{
    int rc = 0;
    for (uint32_t i = 0; spread && i < g->tables.ngroups && !rc; i++) {
        const struct ring_group *group = &g->tables.groups[i];
        const size_t first = all ? 0 : group->nfrozen;
        if (first < group->npieces)
            rc = spread(g->comm, group->pieces + first, group->npieces - first, err);
    }
    const size_t first = all ? 0 : g->tables.nowned_frozen;
    return rc || !spread || first == g->tables.nowned
               ? rc
               : spread(g->comm, g->tables.owned + first, g->tables.nowned - first, err);
}

int gather_publish(struct gather *g, bool all, struct fsdpck_error *err)
{
    int rc = each_group(g, all, g->comm->ops->publish, err);
    if (!rc)
        rc = g->comm->ops->barrier(g->comm, COMM_UPDATE_OPERATION, err);
    return rc ? rc : each_group(g, all, g->comm->ops->settle, err);
}

static int before_group(void *ctx, uint32_t group, struct fsdpck_error *err)
{
    struct gather *g = ctx;
    comm_heartbeat(g->comm);
    if (job_status_failed(g->comm->job_status))
        return comm_other_failed(g->comm, "forward and backward", err);
    if (!g->ring)
        return 0;
    const uint32_t unit = g->tables.wrap.unit[group];
    int rc = g->tables.enters[g->use++] ? ring_enter(g->ring, unit, &g->data, err) : 0;
    if (!rc && !g->tables.whole[unit])
        g->compute->group_data[group] = (struct compute_group_data){
            (unsigned char *)g->data + (g->tables.group_at[group] - g->tables.unit_at[unit]), g->tables.group_at[group]
        };
    return rc;
}

/* Groups are nested only at the end, where each is a use of its own. */
static void after_group(void *ctx, uint32_t group)
{
    struct gather *g = ctx;
    (void)group;
    if (g->ring && g->tables.leaves[g->use - 1])
        ring_leave(g->ring);
}

struct compute_hook gather_hook(struct gather *g)
{
    return (struct compute_hook){ .before_group = before_group, .after_group = after_group, .ctx = g };
}

void gather_begin(struct gather *g, bool first, bool backward)
{
    const enum ring_change change = !g->begun ? RING_ALL : first ? RING_TRAINED : RING_NOTHING;
    g->begun = true;
    g->use = 0;
    if (g->ring)
        ring_begin(g->ring, change, backward ? g->tables.nuses : g->tables.nforward);
}

struct ring_times gather_times(const struct gather *g)
{
    return g->ring ? ring_times(g->ring) : (struct ring_times){ 0 };
}

uint64_t gather_waited_ns(const struct gather *g, uint32_t group)
{
    return g->ring ? ring_waited_ns(g->ring, g->tables.wrap.unit[group]) : 0;
}

uint32_t gather_last_of_unit(const struct gather *g, uint32_t group)
{
    const uint32_t *unit = g->tables.wrap.unit;
    while (group + 1 < g->job->layout.ngroups && unit[group + 1] == unit[group])
        group++;
    return group;
}

uint64_t gather_hash(const struct gather *g)
{
    return schedule_hash(&g->tables.schedule);
}

uint64_t gather_units(const struct gather *g)
{
    return XXH3_64bits(g->tables.wrap.unit, g->job->layout.ngroups * sizeof *g->tables.wrap.unit);
}

uint64_t gather_policy(const struct gather *g)
{
    uint64_t hash = 0;
    for (uint32_t i = 0; i < g->job->layout.ngroups; i++) {
        const struct group_policy *p = &g->tables.wrap.policy[i];
        const bool chosen = p->object != POLICY_NONE;
        const uint32_t unit = g->tables.wrap.unit[i];
        const uint32_t words[] = {
            (uint32_t)p->object, g->tables.groups[unit].pieces[0].within, chosen && p->stays,
            chosen && p->keeps,  chosen ? p->forward_prefetch : 0,        chosen ? p->backward_prefetch : 0
        };
        hash = XXH3_64bits_withSeed(words, sizeof words, hash);
    }
    return hash;
}

int gather_counts(const struct job *job, bool linked, uint32_t *ngathers, struct fsdpck_error *err)
{
    struct gather_tables t;
    int rc = gather_tables_make(job, linked, job_keeps(job, linked), &t, err);
    if (rc)
        return rc;
    for (uint32_t g = 0; g < job->layout.ngroups; g++) {
        ngathers[g] = 0;
        for (uint32_t u = 0; u < t.schedule.nentries; u++)
            ngathers[g] += t.schedule.entries[u].gather && t.schedule.entries[u].group == t.wrap.unit[g];
    }
    gather_tables_free(&t);
    return 0;
}

static uint64_t pieces_nbytes(const struct comm_piece *pieces, size_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += pieces[i].nbytes;
    return sum;
}

/* Ranks may map parameters; then a use still reads them. */
static struct gather_use describe_use(const struct job *job, bool gathers, const struct gather_tables *t,
                                      const struct schedule_entry *e)
{
    const struct ring_group *g = &t->groups[e->group];
    const bool resident = gathers && t->schedule.slot_group[e->slot] != UINT32_MAX;
    const size_t skipped = resident ? g->nfrozen : 0;
    const uint64_t nbytes = e->gather ? pieces_nbytes(g->pieces + skipped, g->npieces - skipped) : 0;
    return (struct gather_use){ .first_nbytes = nbytes,
                                .later_nbytes = resident ? 0 : nbytes,
                                .within = e->kept ? job->mesh.nkept : g->pieces[0].within,
                                .after = e->after,
                                .ahead = e->ahead };
}

/* Other groups may lie between those that are kept. */
static void count_kept(const struct gather_tables *t, struct gather_sizes *out)
{
    size_t from = SIZE_MAX, end = 0;
    for (uint32_t u = 0; u < t->schedule.nentries; u++) {
        const struct ring_group *g = &t->groups[t->schedule.entries[u].group];
        for (size_t i = 0; i < g->npieces && t->schedule.entries[u].keep; i++) {
            const struct comm_piece *p = &g->pieces[i];
            from = p->own < from ? p->own : from;
            end = p->own + p->stride > end ? p->own + p->stride : end;
            out->kept_used_nbytes += p->stride;
        }
    }
    out->kept_from = end ? from : 0;
    out->kept_nbytes = end ? end - from : 0;
}

int gather_count(const struct job *job, bool separate_memory, bool linked, struct gather_sizes *out,
                 struct fsdpck_error *err)
{
    const bool gathers = job_gathers(job, separate_memory);
    struct gather_tables t;
    *out = (struct gather_sizes){ 0 };
    int rc = gather_tables_make(job, linked, job_keeps(job, linked), &t, err);
    if (rc)
        return rc;
    for (uint32_t u = 0; u < t.schedule.nentries; u++) {
        const struct gather_use use = describe_use(job, gathers, &t, &t.schedule.entries[u]);
        out->received_nbytes += use.first_nbytes * (use.within - 1) / use.within;
        out->received_later_nbytes += use.later_nbytes * (use.within - 1) / use.within;
    }
    count_kept(&t, out);
    out->buffer_nbytes = gathers ? ring_nbytes(&t.schedule, t.groups, t.ngroups) : 0;
    for (uint32_t g = 0; g < t.ngroups; g++)
        out->largest_nbytes = t.groups[g].nbytes > out->largest_nbytes ? t.groups[g].nbytes : out->largest_nbytes;
    gather_tables_free(&t);
    return 0;
}

int gather_timeline(const struct job *job, bool separate_memory, bool linked, struct gather_use *uses, uint32_t *use_of,
                    uint32_t *nuses, struct fsdpck_error *err)
{
    const bool gathers = job_gathers(job, separate_memory);
    struct gather_tables t;
    uint32_t unused, n = compute_uses(&job->layout, &unused, NULL), use = 0;
    int rc = gather_tables_make(job, linked, job_keeps(job, linked), &t, err);
    if (rc)
        return rc;
    for (uint32_t u = 0; u < n; u++) {
        use += t.enters[u];
        use_of[u] = use - 1;
    }
    for (uint32_t u = 0; u < t.schedule.nentries; u++) {
        uses[u] = describe_use(job, gathers, &t, &t.schedule.entries[u]);
        if (!gathers)
            uses[u].first_nbytes = uses[u].later_nbytes = 0;
    }
    *nuses = t.schedule.nentries;
    gather_tables_free(&t);
    return 0;
}
