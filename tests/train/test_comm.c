/* SPDX-License-Identifier: Apache-2.0 */
/* Communicator, reducer, ring and job status, with threads as ranks: their results against what each rank can compute
 * alone, and the effect of a late, lost or failing rank on the others. Runs under TSan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm_local.h"
#include "comm/reducer.h"
#include "comm/ring.h"
#include "comm/trade.h"

enum { MAX_RANKS = 5, NGROUPS = 7, NPARAMS = 17, NSTEPS = 3 };

struct job_ranks {
    struct job_status *job_status;
    struct comm_world *world;
    uint32_t nranks;
    void (*body)(struct comm *, void *ctx);
    void *ctx;
};

struct one {
    struct job_ranks *all;
    uint32_t rank;
};

static void *be_rank(void *arg)
{
    struct one *one = arg;
    struct fsdpck_error err = { 0 };
    struct comm *comm = NULL;
    if (comm_world_join(one->all->world, one->rank, &comm, &err) == 0) {
        one->all->body(comm, one->all->ctx);
        comm->ops->free(comm);
    }
    return NULL;
}

static void run_ranks(uint32_t nranks, struct comm_sizes sizes, double patience, void (*body)(struct comm *, void *),
                      void *ctx)
{
    struct job_ranks all = { .nranks = nranks, .body = body, .ctx = ctx };
    struct fsdpck_error err = { 0 };
    struct one ones[MAX_RANKS];
    pthread_t threads[MAX_RANKS];
    assert_int_equal(job_status_new(0, nranks, nranks, patience, &all.job_status, &err), 0);
    assert_int_equal(comm_world_new(nranks, sizes, all.job_status, &all.world, &err), 0);
    for (uint32_t r = 0; r < nranks; r++) {
        ones[r] = (struct one){ &all, r };
        assert_int_equal(pthread_create(&threads[r], NULL, be_rank, &ones[r]), 0);
    }
    for (uint32_t r = 0; r < nranks; r++)
        pthread_join(threads[r], NULL);
    comm_world_free(all.world);
    job_status_free(all.job_status);
}

/* --- sums and exchanges */

static float gradient(uint32_t rank, int64_t i)
{
    return 1.0f / (float)(1 + i) + (float)rank * 0.37f;
}

static float sent_as(enum fsdpck_dtype dtype, uint32_t rank, int64_t i)
{
    float exact = gradient(rank, i), back;
    uint8_t rounded[4];
    fsdpck_dtype_cast(FSDPCK_FLOAT32, &exact, dtype, rounded, 1);
    fsdpck_dtype_cast(dtype, rounded, FSDPCK_FLOAT32, &back, 1);
    return back;
}

/* The gradient as its owner receives it. */
static float sent(const struct comm *c, uint32_t rank, int64_t i)
{
    return sent_as(c->reduce, rank, i);
}

static void exchange(struct comm *c, void *ctx)
{
    const int64_t nelem = 103, chunk = (nelem + c->nranks - 1) / c->nranks;
    float into[128];
    uint32_t *wrong = ctx;
    for (uint32_t n = 1; n <= c->nranks; n++) {
        struct comm_slice slice = { .at = 16, .nelem = nelem, .chunk = chunk, .into = into };
        struct fsdpck_error err = { 0 };
        int64_t begin, mine = comm_slice_part(&slice, c->rank, &begin);
        for (int64_t i = 0; i < nelem; i++)
            c->contribution[16 + i] = gradient(c->rank, i);
        for (int64_t i = 0; i < mine; i++)
            into[i] = 3;
        int rc = c->ops->exchange(c, &slice, 1, n, n % 2 == 0, &err);
        for (int64_t i = 0; i < mine; i++) {
            float want = n % 2 == 0 ? sent(c, 0, begin + i) : 3 + sent(c, 0, begin + i);
            for (uint32_t q = 1; q < n; q++)
                want += sent(c, q, begin + i);
            if (rc || want != into[i])
                __atomic_fetch_add(wrong, 1, __ATOMIC_RELAXED);
        }
        uint64_t sum[2] = { c->rank + 1, UINT64_MAX };
        rc = c->ops->sum_u64(c, sum, 2, &err);
        if (rc || sum[0] != (uint64_t)c->nranks * (c->nranks + 1) / 2 || sum[1] != 0 - (uint64_t)c->nranks)
            __atomic_fetch_add(wrong, 1, __ATOMIC_RELAXED);
    }
}

