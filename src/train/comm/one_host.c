/* SPDX-License-Identifier: Apache-2.0 */
/* Rank 0 creates an unnamed file, and the others open it through /proc. A random number in the file proves that it is
 * the right one: a process of another container may have the same process id. */
#include "comm/one_host.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

enum { PID, FD, TOKEN, NWORDS };

static unsigned char *map(int fd, size_t nbytes)
{
    void *p = fd < 0 ? MAP_FAILED : mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    return p == MAP_FAILED ? NULL : p;
}

static int make_file(size_t nbytes, uint64_t words[NWORDS], struct fsdpck_error *err)
{
    int fd = memfd_create("fsdptrain", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)nbytes) ||
        getrandom(&words[TOKEN], sizeof words[TOKEN], 0) != (ssize_t)sizeof words[TOKEN]) {
        fsdpck_error_sys(err, errno, NULL, "memory that ranks share");
        if (fd >= 0)
            close(fd);
        return -1;
    }
    words[PID] = (uint64_t)getpid();
    words[FD] = (uint64_t)fd;
    return fd;
}

static int open_file(const uint64_t words[NWORDS])
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%llu/fd/%llu", (unsigned long long)words[PID], (unsigned long long)words[FD]);
    return open(path, O_RDWR | O_CLOEXEC);
}

/* *all: every rank has mapped rank 0's file. */
static int everybody(struct comm *c, bool mine, bool *all, struct fsdpck_error *err)
{
    uint64_t failed = !mine;
    int rc = c->ops->sum_u64(c, &failed, 1, err);
    *all = failed == 0;
    return rc;
}

int one_host_map(struct comm *c, size_t nbytes, unsigned char **out, struct fsdpck_error *err)
{
    uint64_t words[NWORDS] = { 0 };
    struct fsdpck_error why = { 0 };
    bool all = false;
    nbytes = nbytes < sizeof words[TOKEN] ? sizeof words[TOKEN] : nbytes;
    int fd = c->rank == 0 ? make_file(nbytes, words, &why) : -1;
    unsigned char *memory = c->rank == 0 ? map(fd, nbytes) : NULL;
    if (memory)
        memcpy(memory, &words[TOKEN], sizeof words[TOKEN]);
    int rc = c->ops->sum_u64(c, words, NWORDS, err);
    if (!rc && c->rank != 0) {
        fd = open_file(words);
        memory = map(fd, nbytes);
    }
    if (!rc)
        rc = everybody(c, memory && memcmp(memory, &words[TOKEN], sizeof words[TOKEN]) == 0, &all, err);
    if (memory && c->rank == 0)
        memset(memory, 0, sizeof words[TOKEN]);
    if (fd >= 0)
        close(fd);
    if (!rc && !all)
        rc = fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, NULL,
                              "the ranks of this host cannot share memory%s%s: --gather copy does without",
                              why.code ? ": " : "", why.message);
    if (rc && memory)
        munmap(memory, nbytes);
    else
        *out = memory;
    return rc;
}
