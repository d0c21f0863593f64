/* SPDX-License-Identifier: Apache-2.0 */
#include "price/disk.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "comm/scratch_file.h"

enum { PIECE = 4 << 20, NPIECES = 8 };
static const double enough_seconds = 0.04; /* each way */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool move_all(const struct scratch_file *f, bool write, char *data)
{
    const char *why = NULL;
    for (uint64_t at = 0; at < (uint64_t)NPIECES * PIECE && !why; at += PIECE)
        why = write ? scratch_file_write(f, data, PIECE, at) : scratch_file_read(f, data, PIECE, at);
    return !why && (!write || fdatasync(f->fd) == 0);
}

/* Seconds of a byte, over rounds of all pieces; 0: it failed. */
static double seconds_of(const struct scratch_file *f, bool write, char *data)
{
    const double begun = now();
    double passed = 0, nbytes = 0;
    while (passed < enough_seconds) {
        if (!move_all(f, write, data))
            return 0;
        nbytes += (double)NPIECES * PIECE;
        passed = now() - begun;
    }
    return passed / nbytes;
}

/* The first round does not count: the file system finds its room. */
static double rate_of(const struct scratch_file *f, char *data)
{
    const double writes = move_all(f, true, data) ? seconds_of(f, true, data) : 0,
                 reads = writes > 0 ? seconds_of(f, false, data) : 0;
    return reads > 0 ? 2 / (writes + reads) : 0;
}

double disk_rate(const char *folder)
{
    struct fsdpck_error unused = { 0 };
    struct scratch_file f;
    char *data = aligned_alloc(SCRATCH_ALIGNED, PIECE);
    double rate = 0;
    if (data &&
        scratch_file_open(NULL, folder, "the planner", "a measurement", (uint64_t)NPIECES * PIECE, &f, &unused) == 0) {
        memset(data, 1, PIECE);
        rate = rate_of(&f, data);
        scratch_file_close(&f);
    }
    free(data);
    return rate;
}
