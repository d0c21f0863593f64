/* SPDX-License-Identifier: Apache-2.0 */
/* The first rank of a host creates an unnamed file, and the others open it through /proc. A random number in the file
 * proves that it is the right one: a process of another container may have the same process id. */
#include "comm/one_host.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

enum { PID, FD, TOKEN, NBYTES, NWORDS };

/* Memory that no other rank sees, for a rank that is alone on its host. */
static unsigned char *map_alone(size_t nbytes)
{
    void *p = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

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
    words[NBYTES] = nbytes;
    return fd;
}

static void path_of(const uint64_t words[NWORDS], char path[ONE_HOST_PATH])
{
    snprintf(path, ONE_HOST_PATH, "/proc/%llu/fd/%llu", (unsigned long long)words[PID], (unsigned long long)words[FD]);
}

static int open_file(const uint64_t words[NWORDS])
{
    char path[ONE_HOST_PATH];
    path_of(words, path);
    return open(path, O_RDWR | O_CLOEXEC);
}

/* Every rank learns what the first ranks of all hosts say; words: in, this rank's; out, those of the first rank of its
 * host. */
static int tell_host(struct comm *c, const struct hosts *hosts, uint64_t words[NWORDS], struct fsdpck_error *err)
{
    const uint32_t first = hosts->first[hosts->mine];
    int rc = 0;
    for (int i = 0; i < NWORDS && !rc; i++) {
        uint64_t all[COMM_MAX_SUM] = { 0 };
        all[c->rank] = c->rank == first ? words[i] : 0; /* 0 if the rank is alone */
        rc = c->ops->sum_u64(c, all, c->nranks, err);
        words[i] = all[first];
    }
    return rc;
}

/* *all: every rank has mapped the file of its host. */
static int everybody(struct comm *c, bool mine, bool *all, struct fsdpck_error *err)
{
    uint64_t failed = !mine;
    int rc = c->ops->sum_u64(c, &failed, 1, err);
    *all = failed == 0;
    return rc;
}

/* Memory beyond the end of the file would kill the rank that reads it. */
static int agree_on_size(struct comm *c, bool agrees, struct fsdpck_error *err)
{
    bool all = false;
    int rc = everybody(c, agrees, &all, err);
    return rc || all ? rc
                     : fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, NULL,
                                        "the ranks of a host want different amounts of shared memory: do all ranks "
                                        "have the same config, model and data?");
}

/* With room for the random number behind what the ranks share. */
static size_t file_nbytes(size_t nbytes)
{
    return (nbytes + 7) / 8 * 8 + sizeof(uint64_t);
}

/* Every rank gets the reason of the first rank that has one, with the name of its host. */
static int refuse(struct comm *c, const struct fsdpck_error *why, struct fsdpck_error *err)
{
    struct fsdpck_error first = { 0 };
    if (why->code)
        fsdpck_error_set(&first, FSDPCK_ERR_UNSUPPORTED, NULL,
                         "the ranks of host '%s' cannot share memory: %.200s: --gather copy does without",
                         job_status_host(c->job_status, c->rank), why->message);
    int rc = comm_first_error(c, &first, err);
    if (rc)
        return rc;
    if (!first.code)
        fsdpck_error_set(&first, FSDPCK_ERR_UNSUPPORTED, NULL,
                         "the ranks of a host cannot share memory: --gather copy does without");
    *err = first;
    return first.code;
}

int one_host_map(struct comm *c, const struct hosts *hosts, size_t nbytes, unsigned char **out,
                 struct fsdpck_error *err)
{
    const bool alone = hosts_size(hosts, hosts->mine) == 1, first = !alone && c->rank == hosts->first[hosts->mine];
    const size_t total = file_nbytes(nbytes);
    uint64_t words[NWORDS] = { 0 };
    struct fsdpck_error why = { 0 };
    bool all = false;
    int fd = first ? make_file(total, words, &why) : -1;
    unsigned char *memory = alone ? map_alone(total) : first ? map(fd, total) : NULL;
    if (memory && first)
        memcpy(memory + total - sizeof words[TOKEN], &words[TOKEN], sizeof words[TOKEN]);
    int rc = tell_host(c, hosts, words, err);
    if (!rc)
        rc = agree_on_size(c, alone || !words[NBYTES] || words[NBYTES] == total, err);
    if (!rc && !first && !alone) {
        fd = open_file(words);
        memory = map(fd, total);
    }
    const unsigned char *found = memory ? memory + total - sizeof words[TOKEN] : NULL;
    if (!rc)
        rc = everybody(c, found && (alone || memcmp(found, &words[TOKEN], sizeof words[TOKEN]) == 0), &all, err);
    if (fd >= 0)
        close(fd);
    if (!rc && !all)
        rc = refuse(c, &why, err);
    if (rc && memory)
        munmap(memory, total);
    else
        *out = memory;
    return rc;
}

int one_host_path(struct comm *c, const struct hosts *hosts, int fd, char path[ONE_HOST_PATH], struct fsdpck_error *err)
{
    uint64_t words[NWORDS] = { 0 };
    if (fd >= 0) {
        words[PID] = (uint64_t)getpid();
        words[FD] = (uint64_t)fd;
    }
    int rc = tell_host(c, hosts, words, err);
    path[0] = '\0';
    if (!rc && words[PID])
        path_of(words, path);
    return rc;
}

void one_host_unmap(unsigned char *memory, size_t nbytes)
{
    if (memory)
        munmap(memory, file_nbytes(nbytes));
}
