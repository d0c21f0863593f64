/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of a host are those with the same keeper: only this tells who sees the same memory. Rows travel from the memory
 * of one host to the same place in that of another. */
#include "state/spread.h"

#include <stdlib.h>
#include <string.h>

#include "arrays/grow.h"
#include "state/checkpoint.h"
#include "state/snapshots_impl.h"

#define OPERATION "copying the state to another host"

enum { TREES = CHECKPOINT_TREES, WORDS = COMM_MAX_SUM / 64, BLOCK = COMM_MAX_SUM / WORDS };

/* Which hosts hold the rows of each rank of a copy, as bits of their leaders. */
struct holders {
    uint64_t bits[COMM_MAX_SUM][WORDS];
};

/* --- who is where --- */

/* all: (nranks) the word of each rank. */
static int tell_all(struct comm *c, uint64_t mine, uint64_t all[COMM_MAX_SUM], struct fsdpck_error *err)
{
    memset(all, 0, COMM_MAX_SUM * sizeof *all);
    all[c->rank] = mine;
    return c->ops->sum_u64(c, all, c->nranks, err);
}

static void find_leaders(struct snapshots *s, uint32_t nranks, const uint64_t ids[COMM_MAX_SUM])
{
    for (uint32_t r = 0; r < nranks; r++) {
        s->leader[r] = 0;
        while (ids[s->leader[r]] != ids[r])
            s->leader[r]++;
    }
}

/* Number of ranks with this leader; *place: number of those before rank r. */
static uint32_t count_members(const struct snapshots *s, uint32_t nranks, uint32_t leader, uint32_t r, uint32_t *place)
{
    uint32_t n = 0;
    for (uint32_t q = 0; q < nranks; q++) {
        if (q == r)
            *place = n;
        n += s->leader[q] == leader;
    }
    return n;
}

static uint32_t member(const struct snapshots *s, uint32_t leader, uint32_t place)
{
    uint32_t r = leader;
    for (; place > 0 || s->leader[r] != leader; r++)
        place -= s->leader[r] == leader;
    return r;
}

/* The leader of the next host, in a circle. */
static uint32_t next_leader(const struct snapshots *s, uint32_t nranks, uint32_t leader)
{
    uint32_t r = leader;
    do
        r = (r + 1) % nranks;
    while (s->leader[r] != r);
    return r;
}

static void find_neighbours(struct snapshots *s, uint32_t nranks)
{
    for (uint32_t r = 0; r < nranks; r++) {
        const uint32_t next = next_leader(s, nranks, s->leader[r]);
        uint32_t place = 0, ignored = 0;
        count_members(s, nranks, s->leader[r], r, &place);
        s->neighbour[r] =
            next == s->leader[r] ? r : member(s, next, place % count_members(s, nranks, next, 0, &ignored));
    }
}

int spread_join(struct snapshots *s, struct comm *c, uint64_t run, struct fsdpck_error *err)
{
    uint64_t ids[COMM_MAX_SUM];
    int rc = tell_all(c, s->kept.id, ids, err);
    if (rc)
        return rc;
    find_leaders(s, c->nranks, ids);
    find_neighbours(s, c->nranks);
    s->run = run;
    s->spread = true;
    return 0;
}

/* --- messages --- */

struct parts {
    struct comm_part *at;
    size_t n, room;
};

static int add(struct parts *parts, struct comm_part part, struct fsdpck_error *err)
{
    if (!grow((void **)&parts->at, &parts->room, parts->n + 1, sizeof *parts->at))
        return fsdpck_error_nomem(err, (parts->n + 1) * sizeof *parts->at);
    parts->at[parts->n++] = part;
    return 0;
}

/* The rows of parameter p that both a rank of `before` ranks owned and a rank of `after` owns. */
static int64_t common_rows(const struct rows *p, uint32_t old, uint64_t before, uint32_t rank, uint64_t after,
                           int64_t *first)
{
    int64_t from, begin, end = snapshots_rows(p, old, before, &from);
    end = from + (end > 0 ? end : 0);
    int64_t n = snapshots_rows(p, rank, after, &begin);
    *first = from > begin ? from : begin;
    end = end < begin + n ? end : begin + n;
    return end - *first;
}

/* Lists the rows of rank `old` of `before` that rank `rank` of `after` needs. */
static int add_rows(const struct snapshots *s, struct parts *parts, uint32_t index, uint32_t old, uint64_t before,
                    uint32_t rank, uint64_t after, struct comm_part part, struct fsdpck_error *err)
{
    int rc = 0;
    for (int tree = 0; tree < TREES; tree++) {
        const float *data = snapshots_tree(s, index, tree);
        for (size_t i = 0; i < s->nparams && !rc; i++) {
            const struct rows *p = &s->params[i];
            int64_t first, nrow = common_rows(p, old, before, rank, after, &first);
            if (nrow <= 0)
                continue;
            part.at = (size_t)((const char *)(data + p->at + (uint64_t)(first * p->ncol)) - (const char *)s->heads);
            part.nbytes = (size_t)(nrow * p->ncol) * sizeof(float);
            rc = add(parts, part, err);
        }
    }
    return rc;
}