/* Sums on one lane while another lane sums too. */
static void *sum_on_save(void *arg)
{
    struct comm *c = arg;
    struct fsdpck_error err = { 0 };
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < 200; i++) {
        uint64_t value = i;
        wrong += c->ops->sum_u64(c, &value, 1, &err) != 0 || value != i * c->nranks;
    }
    return (void *)(uintptr_t)wrong;
}

static void sum_on_two_lanes(struct comm *c, void *ctx)
{
    pthread_t thread;
    void *wrong = NULL;
    struct fsdpck_error err = { 0 };
    bool started = pthread_create(&thread, NULL, sum_on_save, c->lanes[COMM_SAVE]) == 0;
    for (uint64_t i = 0; i < 200; i++) {
        uint64_t value = 1000 + i;
        if (c->ops->sum_u64(c, &value, 1, &err) || value != (1000 + i) * c->nranks)
            __atomic_fetch_add((uint32_t *)ctx, 1, __ATOMIC_RELAXED);
    }
    if (started)
        pthread_join(thread, &wrong);
    if (!started || wrong)
        __atomic_fetch_add((uint32_t *)ctx, 1, __ATOMIC_RELAXED);
}

static void test_lanes(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= MAX_RANKS; n += 2) {
        uint32_t wrong = 0;
        run_ranks(n, (struct comm_sizes){ .value_nbytes = 64, .grad_nelem = 64, .reduce = FSDPCK_FLOAT32 }, 600,
                  sum_on_two_lanes, &wrong);
        assert_int_equal(wrong, 0);
    }
}

static void test_exchange(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= MAX_RANKS; n++) {
        for (int i = 0; i < 2; i++) {
            uint32_t wrong = 0;
            run_ranks(n,
                      (struct comm_sizes){
                          .value_nbytes = 64, .grad_nelem = 128, .reduce = i ? FSDPCK_BFLOAT16 : FSDPCK_FLOAT32 },
                      600, exchange, &wrong);
            assert_int_equal(wrong, 0);
        }
    }
}

/* --- the exchange behind a backward */

enum { PART = 37, ROUNDS = 40 };

/* Two slices of different dtypes alternate: while one is exchanged, the other is filled by adding to zeros. */
static void exchange_behind(struct comm *c, void *ctx)
{
    static const enum fsdpck_dtype dtypes[] = { FSDPCK_FLOAT32, FSDPCK_BFLOAT16 };
    float into[2][PART];
    struct comm_slice slices[2];
    struct reducer *reducer;
    struct fsdpck_error err = { 0 };
    const int64_t chunk = (PART + c->nranks - 1) / c->nranks;
    uint32_t wrong = reducer_new(c->lanes[COMM_REDUCE], NULL, 2, &reducer, &err) != 0;
    memset(c->contribution, 0, 2 * PART * sizeof(float));
    for (uint32_t i = 0; i < ROUNDS && !wrong; i++) {
        float *place = c->contribution + (i % 2) * PART;
        slices[i % 2] = (struct comm_slice){
            .at = (i % 2) * PART, .nelem = PART, .chunk = chunk, .into = into[i % 2], .reduce = dtypes[i % 2]
        };
        for (int64_t j = 0; j < PART; j++)
            place[j] += gradient(c->rank, (int64_t)i + j);
        reducer_start(reducer, &(struct reducer_job){ &slices[i % 2], 1, c->nranks, true, true, i % 2, { 0 } });
        wrong += reducer_wait(reducer, i + 1 < ROUNDS ? 1 : 0, &err) != 0;
        int64_t begin, mine = comm_slice_part(&slices[0], c->rank, &begin);
        for (int64_t j = 0; j < mine && i > 0; j++) {
            const enum fsdpck_dtype dtype = dtypes[(i - 1) % 2];
            float want = sent_as(dtype, 0, (int64_t)i - 1 + begin + j);
            for (uint32_t q = 1; q < c->nranks; q++)
                want += sent_as(dtype, q, (int64_t)i - 1 + begin + j);
            wrong += into[(i - 1) % 2][j] != want;
        }
    }
    wrong += reducer_times(reducer).waited_ns != reducer_waited_ns(reducer, 0) + reducer_waited_ns(reducer, 1);
    reducer_free(reducer);
    __atomic_fetch_add((uint32_t *)ctx, wrong, __ATOMIC_RELAXED);
}

