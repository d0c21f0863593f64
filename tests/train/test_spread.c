/* SPDX-License-Identifier: Apache-2.0 */
/* Copies in memory over several hosts: threads are the ranks, and a keeper for each host is another thread. What is
 * left of the hosts after a loss restores any number of ranks, or is known not to be whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <train/keep.h>
#include <unistd.h>

#include "comm/keeper.h"
#include "snapshot_run.h"
#include "state/spread.h"

enum { MAX_HOSTS = 3, ROOM = 1 << 16, STEP = 20 };

/* --- keepers --- */

struct host {
    char name[64];
    int life[2];
    pthread_t thread;
};

static sem_t ready;

static void is_ready(void)
{
    sem_post(&ready);
}

static void *keep(void *arg)
{
    struct host *host = arg;
    struct fsdpck_error err = { 0 };
    assert_int_equal(train_keep(host->name, host->life[0], -1, is_ready, &err), 0);
    return NULL;
}

static void start_host_as(struct host *host, const char *name)
{
    snprintf(host->name, sizeof host->name, "%s", name);
    assert_int_equal(pipe(host->life), 0);
    assert_int_equal(pthread_create(&host->thread, NULL, keep, host), 0);
    sem_wait(&ready);
}

static void start_host(struct host *host, int number)
{
    static int unique;
    char name[sizeof host->name];
    snprintf(name, sizeof name, "test-%d-%d-%d", (int)getpid(), unique++, number);
    start_host_as(host, name);
}

static void end_host(struct host *host)
{
    close(host->life[1]);
    pthread_join(host->thread, NULL);
    close(host->life[0]);
}

/* --- ranks that communicate --- */

struct mail {
    char data[ROOM];
    size_t nbytes, nread;
};

static struct {
    pthread_barrier_t barrier;
    uint64_t sums[COMM_MAX_SUM];
    pthread_mutex_t lock;
    struct mail mails[MAX_RANKS][MAX_RANKS]; /* from, to */
} net = { .lock = PTHREAD_MUTEX_INITIALIZER };

