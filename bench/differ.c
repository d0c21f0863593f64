/* SPDX-License-Identifier: Apache-2.0 */
/* Measures how fast `diff` compares elements on one core when all of them differ: GB/s of one side, for each dtype with
 * itself and for some pairs. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "verbs/diff_values.h"

enum { NBYTES = 1 << 20, ROUNDS = 9, TIMES = 20 };

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the median over rounds. */
static double rate(enum fsdpck_dtype a_dtype, const char *a, enum fsdpck_dtype b_dtype, const char *b, double tolerance)
{
    uint64_t na = fsdpck_dtype_info(a_dtype)->nbytes, nb = fsdpck_dtype_info(b_dtype)->nbytes,
             nelem = NBYTES / (na > nb ? na : nb);
    double rates[ROUNDS];
    for (int r = 0; r < ROUNDS; r++) {
        struct fsdpck_value_diff diff = { 0 };
        double start = seconds_now();
        for (int i = 0; i < TIMES; i++)
            fsdpck_values_compare(a_dtype, a, b_dtype, b, nelem, tolerance, &diff);
        rates[r] = (double)(nelem * na * TIMES) / (seconds_now() - start) * 1e-9;
    }
    qsort(rates, ROUNDS, sizeof *rates, by_value);
    return rates[ROUNDS / 2];
}

int main(void)
{
    static const enum fsdpck_dtype pairs[][2] = { { FSDPCK_FLOAT32, FSDPCK_BFLOAT16 },
                                                  { FSDPCK_BFLOAT16, FSDPCK_FLOAT16 },
                                                  { FSDPCK_BFLOAT16, FSDPCK_INT64 } };
    char *a = malloc(NBYTES), *b = malloc(NBYTES);
    if (a == NULL || b == NULL)
        return 4;
    for (int i = 0; i < NBYTES; i++) {
        a[i] = (char)(rand() >> 7);
        b[i] = (char)(a[i] + 1 + (rand() >> 7) % 255);
    }
    for (int d = 0; d < FSDPCK_NDTYPES; d++)
        printf("%-20s %-20s %6.2f GB/s by bits %6.2f GB/s by value\n", fsdpck_dtype_info((enum fsdpck_dtype)d)->name,
               "", rate((enum fsdpck_dtype)d, a, (enum fsdpck_dtype)d, b, -1),
               rate((enum fsdpck_dtype)d, a, (enum fsdpck_dtype)d, b, 0.5));
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        printf("%-20s %-20s %26.2f GB/s by value\n", fsdpck_dtype_info(pairs[i][0])->name,
               fsdpck_dtype_info(pairs[i][1])->name, rate(pairs[i][0], a, pairs[i][1], b, 0.5));
    free(a);
    free(b);
    return 0;
}