/* A rank fails while others exchange: they get the error where they wait. */
static void fail_behind(struct comm *c, void *ctx)
{
    float into[PART];
    const struct comm_slice slice = { .nelem = PART, .chunk = PART, .into = into, .reduce = FSDPCK_FLOAT32 };
    struct reducer *reducer;
    struct fsdpck_error err = { 0 };
    if (c->rank == 1) {
        fsdpck_error_set(&err, FSDPCK_ERR_FORMAT, NULL, "no good");
        job_status_fail(c->job_status, &err);
        return;
    }
    int rc = reducer_new(c->lanes[COMM_REDUCE], NULL, 2, &reducer, &err);
    for (int i = 0; i < 3 && !rc; i++) {
        reducer_start(reducer, &(struct reducer_job){ &slice, 1, c->nranks, true, true, 0, { 0 } });
        rc = reducer_wait(reducer, 1, &err);
    }
    if (rc == FSDPCK_ERR_PEER)
        __atomic_fetch_add((uint32_t *)ctx, 1, __ATOMIC_RELAXED);
    reducer_free(reducer);
}

static void test_reducer(void **state)
{
    (void)state;
    uint32_t ended = 0;
    for (uint32_t n = 1; n <= MAX_RANKS; n++) {
        uint32_t wrong = 0;
        run_ranks(n, (struct comm_sizes){ .value_nbytes = 64, .grad_nelem = 2 * PART, .reduce = FSDPCK_FLOAT32 }, 600,
                  exchange_behind, &wrong);
        assert_int_equal(wrong, 0);
    }
    run_ranks(3, (struct comm_sizes){ .value_nbytes = 64, .grad_nelem = PART, .reduce = FSDPCK_FLOAT32 }, 600,
              fail_behind, &ended);
    assert_int_equal(ended, 2);
}

/* --- the ring */

struct ring_case {
    uint32_t forward, backward, nuses, wrong;
    struct schedule_use uses[4 * NGROUPS];
    bool stays[NGROUPS];
    struct comm_piece pieces[NPARAMS];
    struct ring_group groups[NGROUPS];
    struct schedule schedule;
    size_t group_at[NGROUPS], nbytes;
};

static unsigned char byte_of(size_t at, uint32_t step)
{
    return (unsigned char)(at * 7 + at / 251 + step * 101);
}

static void check_group(struct ring_case *k, uint32_t group, const char *data, uint32_t step)
{
    for (size_t i = 0; i < k->groups[group].npieces; i++) {
        const struct comm_piece *p = &k->groups[group].pieces[i];
        bool frozen = i < k->groups[group].nfrozen;
        for (size_t b = 0; b < p->nbytes; b++) {
            if ((unsigned char)data[p->into + b] != byte_of(p->at + b, frozen ? 0 : step))
                __atomic_fetch_add(&k->wrong, 1, __ATOMIC_RELAXED);
        }
    }
}

/* Each rank writes its own rows; after the first step, only those of trained groups. */
static void write_rows(struct ring_case *k, struct comm *c, uint32_t step)
{
    for (uint32_t g = 0; g < NGROUPS; g++) {
        for (size_t i = step ? k->groups[g].nfrozen : 0; i < k->groups[g].npieces; i++) {
            const struct comm_piece *p = &k->groups[g].pieces[i];
            for (size_t b = p->chunk * c->rank; b < p->chunk * (c->rank + 1) && b < p->nbytes; b++)
                c->values[p->at + b] = byte_of(p->at + b, i < k->groups[g].nfrozen ? 0 : step);
        }
    }
}

/* Brings the rows that write_rows has written to the other shard groups. */
static int publish_rows(struct ring_case *k, struct comm *c, uint32_t step, struct fsdpck_error *err)
{
    int rc = 0;
    for (uint32_t g = 0; g < NGROUPS && !rc; g++) {
        const size_t first = step ? k->groups[g].nfrozen : 0;
        rc = c->ops->publish(c, k->groups[g].pieces + first, k->groups[g].npieces - first, err);
    }
    return rc ? rc : c->ops->barrier(c, "update", err);
}

/* Uses `pair` and the next are live together, like an embedding and a head. */
static int use_all(struct ring_case *k, struct ring *ring, uint32_t step, uint32_t pair, struct fsdpck_error *err)
{
    char *data, *other = NULL;
    for (uint32_t u = 0; u < k->nuses; u++) {
        int rc = ring_enter(ring, k->uses[u].group, &data, err);
        if (rc)
            return rc;
        check_group(k, k->uses[u].group, data, step);
        if (u == pair) {
            other = data;
            continue;
        }
        if (u == pair + 1) {
            check_group(k, k->uses[pair].group, other, step);
            ring_leave(ring);
        }
        ring_leave(ring);
    }
    return 0;
}