static int transfer(struct snapshots *s, struct comm *c, struct parts *parts, struct fsdpck_error *err)
{
    int rc = parts->n ? c->ops->transfer(c, s->heads, parts->at, parts->n, OPERATION, err) : 0;
    free(parts->at);
    return rc;
}

int spread_rows(struct snapshots *s, struct comm *c, uint32_t index, struct fsdpck_error *err)
{
    const uint32_t n = c->nranks, to = s->neighbour[c->rank];
    struct parts parts = { 0 };
    int rc = to == c->rank ? 0
                           : add_rows(s, &parts, index, c->rank, n, c->rank, n,
                                      (struct comm_part){ .peer = to, .sends = true }, err);
    for (uint32_t q = 0; q < n && !rc; q++) {
        if (q == c->rank || s->neighbour[q] != c->rank)
            continue;
        atomic_store(&snapshots_head(s, index, q)->step, 0);
        rc = add_rows(s, &parts, index, q, n, q, n, (struct comm_part){ .peer = q }, err);
    }
    if (!rc)
        return transfer(s, c, &parts, err);
    free(parts.at);
    return rc;
}

static struct comm_part head_part(const struct snapshots *s, uint32_t index, uint32_t rank, uint32_t peer, bool sends)
{
    const char *head = (const char *)snapshots_head(s, index, rank);
    return (struct comm_part){ peer, sends, (size_t)(head - (const char *)s->heads), sizeof(struct head) };
}

int spread_head(struct snapshots *s, struct comm *c, uint32_t index, struct fsdpck_error *err)
{
    const uint32_t to = s->neighbour[c->rank];
    struct parts parts = { 0 };
    int rc = to == c->rank ? 0 : add(&parts, head_part(s, index, c->rank, to, true), err);
    for (uint32_t q = 0; q < c->nranks && !rc; q++) {
        if (q != c->rank && s->neighbour[q] == c->rank)
            rc = add(&parts, head_part(s, index, q, q, false), err);
    }
    if (!rc)
        return transfer(s, c, &parts, err);
    free(parts.at);
    return rc;
}

/* --- the choice --- */

/* The newest head of a copy on this host: its step and number of ranks. */
static void find_newest(const struct snapshots *s, uint32_t index, uint64_t *step, uint64_t *nranks)
{
    *step = *nranks = 0;
    for (uint32_t r = 0; r < COMM_MAX_SUM; r++) {
        const struct head *head = snapshots_head(s, index, r);
        const uint64_t found = atomic_load(&head->step);
        if (found > *step && head->nranks > r && head->nranks <= COMM_MAX_SUM) {
            *step = found;
            *nranks = head->nranks;
        }
    }
}

/* Other hosts tell the number. */
static int check_nranks(uint64_t nranks, struct fsdpck_error *err)
{
    if (nranks <= COMM_MAX_SUM)
        return 0;
    return fsdpck_error_set(err, FSDPCK_ERR_IO, NULL, "a copy of the state in memory has %llu ranks, wanted at most %d",
                            (unsigned long long)nranks, COMM_MAX_SUM);
}

/* The same for all hosts. */
static int agree_on_newest(const struct snapshots *s, struct comm *c, uint32_t index, uint64_t *step, uint64_t *nranks,
                           struct fsdpck_error *err)
{
    uint64_t steps[COMM_MAX_SUM], counts[COMM_MAX_SUM];
    find_newest(s, index, step, nranks);
    int rc = tell_all(c, *step, steps, err);
    if (!rc)
        rc = tell_all(c, *nranks, counts, err);
    for (uint32_t r = 0; r < c->nranks && !rc; r++) {
        if (r == 0 || steps[r] > *step) {
            *step = steps[r];
            *nranks = counts[r];
        }
    }
    return rc ? rc : check_nranks(*nranks, err);
}

/* The ranks of a host check its rows together. */
static bool holds(const struct snapshots *s, struct comm *c, uint32_t index, uint32_t old, uint64_t step,
                  uint64_t nranks)
{
    uint32_t place = 0;
    const uint32_t n = count_members(s, c->nranks, s->leader[c->rank], c->rank, &place);
    const struct head *head = snapshots_head(s, index, old);
    comm_heartbeat(c);
    return old % n == place && atomic_load(&head->step) == step && head->nranks == nranks &&
           snapshots_has_hash(s, index, old);
}

