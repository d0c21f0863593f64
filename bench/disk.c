/* What the disk itself can do: reads or writes one file past the page cache, from memory in huge pages, some requests at a time. Nothing is looked at.
 *
 *     disk read FILE        the whole of it
 *     disk write FILE N     N bytes to a new FILE, and syncs it
 *
 * dd's requests go to memory in pages of 4 KiB, which costs some virtual disks two thirds of their rate: this is the limit, dd is not. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { NTHREADS = 4, REQUEST_NBYTES = 4 << 20, HUGE_PAGE_NBYTES = 2 << 20 };

struct job {
    int fd;
    int writes;
    long long nbytes, next; /* next: taken by the threads in turn */
    int failed;
};

static void *work(void *arg)
{
    struct job *j = arg;
    char *memory = aligned_alloc(HUGE_PAGE_NBYTES, REQUEST_NBYTES);
    if (!memory)
        exit(1);
    madvise(memory, REQUEST_NBYTES, MADV_HUGEPAGE);
    memset(memory, 1, REQUEST_NBYTES);
    for (;;) {
        long long at = __atomic_fetch_add(&j->next, REQUEST_NBYTES, __ATOMIC_RELAXED);
        if (at >= j->nbytes)
            break;
        if ((j->writes ? pwrite(j->fd, memory, REQUEST_NBYTES, at) : pread(j->fd, memory, REQUEST_NBYTES, at)) <= 0)
            __atomic_store_n(&j->failed, 1, __ATOMIC_RELAXED);
    }
    free(memory);
    return NULL;
}

int main(int argc, char **argv)
{
    struct job j = { .writes = argc == 4 && strcmp(argv[1], "write") == 0 };
    pthread_t threads[NTHREADS];
    if (!j.writes && (argc != 3 || strcmp(argv[1], "read") != 0))
        return fprintf(stderr, "usage: disk read FILE | disk write FILE NBYTES\n"), 2;
    j.fd = open(argv[2], j.writes ? O_WRONLY | O_CREAT | O_EXCL | O_DIRECT : O_RDONLY | O_DIRECT, 0644);
    j.nbytes = j.writes ? atoll(argv[3]) : lseek(j.fd, 0, SEEK_END);
    if (j.fd < 0 || (j.writes && posix_fallocate(j.fd, 0, j.nbytes) != 0))
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