/* A rank without work. */
static int pass_through(struct ring *ring, const struct schedule *schedule, struct fsdpck_error *err)
{
    char *data;
    int rc = 0;
    for (uint32_t u = 0; u < schedule->nentries && !rc; u++) {
        rc = ring_enter(ring, schedule->entries[u].group, &data, err);
        ring_leave(ring);
    }
    return rc;
}

static void gather(struct comm *c, void *ctx)
{
    struct ring_case *k = ctx;
    struct ring *ring = NULL;
    struct fsdpck_error err = { 0 };
    char *memory = aligned_alloc(4096, ring_nbytes(&k->schedule, k->groups, NGROUPS) + 4096);
    const struct ring_device on = { .memory = memory }; /* no device: the data has arrived when a gather returns */
    int rc = memory ? ring_new(c->lanes[COMM_GATHER], &k->schedule, k->groups, NGROUPS, &on, &ring, &err) : -1;
    for (uint32_t step = 0; step < NSTEPS && !rc; step++) {
        write_rows(k, c, step);
        rc = publish_rows(k, c, step, &err);
        ring_begin(ring, step ? RING_TRAINED : RING_ALL, k->schedule.nentries);
        if (!rc)
            rc = use_all(k, ring, step, NGROUPS - 1, &err);
        ring_begin(ring, RING_NOTHING, k->schedule.nentries);
        if (!rc && c->rank % 2)
            rc = pass_through(ring, &k->schedule, &err);
        else if (!rc)
            rc = use_all(k, ring, step, NGROUPS - 1, &err);
        if (!rc)
            rc = c->ops->barrier(c, "norm", &err);
    }
    if (rc)
        __atomic_fetch_add(&k->wrong, 1, __ATOMIC_RELAXED);
    ring_free(ring);
    free(memory);
}

static void make_case(struct ring_case *k, uint32_t nranks, unsigned seed)
{
    size_t at = 0, n = 0;
    *k = (struct ring_case){ .forward = seed % 4, .backward = seed / 4 % 4 };
    for (uint32_t g = 0; g < NGROUPS; g++) {
        k->stays[g] = seed % 3 == 2 || (seed % 3 == 1 && (g == 0 || g == NGROUPS - 1));
        k->groups[g] =
            (struct ring_group){ .pieces = &k->pieces[n], .npieces = 1 + (g + seed) % 3, .nfrozen = (g + seed) % 2 };
        k->group_at[g] = at;
        for (size_t i = 0; i < k->groups[g].npieces; i++) {
            size_t rows = 1 + (g * 5 + i * 3 + seed) % 11, row = 8 + 8 * ((g + i) % 4),
                   chunk = (rows + nranks - 1) / nranks * row;
            k->pieces[n++] =
                (struct comm_piece){ .at = at, .into = at - k->group_at[g], .nbytes = rows * row, .chunk = chunk };
            k->groups[g].nbytes = at - k->group_at[g] + rows * row;
            at += chunk * nranks;
        }
        k->uses[k->nuses++].group = g;
    }
    k->nbytes = at;
    k->uses[NGROUPS - 1].group = 0; /* the first group again, together with the last */
    k->uses[k->nuses++].group = NGROUPS - 1;
    for (uint32_t g = NGROUPS - 2; g > 0; g--)
        k->uses[k->nuses++] = (struct schedule_use){ g, true };
}

