/* What the rows of the communicator table have in common. */
#include "comm/comm.h"

#include <string.h>
#include <time.h>

uint64_t comm_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int comm_other_failed(const struct comm *c, const char *operation, struct fsdpck_error *err)
{
    return fsdpck_error_set(err, FSDPCK_ERR_STOPPED, NULL, "rank %u ended in %s because another rank failed", c->rank, operation);
}

int comm_out_of_patience(const struct comm *c, uint32_t late, const char *operation, struct fsdpck_error *err)
{
    char theirs[160], ours[160];
    board_describe(c->board, late, theirs, sizeof theirs);
    board_describe(c->board, c->rank, ours, sizeof ours);
    return fsdpck_error_set(err, FSDPCK_ERR_IO, NULL, "rank %u (%s) waited %.0f s in %s for rank %u of %u, which is %s; all ranks were ended", c->rank, ours,
                            board_patience(c->board), operation, late, c->nranks, theirs);
}

void comm_fold(float *restrict into, const float *restrict from, int64_t nelem, bool assign)
{
    if (assign)
        memcpy(into, from, (size_t)nelem * sizeof *into);
    for (int64_t i = 0; i < nelem && !assign; i++)
        into[i] += from[i];
}

int64_t comm_slice_part(const struct comm_slice *s, uint32_t r, int64_t *begin)
{
    *begin = s->chunk * r;
    return s->nelem - *begin < s->chunk ? s->nelem - *begin : s->chunk;
}
