/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the limit of the disk: reads or writes one file past the page cache, from memory in huge pages, with several
 * requests in flight. The data are ignored.
 *
 *     disk read FILE        read all of it, repeatedly into the same memory
 *     disk load FILE        read all of it into its own memory, which is touched for the first time
 *     disk write FILE N     write N bytes to a new FILE and fsync it
 *
 * dd does not show this limit: its requests use memory in pages of 4 KiB, which costs some virtual disks two thirds of
 * their rate. The bytes written vary and come from more memory than a processor's caches hold, like those of a real
 * file. */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    NTHREADS = 4,
    REQUEST_NBYTES = 4 << 20,
    NREQUESTS = 16 /* NREQUESTS: in each thread's memory */,
    HUGE_PAGE_NBYTES = 2 << 20
};

struct job {
    int fd;
    char *whole; /* memory for the whole file, if it is kept */
    int writes;
    long long nbytes, next; /* next: offset of the next request; the threads share it */
    int failed;
};

/* Fills memory with Marsaglia's xorshift, which no disk can compress. */
static void fill(uint64_t *words, size_t nbytes)
{
    uint64_t x = (uintptr_t)words | 1;
    for (size_t i = 0; i < nbytes / sizeof *words; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        words[i] = x;
    }
}

static char *in_huge_pages(size_t nbytes)
{
    nbytes = (nbytes + HUGE_PAGE_NBYTES - 1) / HUGE_PAGE_NBYTES * HUGE_PAGE_NBYTES;
    char *memory = aligned_alloc(HUGE_PAGE_NBYTES, nbytes);
    if (memory)
        madvise(memory, nbytes, MADV_HUGEPAGE);
    return memory;
}

static void *work(void *arg)
{
    struct job *j = arg;
    size_t nbytes = j->writes ? (size_t)NREQUESTS * REQUEST_NBYTES : REQUEST_NBYTES;
    char *memory = in_huge_pages(nbytes);
    if (!memory)
        exit(1);
    fill((uint64_t *)memory, nbytes);
    for (size_t i = 0;; i++) {
        long long at = __atomic_fetch_add(&j->next, REQUEST_NBYTES, __ATOMIC_RELAXED);
        if (at >= j->nbytes)
            break;
        char *request = j->whole ? j->whole + at : memory + (j->writes ? i % NREQUESTS * REQUEST_NBYTES : 0);
        if ((j->writes ? pwrite(j->fd, request, REQUEST_NBYTES, at) : pread(j->fd, request, REQUEST_NBYTES, at)) <= 0)
            __atomic_store_n(&j->failed, 1, __ATOMIC_RELAXED);
    }
    free(memory);
    return NULL;
}

int main(int argc, char **argv)
{
    struct job j = { .writes = argc == 4 && strcmp(argv[1], "write") == 0 };
    pthread_t threads[NTHREADS];
    int keeps = argc == 3 && strcmp(argv[1], "load") == 0;
    if (!j.writes && !keeps && (argc != 3 || strcmp(argv[1], "read") != 0))
        return fprintf(stderr, "usage: disk read FILE | disk load FILE | disk write FILE NBYTES\n"), 2;
    j.fd = open(argv[2], j.writes ? O_WRONLY | O_CREAT | O_EXCL | O_DIRECT : O_RDONLY | O_DIRECT, 0644);
    j.nbytes = j.writes ? atoll(argv[3]) : lseek(j.fd, 0, SEEK_END);
    if (j.fd < 0 || (j.writes && posix_fallocate(j.fd, 0, j.nbytes) != 0))
        return perror(argv[2]), 1;
    if (keeps && !(j.whole = in_huge_pages((size_t)j.nbytes + REQUEST_NBYTES)))
        return perror(argv[2]), 1;
    for (int i = 0; i < NTHREADS; i++)
        if (pthread_create(&threads[i], NULL, work, &j) != 0)
            return perror("thread"), 1;
    for (int i = 0; i < NTHREADS; i++)
        pthread_join(threads[i], NULL);
    if ((j.writes && fsync(j.fd) != 0) || j.failed)
        return perror(argv[2]), 1;
    return 0;
}
