/* SPDX-License-Identifier: Apache-2.0 */
/* Measures memory bandwidth for a loop that only reads: the best of several passes with a given number of threads, on
 * huge pages if available. usage: read BYTES THREADS. Prints one number, in GB/s. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { PASSES = 10, MOST_THREADS = 64 };

typedef uint64_t words __attribute__((vector_size(64)));

struct part {
    const words *data;
    size_t nwords;
    uint64_t sum; /* keeps the compiler from removing the loop */
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *read_part(void *arg)
{
    struct part *p = arg;
    words a = { 0 }, b = { 0 }, c = { 0 }, d = { 0 };
    for (size_t i = 0; i + 4 <= p->nwords; i += 4) {
        a ^= p->data[i];
        b ^= p->data[i + 1];
        c ^= p->data[i + 2];
        d ^= p->data[i + 3];
    }
    a ^= b ^ c ^ d;
    p->sum = a[0] ^ a[7];
    return NULL;
}

static double one_pass(struct part *parts, int n)
{
    pthread_t threads[MOST_THREADS];
    double started = now();
    for (int i = 1; i < n; i++) {
        if (pthread_create(&threads[i], NULL, read_part, &parts[i]))
            exit(4);
    }
    read_part(&parts[0]);
    for (int i = 1; i < n; i++)
        pthread_join(threads[i], NULL);
    return now() - started;
}

int main(int argc, char **argv)
{
    size_t nbytes = argc == 3 ? strtoull(argv[1], NULL, 10) : 0;
    int n = argc == 3 ? atoi(argv[2]) : 0;
    struct part parts[MOST_THREADS];
    if (nbytes < 4096 || n < 1 || n > MOST_THREADS)
        return 2;
    char *data = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
        return 4;
    madvise(data, nbytes, MADV_HUGEPAGE);
    memset(data, 1, nbytes);
    size_t each = nbytes / (size_t)n / sizeof(words);
    for (int i = 0; i < n; i++)
        parts[i] = (struct part){ .data = (const words *)data + (size_t)i * each, .nwords = each };
    double best = 1e9;
    for (int pass = 0; pass < PASSES; pass++) {
        double seconds = one_pass(parts, n);
        best = seconds < best ? seconds : best;
    }
    printf("%.2f\n", (double)nbytes / best / 1e9);
    return 0;
}
