/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory with atomics and no locks: a process may die at any point without blocking the others. */
#include "comm/job_status.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>

enum { NO_ERROR, TAKEN, COMPLETE };

struct rank_slot {
    _Alignas(64) _Atomic uint64_t step;
    _Atomic(const char *) operation; /* static text, at the same address in every process, because they are forks */
    _Atomic uint64_t beats;
};

struct host {
    char name[65]; /* empty: not known */
};

struct job_status {
    uint32_t first, nlocal, nranks;
    double patience_seconds;
    size_t nbytes;                                                 /* of this mapping */
    _Atomic uint32_t failed, lost, muted, stop, error_state, late; /* late: a rank + 1; 0: none */
    _Atomic uint64_t saves, saves_of_ranks;
    struct fsdpck_error error;
    uint64_t results[JOB_STATUS_NRESULTS];
    struct host *hosts; /* (nranks) in this mapping */
    struct rank_slot slots[];
};

int job_status_new(uint32_t first, uint32_t nlocal, uint32_t nranks, double patience_seconds, struct job_status **out,
                   struct fsdpck_error *err)
{
    size_t nbytes = sizeof(struct job_status) + nlocal * sizeof(struct rank_slot) + nranks * sizeof(struct host);
    struct job_status *b = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    *out = NULL;
    if (b == MAP_FAILED)
        return fsdpck_error_nomem(err, nbytes);
    b->first = first;
    b->nlocal = nlocal;
    b->nranks = nranks;
    b->patience_seconds = patience_seconds;
    b->nbytes = nbytes;
    b->hosts = (struct host *)&b->slots[nlocal];
    *out = b;
    return 0;
}

void job_status_free(struct job_status *b)
{
    if (b)
        munmap(b, b->nbytes);
}

double job_status_patience(const struct job_status *b)
{
    return b->patience_seconds;
}

static struct rank_slot *slot_of(struct job_status *b, uint32_t rank)
{
    return &b->slots[rank - b->first];
}

void job_status_heartbeat(struct job_status *b, uint32_t rank)
{
    atomic_fetch_add_explicit(&slot_of(b, rank)->beats, 1, memory_order_relaxed);
}

uint64_t job_status_heartbeats(const struct job_status *b, uint32_t rank)
{
    return atomic_load(&b->slots[rank - b->first].beats);
}

void job_status_operation(struct job_status *b, uint32_t rank, const char *operation)
{
    atomic_store(&slot_of(b, rank)->operation, operation);
    job_status_heartbeat(b, rank);
}

void job_status_at(struct job_status *b, uint32_t rank, uint64_t step, const char *operation)
{
    atomic_store(&slot_of(b, rank)->step, step);
    job_status_operation(b, rank, operation);
}

void job_status_set_host(struct job_status *b, uint32_t rank, const char *name)
{
    snprintf(b->hosts[rank].name, sizeof b->hosts[rank].name, "%s", name);
}

const char *job_status_host(const struct job_status *b, uint32_t rank)
{
    return b->hosts[rank].name;
}

void job_status_describe(const struct job_status *b, uint32_t rank, char *text, size_t nbytes)
{
    bool ours = rank >= b->first && rank - b->first < b->nlocal;
    const struct rank_slot *p = ours ? &b->slots[rank - b->first] : NULL;
    const char *operation = ours ? atomic_load(&p->operation) : NULL;
    if (ours)
        snprintf(text, nbytes, "in step %llu, %s", (unsigned long long)atomic_load(&p->step),
                 operation ? operation : "start");
    else if (b->hosts[rank].name[0])
        snprintf(text, nbytes, "on host '%s'", b->hosts[rank].name);
    else
        snprintf(text, nbytes, "on another host or of another launch");
}

/* Records an error once. over: also replaces an error that a dead process began to write, because nobody can read
 * it. */
static bool leave_error(struct job_status *b, const struct fsdpck_error *err, bool over)
{
    uint32_t state = NO_ERROR;
    bool first = atomic_compare_exchange_strong(&b->error_state, &state, TAKEN) || (over && state == TAKEN);
    if (first) {
        b->error = *err;
        atomic_store(&b->error_state, COMPLETE);
    }
    atomic_store(&b->failed, 1);
    return first;
}

void job_status_fail(struct job_status *b, const struct fsdpck_error *err)
{
    if (err->code == FSDPCK_ERR_PEER)
        atomic_store(&b->failed, 1); /* leave the place for the other rank's error, which may still be under way */
    else
        leave_error(b, err, false);
}

bool job_status_failed(const struct job_status *b)
{
    return atomic_load(&b->failed) != 0;
}

void job_status_lost(struct job_status *b, uint32_t rank, bool stalls, const char *how)
{
    struct fsdpck_error err = { 0 };
    char where[160];
    job_status_describe(b, rank, where, sizeof where);
    fsdpck_error_set(&err, FSDPCK_ERR_IO, NULL, "rank %u of %u %s %s; the other ranks were ended", rank, b->nranks, how,
                     where);
    err.sys_errno = stalls ? ETIMEDOUT : 0;
    if (leave_error(b, &err, true))
        atomic_store(&b->lost, 1);
}

void job_status_set_late(struct job_status *b, uint32_t rank)
{
    uint32_t none = 0;
    if (!atomic_load(&b->failed))
        atomic_compare_exchange_strong(&b->late, &none, rank + 1);
}

bool job_status_is_late(const struct job_status *b, uint32_t rank)
{
    return atomic_load(&b->late) == rank + 1;
}

bool job_status_adopt(struct job_status *b, const struct fsdpck_error *err)
{
    bool first = leave_error(b, err, false);
    if (first)
        atomic_store(&b->muted, 1);
    return first;
}

void job_status_mute(struct job_status *b)
{
    atomic_store(&b->muted, 1);
}

bool job_status_is_muted(const struct job_status *b)
{
    return atomic_load(&b->muted) != 0;
}

bool job_status_has_lost(const struct job_status *b)
{
    return atomic_load(&b->lost) != 0;
}

bool job_status_error(const struct job_status *b, struct fsdpck_error *err)
{
    if (atomic_load(&b->error_state) != COMPLETE)
        return false;
    *err = b->error;
    return true;
}

void job_status_stop(struct job_status *b)
{
    atomic_store(&b->stop, 1);
}

bool job_status_stopping(const struct job_status *b)
{
    return atomic_load(&b->stop) != 0;
}

void job_status_set_requested_saves(struct job_status *b, uint64_t count)
{
    atomic_store(&b->saves, count);
}

uint64_t job_status_requested_saves(const struct job_status *b)
{
    return atomic_load(&b->saves) + atomic_load(&b->saves_of_ranks);
}

void job_status_request_save(struct job_status *b)
{
    atomic_fetch_add(&b->saves_of_ranks, 1);
}

uint64_t *job_status_results(struct job_status *b)
{
    return b->results;
}