/* Shard groups of nshards ranks; nkept: as in struct mesh. */
static void gather_on(uint32_t nranks, uint32_t nshards, uint32_t nkept, unsigned seed)
{
    struct ring_case k;
    struct fsdpck_error err = { 0 };
    make_case(&k, nranks, seed);
    for (uint32_t g = 0; g < NGROUPS; g++) /* some are cut over all ranks */
        for (size_t i = 0; i < k.groups[g].npieces; i++)
            k.pieces[(size_t)(k.groups[g].pieces - k.pieces) + i].within = (g + seed) % 3 ? nshards : nranks;
    struct schedule_group groups[NGROUPS];
    for (uint32_t g = 0; g < NGROUPS; g++) /* groups with settings of their own, in some cases */
        groups[g] = (struct schedule_group){ .stays = k.stays[g],
                                             .keeps = nkept > 0 && (seed % 2 == 0 || g % 2 == 0),
                                             .forward_prefetch = k.forward + (seed % 5 == 0 ? g % 3 : 0),
                                             .backward_prefetch = k.backward + (seed % 7 == 0 ? g % 2 : 0) };
    if (!k.stays[0] && k.forward == 0 && k.backward == 0)
        groups[0].forward_prefetch = 1; /* two groups at once need two slots */
    const struct schedule_request req = { .uses = k.uses, .groups = groups, .nuses = k.nuses, .ngroups = NGROUPS };
    assert_int_equal(schedule_make(&req, &k.schedule, &err), 0);
    run_ranks(nranks,
              (struct comm_sizes){ .value_nbytes = k.nbytes,
                                   .grad_nelem = 0,
                                   .copies = true,
                                   .ranks_of_copy = nshards,
                                   .most_within = nshards,
                                   .kept_within = nkept,
                                   .reduce = FSDPCK_FLOAT32 },
              600, gather, &k);
    assert_int_equal(k.wrong, 0);
    schedule_free(&k.schedule);
}

static void test_ring(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < 24; seed++)
        gather_on(1 + seed % MAX_RANKS, 1 + seed % MAX_RANKS, 0, seed);
}

static void test_meshes(void **state)
{
    static const uint32_t meshes[][3] = { { 4, 2, 0 }, { 4, 1, 0 }, { 4, 4, 2 }, { 5, 1, 0 } };
    (void)state;
    for (unsigned seed = 0; seed < 24; seed++) {
        const uint32_t *mesh = meshes[seed % 4];
        gather_on(mesh[0], mesh[1], mesh[2], seed / 2);
    }
}

/* --- ranks that do not arrive */

static pthread_barrier_t both; /* both are in step 7, however late this machine starts a thread */

static void come_late(struct comm *c, void *ctx)
{
    struct fsdpck_error err = { 0 };
    comm_at(c, 7, "arithmetic");
    pthread_barrier_wait(&both);
    if (c->rank == 1)
        return;
    int rc = c->ops->barrier(c, "meeting", &err);
    if (rc == FSDPCK_ERR_IO && strstr(err.message, "for rank 1 of 2, which is in step 7, arithmetic"))
        __atomic_fetch_add((uint32_t *)ctx, 1, __ATOMIC_RELAXED);
    job_status_fail(c->job_status, &err);
}

/* Rank 1 has not kept its part yet: rank 0 may not gather it. */
static void gather_too_early(struct comm *c, void *ctx)
{
    const struct comm_piece piece = { .nbytes = 64, .chunk = 32 };
    struct fsdpck_error err = { 0 };
    char into[64];
    if (c->rank == 1)
        return;
    struct comm *lane = c->lanes[COMM_GATHER];
    lane->ops->keep(lane, &piece, 1, memset(into, 1, sizeof into));
    int rc = lane->ops->gather(lane, COMM_KEPT, &piece, 1, into, &err);
    if (rc == FSDPCK_ERR_IO && strstr(err.message, "in gather of parameters for rank 1 of 2"))
        __atomic_fetch_add((uint32_t *)ctx, 1, __ATOMIC_RELAXED);
}

static void fail_alone(struct comm *c, void *ctx)
{
    struct fsdpck_error err = { 0 }, first = { 0 };
    if (c->rank == 1) {
        fsdpck_error_set(&err, FSDPCK_ERR_FORMAT, NULL, "no good");
        job_status_fail(c->job_status, &err);
        return;
    }
    int rc = c->ops->barrier(c, "meeting", &err);
    job_status_lost(c->job_status, c->rank, false, "was killed"); /* too late to be the first */
    if (rc == FSDPCK_ERR_PEER && job_status_error(c->job_status, &first) && strcmp(first.message, "no good") == 0)
        __atomic_fetch_add((uint32_t *)ctx, 1, __ATOMIC_RELAXED);
}

/* ---- Messages */

enum { MESSAGE_NBYTES = 64 };

/* The first n bytes of the message from one rank to another are its own. */
static size_t write_message(uint32_t from, uint32_t to, unsigned char *message)
{
    const size_t n = from * 7 % 5 * to;
    for (size_t i = 0; i < n; i++)
        message[i] = (unsigned char)(17 * from + 3 * to + i);
    return n;
}