static int sum(struct comm *c, uint64_t *values, size_t n, struct fsdpck_error *err)
{
    (void)c;
    (void)err;
    if (pthread_barrier_wait(&net.barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
        memset(net.sums, 0, sizeof net.sums);
    pthread_barrier_wait(&net.barrier);
    pthread_mutex_lock(&net.lock);
    for (size_t i = 0; i < n; i++)
        net.sums[i] += values[i];
    pthread_mutex_unlock(&net.lock);
    pthread_barrier_wait(&net.barrier);
    memcpy(values, net.sums, n * sizeof *values);
    pthread_barrier_wait(&net.barrier);
    return 0;
}

static void send_mails(const struct comm *c, const void *memory, const struct comm_part *parts, size_t nparts)
{
    pthread_mutex_lock(&net.lock);
    for (size_t i = 0; i < nparts; i++) {
        struct mail *mail = parts[i].sends ? &net.mails[c->rank][parts[i].peer] : NULL;
        if (!mail)
            continue;
        assert_true(mail->nbytes + parts[i].nbytes <= ROOM && parts[i].peer != c->rank);
        memcpy(mail->data + mail->nbytes, (const char *)memory + parts[i].at, parts[i].nbytes);
        mail->nbytes += parts[i].nbytes;
    }
    pthread_mutex_unlock(&net.lock);
}

static void take_mails(const struct comm *c, void *memory, const struct comm_part *parts, size_t nparts)
{
    for (size_t i = 0; i < nparts; i++) {
        struct mail *mail = parts[i].sends ? NULL : &net.mails[parts[i].peer][c->rank];
        if (!mail)
            continue;
        assert_true(mail->nread + parts[i].nbytes <= mail->nbytes);
        memcpy((char *)memory + parts[i].at, mail->data + mail->nread, parts[i].nbytes);
        mail->nread += parts[i].nbytes;
    }
}

static bool all_read(void)
{
    bool all = true;
    for (int i = 0; i < MAX_RANKS * MAX_RANKS; i++) {
        struct mail *mail = &net.mails[i / MAX_RANKS][i % MAX_RANKS];
        all &= mail->nread == mail->nbytes;
        mail->nread = mail->nbytes = 0;
    }
    return all;
}

/* The other ranks may not call it: they have no parts. So there is no barrier of all; a receiver waits for its mail. */
static int transfer(struct comm *c, void *memory, const struct comm_part *parts, size_t nparts, const char *operation,
                    struct fsdpck_error *err)
{
    (void)operation;
    (void)err;
    send_mails(c, memory, parts, nparts);
    size_t wanted[MAX_RANKS] = { 0 };
    for (size_t i = 0; i < nparts; i++)
        wanted[parts[i].peer] += parts[i].sends ? 0 : parts[i].nbytes;
    for (bool whole = false; !whole;) {
        pthread_mutex_lock(&net.lock);
        whole = true;
        for (uint32_t q = 0; q < c->nranks; q++)
            whole &= net.mails[q][c->rank].nbytes - net.mails[q][c->rank].nread >= wanted[q];
        if (whole)
            take_mails(c, memory, parts, nparts);
        pthread_mutex_unlock(&net.lock);
    }
    return 0;
}

static const struct comm_ops ops = { .name = "threads", .sum_u64 = sum, .transfer = transfer };

/* --- the runs --- */

/* A rank of a run before or after a loss. */
struct thread {
    pthread_t thread;
    struct snapshot_run *run;
    const struct host *host;
    uint32_t rank, ncompleted; /* of the last copy, the first ncompleted ranks complete */
    uint64_t above, chosen;
};

static struct snapshots *join(const struct thread *t)
{
    struct snapshots *s;
    struct fsdpck_error err = { 0 };
    struct rank *r = &t->run->ranks[t->rank];
    r->comm->ops = &ops;
    assert_int_equal(snapshots_new(&t->run->job.layout, t->host->name, &s, &err), 0);
    assert_int_equal(spread_join(s, r->comm, 7, &err), 0);
    return s;
}

static void *before(void *arg)
{
    struct thread *t = arg;
    struct rank *r = &t->run->ranks[t->rank];
    struct fsdpck_error err = { 0 };
    struct snapshots *s = join(t);
    for (uint32_t index = 0; index < 2; index++) {
        const uint64_t step = index ? STEP : STEP / 2;
        if (pthread_barrier_wait(&net.barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
            snapshot_run_each(t->run, step, true);
        pthread_barrier_wait(&net.barrier);
        r->step = step;
        r->updates = r->last_update = step - 1;
        snapshots_touch(s, r);
        assert_int_equal(snapshots_take(s, r, index, &err), 0);
        assert_int_equal(spread_rows(s, r->comm, index, &err), 0);
        if (!index || t->rank < t->ncompleted) {
            snapshots_complete(s, r, index);
            /* where some do not, the heads of nobody arrive */
            if (!index || t->ncompleted == r->comm->nranks)
                assert_int_equal(spread_head(s, r->comm, index, &err), 0);
        }
    }
    snapshots_free(s);
    return NULL;
}

static void *after(void *arg)
{
    struct thread *t = arg;
    struct rank *r = &t->run->ranks[t->rank];
    struct fsdpck_error err = { 0 };
    struct snapshots *s = join(t);
    assert_int_equal(spread_choose(s, r->comm, t->above, &t->chosen, &err), 0);
    if (t->chosen)
        assert_int_equal(snapshots_restore(s, r, &err), 0);
    snapshots_free(s);
    return NULL;
}

/* hosts: (nranks) the host of each rank. Returns the step that is chosen. */
static uint64_t go(struct host *hosts, const char *of, uint32_t ncompleted, uint64_t above, void *(*what)(void *))
{
    const uint32_t nranks = (uint32_t)strlen(of);
    struct snapshot_run *run = snapshot_run_start(nranks);
    struct thread threads[MAX_RANKS];
    pthread_barrier_init(&net.barrier, NULL, nranks);
    for (uint32_t r = 0; r < nranks; r++) {
        threads[r] = (struct thread){
            .run = run, .host = &hosts[of[r] - 'a'], .rank = r, .ncompleted = ncompleted, .above = above
        };
        assert_int_equal(pthread_create(&threads[r].thread, NULL, what, &threads[r]), 0);
    }
    for (uint32_t r = 0; r < nranks; r++)
        pthread_join(threads[r].thread, NULL);
    pthread_barrier_destroy(&net.barrier);
    assert_true(all_read());
    const uint64_t chosen = threads[0].chosen;
    for (uint32_t r = 0; r < nranks; r++) {
        assert_int_equal(threads[r].chosen, chosen);
        if (chosen)
            assert_int_equal(run->ranks[r].updates, chosen - 1);
    }
    if (chosen)
        assert_int_equal(snapshot_run_each(run, chosen, false), 0);
    snapshot_run_end(run);
    return chosen;
}

/* Each row: the hosts of the ranks before and after a loss, how many ranks complete the last copy, the step of the
 * checkpoint, and the step that must be chosen. */
static const struct row {
    const char *before, *after;
    uint32_t ncompleted;
    uint64_t above, chosen;
} rows[] = {
    { "aabb", "aabb", 4, 0, STEP },   { "aabb", "aa", 4, 0, STEP },       { "aabb", "b", 4, 0, STEP },
    { "aab", "bbb", 3, 0, STEP },     { "abbb", "aaaa", 4, 0, STEP },     { "aabbc", "aabb", 5, 0, STEP },
    { "aabbc", "abc", 5, 0, STEP },   { "aabbc", "ccaab", 5, 0, STEP },   { "aabbc", "bbc", 5, 0, STEP },
    { "abc", "ca", 3, 0, STEP },      { "abc", "ba", 3, 0, STEP },        { "aabbc", "c", 5, 0, 0 },
    { "abc", "a", 3, 0, 0 },          { "aabb", "aabb", 3, 0, STEP / 2 }, { "aabb", "a", 0, 0, STEP / 2 },
    { "aabb", "bb", 3, STEP / 2, 0 }, { "aabb", "aabb", 4, STEP, 0 },     { "aabb", "ab", 4, STEP - 1, STEP },
    { "aaa", "aa", 3, 0, STEP },      { "abab", "bab", 4, 0, STEP },      { "abab", "a", 4, 0, STEP },
};

static void losses(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct host hosts[MAX_HOSTS];
        for (int h = 0; h < MAX_HOSTS; h++)
            start_host(&hosts[h], h);
        go(hosts, rows[i].before, rows[i].ncompleted, 0, before);
        const uint64_t chosen = go(hosts, rows[i].after, 0, rows[i].above, after);
        if (chosen != rows[i].chosen)
            fail_msg("%s, then %s: step %d", rows[i].before, rows[i].after, (int)chosen);
        for (int h = 0; h < MAX_HOSTS; h++)
            end_host(&hosts[h]);
    }
}

/* Another size is another run's. */
static void other_size(void **unused)
{
    (void)unused;
    struct host host;
    struct kept_memory kept = { 0 }, again = { 0 };
    struct fsdpck_error err = { 0 };
    start_host(&host, 0);
    assert_int_equal(keeper_map(host.name, 4096, &kept, &err), 0);
    ((char *)kept.memory)[4095] = 1;
    assert_int_equal(keeper_map(host.name, 4096, &again, &err), 0);
    assert_int_equal(((char *)again.memory)[4095], 1);
    assert_int_equal(again.id, kept.id);
    keeper_unmap(&again);
    assert_int_equal(keeper_map(host.name, 8192, &again, &err), FSDPCK_ERR_IO);
    assert_non_null(strstr(err.message, "4096 bytes are kept on this host, wanted 8192"));
    keeper_unmap(&kept);
    end_host(&host);
    err = (struct fsdpck_error){ 0 };
    assert_int_not_equal(keeper_map(host.name, 4096, &again, &err), 0);
}

/* The keeper says why there is no memory, and gives some to the next that asks for less. */
static void too_large(void **unused)
{
    (void)unused;
    struct host host;
    struct kept_memory kept = { 0 };
    struct fsdpck_error err = { 0 };
    start_host(&host, 0);
    assert_int_equal(keeper_map(host.name, SIZE_MAX, &kept, &err), FSDPCK_ERR_IO);
    assert_int_equal(err.sys_errno, EINVAL);
    assert_int_equal(keeper_map(host.name, 4096, &kept, &err), 0);
    keeper_unmap(&kept);
    end_host(&host);
}

/* A host that was lost for a while may still have its keeper: a new one of the same name goes on with the memory. */
static void taken_over(void **state)
{
    struct fsdpck_error err = { 0 };
    struct kept_memory before, after;
    struct host old, new;
    (void)state;
    start_host(&old, 0);
    assert_int_equal(keeper_map(old.name, 8, &before, &err), 0);
    memcpy(before.memory, "a copy.", 8);
    start_host_as(&new, old.name);
    pthread_join(old.thread, NULL); /* it has ended by itself */
    assert_int_equal(keeper_map(new.name, 8, &after, &err), 0);
    assert_string_equal(after.memory, "a copy.");
    assert_true(after.id == before.id);
    keeper_unmap(&before);
    keeper_unmap(&after);
    end_host(&new);
    close(old.life[0]);
    close(old.life[1]);
}

/* The same without memory: no rank has asked for it yet. */
static void taken_over_early(void **state)
{
    struct fsdpck_error err = { 0 };
    struct kept_memory kept;
    struct host old, new;
    (void)state;
    start_host(&old, 0);
    start_host_as(&new, old.name);
    pthread_join(old.thread, NULL);
    assert_int_equal(keeper_map(new.name, 8, &kept, &err), 0);
    keeper_unmap(&kept);
    end_host(&new);
    close(old.life[0]);
    close(old.life[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(losses), cmocka_unit_test(other_size),
                                        cmocka_unit_test(too_large), cmocka_unit_test(taken_over),
                                        cmocka_unit_test(taken_over_early) };
    sem_init(&ready, 0, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
