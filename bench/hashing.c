/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the cost of the engine's checksums: CPU seconds per GB for XXH3-128 of 64 KiB blocks, for CRC-32, and for
 * both in one pass over a payload in memory. Prints one JSON object. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/hash.h"

enum { BLOCK_NBYTES = 65536, NBLOCKS = 4096 };

static double cpu_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* CPU seconds per GB. */
static double measure(const uint8_t *data, int hash, int crc)
{
    struct fsdpck_hash128 h;
    uint32_t sum = 0;
    double start = cpu_now();
    for (size_t i = 0; i < NBLOCKS; i++) {
        const uint8_t *block = data + i * BLOCK_NBYTES;
        if (hash)
            fsdpck_hash(block, BLOCK_NBYTES, &h);
        if (crc)
            sum = fsdpck_crc32(sum, block, BLOCK_NBYTES);
    }
    return (cpu_now() - start) / ((double)NBLOCKS * BLOCK_NBYTES / 1e9);
}

int main(void)
{
    uint8_t *data = malloc((size_t)NBLOCKS * BLOCK_NBYTES);
    if (data == NULL)
        return 4;
    for (size_t i = 0; i < (size_t)NBLOCKS * BLOCK_NBYTES; i++)
        data[i] = (uint8_t)(i * 2654435761u >> 13);
    printf("{\"hash_s_per_gb\":%.4f,\"crc_s_per_gb\":%.4f,\"both_s_per_gb\":%.4f}\n", measure(data, 1, 0),
           measure(data, 0, 1), measure(data, 1, 1));
    free(data);
    return 0;
}