/* Every rank to every other one, in two spans, some of them empty. */
static void trade_with_all(struct comm *c, void *ctx)
{
    for (uint32_t k = 1; k < c->nranks; k++) {
        struct comm_trade t = { .to = (c->rank + k) % c->nranks, .from = (c->rank + c->nranks - k) % c->nranks };
        unsigned char mine[MESSAGE_NBYTES], wanted[MESSAGE_NBYTES], got[MESSAGE_NBYTES] = { 0 };
        const size_t nout = write_message(c->rank, t.to, mine), nin = write_message(t.from, c->rank, wanted);
        struct fsdpck_error err = { 0 };
        trade_send(&t, mine, nout / 3);
        trade_send(&t, mine + nout / 3, nout - nout / 3);
        trade_receive(&t, got, nin / 2);
        trade_receive(&t, got + nin / 2, nin - nin / 2);
        if (c->ops->trade(c, &t, &err) == 0 && memcmp(got, wanted, nin) == 0)
            __atomic_fetch_add((uint32_t *)ctx, 1, __ATOMIC_RELAXED);
    }
}

/* Rank 1 fails instead: the others do not wait for its message. */
static void trade_with_none(struct comm *c, void *ctx)
{
    struct fsdpck_error err = { 0 };
    if (c->rank == 1) {
        fsdpck_error_set(&err, FSDPCK_ERR_FORMAT, NULL, "no good");
        job_status_fail(c->job_status, &err);
        return;
    }
    const struct comm_trade t = { .to = 1, .from = 1 };
    if (c->ops->trade(c, &t, &err) == FSDPCK_ERR_PEER)
        __atomic_fetch_add((uint32_t *)ctx, 1, __ATOMIC_RELAXED);
}

static void test_trade(void **state)
{
    (void)state;
    const struct comm_sizes sizes = {
        .value_nbytes = 64, .grad_nelem = 64, .trade_nbytes = MESSAGE_NBYTES, .reduce = FSDPCK_FLOAT32
    };
    for (uint32_t n = 1; n <= MAX_RANKS; n++) {
        uint32_t arrived = 0;
        run_ranks(n, sizes, 600, trade_with_all, &arrived);
        assert_int_equal(arrived, n * (n - 1));
    }
    uint32_t ended = 0;
    run_ranks(3, sizes, 600, trade_with_none, &ended);
    assert_int_equal(ended, 2);
}

static void test_late_and_failing(void **state)
{
    (void)state;
    uint32_t named = 0, ended = 0;
    assert_int_equal(pthread_barrier_init(&both, NULL, 2), 0);
    run_ranks(2, (struct comm_sizes){ .value_nbytes = 64, .grad_nelem = 64, .reduce = FSDPCK_FLOAT32 }, 0.2, come_late,
              &named);
    pthread_barrier_destroy(&both);
    assert_int_equal(named, 1);
    run_ranks(2,
              (struct comm_sizes){ .value_nbytes = 64,
                                   .grad_nelem = 64,
                                   .copies = true,
                                   .ranks_of_copy = 2,
                                   .most_within = 2,
                                   .kept_within = 2,
                                   .reduce = FSDPCK_FLOAT32 },
              0.2, gather_too_early, &named);
    assert_int_equal(named, 2);
    run_ranks(3, (struct comm_sizes){ .value_nbytes = 64, .grad_nelem = 64, .reduce = FSDPCK_FLOAT32 }, 600, fail_alone,
              &ended);
    assert_int_equal(ended, 2);
}

static void test_lost(void **state)
{
    (void)state;
    struct job_status *b;
    struct fsdpck_error err = { 0 };
    assert_int_equal(job_status_new(3, 2, 8, 1, &b, &err), 0);
    job_status_at(b, 4, 12, "optimizer");
    assert_false(job_status_error(b, &err));
    job_status_lost(b, 4, false, "was killed by signal 9");
    assert_true(job_status_failed(b) && job_status_error(b, &err));
    assert_string_equal(err.message,
                        "rank 4 of 8 was killed by signal 9 in step 12, optimizer; the other ranks were ended");
    job_status_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exchange), cmocka_unit_test(test_lanes),  cmocka_unit_test(test_reducer),
        cmocka_unit_test(test_ring),     cmocka_unit_test(test_meshes), cmocka_unit_test(test_late_and_failing),
        cmocka_unit_test(test_lost),     cmocka_unit_test(test_trade),
    };
    return cmocka_run_group_tests_name("comm", tests, NULL, NULL);
}
