/* SPDX-License-Identifier: Apache-2.0 */
#include "price/disk.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 4 << 20, NPIECES = 8, ALIGNED = 4096 };
static const double enough_seconds = 0.08; /* each way */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool move(int fd, bool write, char *data, int piece)
{
    const off_t at = (off_t)piece * PIECE;
    return (write ? pwrite(fd, data, PIECE, at) : pread(fd, data, PIECE, at)) == PIECE;
}

/* Seconds of a byte, over rounds of all pieces; 0: it failed. */
static double seconds_of(int fd, bool write, char *data)
{
    const double begun = now();
    double passed = 0, nbytes = 0;
    while (passed < enough_seconds) {
        for (int i = 0; i < NPIECES; i++)
            if (!move(fd, write, data, i))
                return 0;
        if (write && fdatasync(fd) != 0)
            return 0;
        nbytes += (double)NPIECES * PIECE;
        passed = now() - begun;
    }
    return passed / nbytes;
}

static double rate_of(int fd, char *data)
{
    for (int i = 0; i < NPIECES; i++) /* the file system finds room for it now */
        if (!move(fd, true, data, i))
            return 0;
    const double writes = seconds_of(fd, true, data), reads = writes > 0 ? seconds_of(fd, false, data) : 0;
    return reads > 0 ? 2 / (writes + reads) : 0;
}

double disk_rate(const char *folder)
{
    const int how = O_TMPFILE | O_RDWR | O_CLOEXEC;
    char *data = aligned_alloc(ALIGNED, PIECE);
    int fd = open(folder, how | O_DIRECT, 0600);
    if (fd < 0)
        fd = open(folder, how, 0600);
    double rate = 0;
    if (data) {
        memset(data, 1, PIECE);
        rate = fd >= 0 ? rate_of(fd, data) : 0;
    }
    if (fd >= 0)
        close(fd);
    free(data);
    return rate;
}
