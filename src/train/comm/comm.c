/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that all implementations of struct comm share. */
#include "comm/comm.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "comm/stream_timer.h"

uint64_t comm_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t comm_wait_ns(const struct comm *c)
{
    return c->wait_ns + (c->timer ? stream_timer_ns(c->timer, 0) : 0);
}

uint64_t comm_from_hosts_nbytes(const struct comm *c)
{
    uint64_t sum = 0;
    for (int lane = 0; lane < COMM_NLANES; lane++)
        sum += c->lanes[lane] ? __atomic_load_n(&c->lanes[lane]->from_hosts_nbytes, __ATOMIC_RELAXED) : 0;
    return sum;
}

int comm_other_failed(const struct comm *c, const char *operation, struct fsdpck_error *err)
{
    return fsdpck_error_set(err, FSDPCK_ERR_PEER, NULL, "rank %u ended in %s because another rank failed", c->rank,
                            operation);
}

/* FOLLOWED: the rank failed only because another rank did. */
enum { FINE, FOLLOWED, FAILED };

static uint64_t failure_of(const struct fsdpck_error *err)
{
    if (err->code == 0)
        return FINE;
    return err->code == FSDPCK_ERR_PEER ? FOLLOWED : FAILED;
}

int comm_first_error(struct comm *c, struct fsdpck_error *first, struct fsdpck_error *err)
{
    _Static_assert(sizeof *first <= COMM_MAX_SUM * sizeof(uint64_t), "an error is one sum over ranks");
    uint64_t failures[COMM_MAX_SUM] = { 0 }, words[COMM_MAX_SUM] = { 0 };
    uint32_t worst = 0;
    failures[c->rank] = failure_of(first);
    int rc = c->ops->sum_u64(c, failures, c->nranks, err);
    for (uint32_t r = 1; r < c->nranks && !rc; r++)
        worst = failures[r] > failures[worst] ? r : worst;
    if (rc || failures[worst] == FINE)
        return rc;
    if (worst == c->rank)
        memcpy(words, first, sizeof *first);
    rc = c->ops->sum_u64(c, words, COMM_MAX_SUM, err); /* only one rank contributes non-zero words */
    if (!rc)
        memcpy(first, words, sizeof *first);
    return rc;
}

int comm_timed_out(const struct comm *c, uint32_t late, const char *operation, struct fsdpck_error *err)
{
    char theirs[160], ours[160];
    job_status_describe(c->job_status, late, theirs, sizeof theirs);
    job_status_describe(c->job_status, c->rank, ours, sizeof ours);
    struct fsdpck_error why = { 0 };
    fsdpck_error_set(&why, FSDPCK_ERR_IO, NULL,
                     "rank %u (%s) waited %.0f s in %s for rank %u of %u, which is %s; all ranks were ended", c->rank,
                     ours, job_status_patience(c->job_status), operation, late, c->nranks, theirs);
    why.sys_errno = ETIMEDOUT;
    job_status_set_late(c->job_status, late);
    job_status_fail(c->job_status,
                    &why); /* at once, so that the rank's other threads need not wait until they time out */
    if (err && !err->code)
        *err = why;
    return why.code;
}

size_t comm_element_nbytes(const struct comm *c)
{
    return fsdpck_dtype_info(c->reduce)->nbytes;
}

size_t comm_slice_at(const struct comm *c, const struct comm_slice *s, int64_t begin)
{
    return (size_t)s->at * sizeof(float) + (size_t)begin * comm_element_nbytes(c);
}

/* Front to back: a rounded block overwrites floats that have been read. */
void comm_round(const struct comm *c, const struct comm_slice *slices, size_t nslices)
{
    enum { BLOCK = 4096 };
    uint16_t block[BLOCK];
    for (size_t i = 0; i < nslices && c->reduce != FSDPCK_FLOAT32; i++) {
        const float *from = c->contribution + slices[i].at;
        for (int64_t at = 0; at < slices[i].nelem; at += BLOCK) {
            uint64_t n = (uint64_t)(slices[i].nelem - at < BLOCK ? slices[i].nelem - at : BLOCK);
            fsdpck_dtype_cast(FSDPCK_FLOAT32, from + at, c->reduce, block, n);
            memcpy((char *)c->contribution + comm_slice_at(c, &slices[i], at), block, n * sizeof *block);
        }
    }
}

static void fold_floats(float *restrict into, const float *restrict from, int64_t nelem, bool assign)
{
    if (assign)
        memcpy(into, from, (size_t)nelem * sizeof *into);
    for (int64_t i = 0; i < nelem && !assign; i++)
        into[i] += from[i];
}

void comm_fold(const struct comm *c, float *into, const void *from, int64_t nelem, bool assign)
{
    enum { BLOCK = 4096 };
    float block[BLOCK];
    if (c->reduce == FSDPCK_FLOAT32) {
        fold_floats(into, from, nelem, assign);
        return;
    }
    for (int64_t at = 0; at < nelem; at += BLOCK) {
        int64_t n = nelem - at < BLOCK ? nelem - at : BLOCK;
        fsdpck_dtype_cast(c->reduce, (const char *)from + (size_t)at * comm_element_nbytes(c), FSDPCK_FLOAT32, block,
                          (uint64_t)n);
        fold_floats(into + at, block, n, assign);
    }
}

uint32_t comm_within(const struct comm *c, enum comm_placement placement, const struct comm_piece *pieces)
{
    return placement == COMM_KEPT ? c->kept_within : pieces[0].within;
}

size_t comm_piece_chunk(const struct comm_piece *p, uint32_t c, size_t *begin)
{
    *begin = p->chunk * c < p->nbytes ? p->chunk * c : p->nbytes;
    return p->nbytes - *begin < p->chunk ? p->nbytes - *begin : p->chunk;
}

void comm_keep(struct comm *c, const struct comm_piece *pieces, size_t npieces, const char *gathered)
{
    const uint32_t within = c->kept_within;
    for (size_t i = 0; i < npieces; i++) {
        for (uint32_t chunk = c->rank % within; chunk < c->nranks; chunk += within) {
            size_t begin, nbytes = comm_piece_chunk(&pieces[i], chunk, &begin);
            memcpy(c->kept + pieces[i].at + begin, gathered + pieces[i].into + begin, nbytes);
        }
    }
}

int64_t comm_slice_part(const struct comm_slice *s, uint32_t r, int64_t *begin)
{
    *begin = s->chunk * r;
    return s->nelem - *begin < s->chunk ? s->nelem - *begin : s->chunk;
}
