/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory with atomics in it: a process that dies in the middle of anything leaves nothing locked. */
#include "comm/board.h"

#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>

enum { NO_ERROR, TAKEN, COMPLETE };

struct place {
    _Alignas(64) _Atomic uint64_t step;
    _Atomic(const char *) operation; /* at the same address in every process, which all come from one */
    _Atomic uint64_t beats;
};

struct board {
    uint32_t first, nlocal, nranks;
    double patience_seconds;
    size_t nbytes; /* of this mapping */
    _Atomic uint32_t failed, lost, told, stop, error_state;
    _Atomic uint64_t saves, saves_of_ranks;
    struct fsdpck_error error;
    uint64_t notes[BOARD_NOTES];
    struct place places[];
};

int board_new(uint32_t first, uint32_t nlocal, uint32_t nranks, double patience_seconds, struct board **out, struct fsdpck_error *err)
{
    size_t nbytes = sizeof(struct board) + nlocal * sizeof(struct place);
    struct board *b = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    *out = NULL;
    if (b == MAP_FAILED)
        return fsdpck_error_nomem(err, nbytes);
    b->first = first;
    b->nlocal = nlocal;
    b->nranks = nranks;
    b->patience_seconds = patience_seconds;
    b->nbytes = nbytes;
    *out = b;
    return 0;
}

void board_free(struct board *b)
{
    if (b)
        munmap(b, b->nbytes);
}

double board_patience(const struct board *b)
{
    return b->patience_seconds;
}

static struct place *place_of(struct board *b, uint32_t rank)
{
    return &b->places[rank - b->first];
}

void board_beat(struct board *b, uint32_t rank)
{
    atomic_fetch_add_explicit(&place_of(b, rank)->beats, 1, memory_order_relaxed);
}

uint64_t board_beats(const struct board *b, uint32_t rank)
{
    return atomic_load(&b->places[rank - b->first].beats);
}

void board_operation(struct board *b, uint32_t rank, const char *operation)
{
    atomic_store(&place_of(b, rank)->operation, operation);
    board_beat(b, rank);
}

void board_at(struct board *b, uint32_t rank, uint64_t step, const char *operation)
{
    atomic_store(&place_of(b, rank)->step, step);
    board_operation(b, rank, operation);
}

void board_describe(const struct board *b, uint32_t rank, char *text, size_t nbytes)
{
    bool ours = rank >= b->first && rank - b->first < b->nlocal;
    const struct place *p = ours ? &b->places[rank - b->first] : NULL;
    const char *operation = ours ? atomic_load(&p->operation) : NULL;
    if (ours)
        snprintf(text, nbytes, "in step %llu, %s", (unsigned long long)atomic_load(&p->step), operation ? operation : "start");
    else
        snprintf(text, nbytes, "on another host or of another launch");
}

/* One that began to write and died is no error that anybody can read: `over` may write in its place. */
static bool leave_error(struct board *b, const struct fsdpck_error *err, bool over)
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

void board_fail(struct board *b, const struct fsdpck_error *err)
{
    if (err->code == FSDPCK_ERR_PEER)
        atomic_store(&b->failed, 1); /* the place is the other rank's, whose error may still be on its way */
    else
        leave_error(b, err, false);
}

bool board_failed(const struct board *b)
{
    return atomic_load(&b->failed) != 0;
}

void board_lost(struct board *b, uint32_t rank, const char *how)
{
    struct fsdpck_error err = { 0 };
    char where[160];
    board_describe(b, rank, where, sizeof where);
    fsdpck_error_set(&err, FSDPCK_ERR_IO, NULL, "rank %u of %u %s %s; the other ranks were ended", rank, b->nranks, how, where);
    if (leave_error(b, &err, true))
        atomic_store(&b->lost, 1);
}

bool board_tell(struct board *b, const struct fsdpck_error *err)
{
    bool first = leave_error(b, err, false);
    if (first)
        atomic_store(&b->told, 1);
    return first;
}

void board_hush(struct board *b)
{
    atomic_store(&b->told, 1);
}

bool board_was_told(const struct board *b)
{
    return atomic_load(&b->told) != 0;
}

bool board_has_lost(const struct board *b)
{
    return atomic_load(&b->lost) != 0;
}

bool board_error(const struct board *b, struct fsdpck_error *err)
{
    if (atomic_load(&b->error_state) != COMPLETE)
        return false;
    *err = b->error;
    return true;
}

void board_stop(struct board *b)
{
    atomic_store(&b->stop, 1);
}

bool board_stopping(const struct board *b)
{
    return atomic_load(&b->stop) != 0;
}

void board_ask_saves(struct board *b, uint64_t count)
{
    atomic_store(&b->saves, count);
}

uint64_t board_saves(const struct board *b)
{
    return atomic_load(&b->saves) + atomic_load(&b->saves_of_ranks);
}

void board_ask_save(struct board *b)
{
    atomic_fetch_add(&b->saves_of_ranks, 1);
}

uint64_t *board_notes(struct board *b)
{
    return b->notes;
}