/* *whole: the hosts together have all rows. */
static int find_holders(const struct snapshots *s, struct comm *c, uint32_t index, uint64_t step, uint64_t nranks,
                        struct holders *out, bool *whole, struct fsdpck_error *err)
{
    const uint32_t leader = s->leader[c->rank];
    int rc = 0;
    memset(out, 0, sizeof *out);
    *whole = true;
    for (uint32_t old = 0; old < nranks; old++) {
        if (holds(s, c, index, old, step, nranks))
            out->bits[old][leader / 64] = 1ull << leader % 64;
    }
    for (uint32_t first = 0; first < nranks && !rc; first += BLOCK)
        rc = c->ops->sum_u64(c, out->bits[first], COMM_MAX_SUM, err);
    for (uint32_t old = 0; old < nranks && !rc; old++) {
        bool held = false;
        for (int i = 0; i < WORDS; i++)
            held |= out->bits[old][i] != 0;
        *whole &= held;
    }
    return rc;
}

static bool is_holder(const struct holders *h, uint32_t old, uint32_t leader)
{
    return h->bits[old][leader / 64] >> leader % 64 & 1;
}

/* The rank that sends the rows of an old rank. */
static uint32_t sender_of(const struct snapshots *s, const struct comm *c, const struct holders *h, uint32_t old)
{
    uint32_t leader = 0, ignored = 0;
    while (s->leader[leader] != leader || !is_holder(h, old, leader))
        leader++;
    return member(s, leader, old % count_members(s, c->nranks, leader, 0, &ignored));
}

/* Brings the rows that each rank needs to its host. */
static int fetch(struct snapshots *s, struct comm *c, uint32_t index, uint64_t nranks, const struct holders *h,
                 struct fsdpck_error *err)
{
    struct parts parts = { 0 };
    int rc = 0;
    for (uint32_t old = 0; old < nranks && !rc; old++) {
        const uint32_t from = sender_of(s, c, h, old);
        for (uint32_t q = 0; q < c->nranks && !rc; q++) {
            const struct comm_part part = { .peer = c->rank == q ? from : q, .sends = c->rank == from };
            if (!is_holder(h, old, s->leader[q]) && (q == c->rank || from == c->rank))
                rc = add_rows(s, &parts, index, old, nranks, q, c->nranks, part, err);
        }
    }
    if (!rc)
        return transfer(s, c, &parts, err);
    free(parts.at);
    return rc;
}

/* The facts of a copy that its heads have: any host that holds one tells them. */
static int tell_facts(struct snapshots *s, struct comm *c, uint32_t index, const struct holders *h,
                      struct fsdpck_error *err)
{
    const struct head *head = snapshots_head(s, index, 0);
    const bool tells = sender_of(s, c, h, 0) == c->rank;
    uint64_t facts[] = { tells ? head->updates : 0, tells ? head->last_update : 0 };
    int rc = c->ops->sum_u64(c, facts, 2, err);
    s->updates = facts[0];
    s->last_update = facts[1];
    return rc;
}

static int try_copy(struct snapshots *s, struct comm *c, uint32_t index, uint64_t step, uint64_t nranks,
                    struct fsdpck_error *err)
{
    struct holders *h = malloc(sizeof *h);
    bool whole = false;
    int rc = h ? find_holders(s, c, index, step, nranks, h, &whole, err) : fsdpck_error_nomem(err, sizeof *h);
    if (!rc && whole)
        rc = fetch(s, c, index, nranks, h, err);
    if (!rc && whole)
        rc = tell_facts(s, c, index, h, err);
    if (!rc && whole) {
        s->chosen = (int)index;
        s->step = step;
    }
    free(h);
    return rc;
}

int spread_choose(struct snapshots *s, struct comm *c, uint64_t above, uint64_t *step, struct fsdpck_error *err)
{
    uint64_t steps[SNAPSHOTS_NCOPIES], nranks[SNAPSHOTS_NCOPIES];
    int rc = 0;
    s->chosen = -1;
    *step = 0;
    for (uint32_t i = 0; i < SNAPSHOTS_NCOPIES && !rc; i++)
        rc = agree_on_newest(s, c, i, &steps[i], &nranks[i], err);
    for (uint32_t i = 0; i < SNAPSHOTS_NCOPIES && !rc && s->chosen < 0; i++) {
        const uint32_t newer = steps[1] > steps[0], index = i == 0 ? newer : !newer;
        if (steps[index] > above)
            rc = try_copy(s, c, index, steps[index], nranks[index], err);
    }
    if (!rc && s->chosen >= 0)
        *step = s->step;
    return rc;
}
