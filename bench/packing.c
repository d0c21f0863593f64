/* SPDX-License-Identifier: Apache-2.0 */
/* Measures gain and cost of compression: the ratio, and GB of elements per CPU second each way, for the first tensor of
 * at least 64 MiB of a model, and for the same numbers cast to other floating-point types. Prints one JSON object. */
#include <fsdpck/source.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/block_codec.h"
#include "base/hash.h"

enum { NBLOCKS = 1024, PASSES = 3 };
#define NBYTES ((uint64_t)NBLOCKS * FSDPCK_BLOCK_NBYTES)

static double cpu_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct work {
    struct fsdpck_encoder *encoder;
    struct fsdpck_decoder *decoder;
    uint8_t *in, *stored, *back;
    uint32_t nstored[NBLOCKS];
};

/* Measures the best of several passes and prints the row. Returns false if the bytes did not round-trip. */
static bool measure(struct work *w, enum fsdpck_dtype dtype)
{
    struct fsdpck_planes p = fsdpck_planes_of(dtype);
    double pack = 0, unpack = 0;
    uint64_t total = 0;
    for (int pass = 0; pass < PASSES; pass++) {
        double start = cpu_now();
        total = 0;
        for (size_t i = 0; i < NBLOCKS; i++)
            total += w->nstored[i] = fsdpck_block_encode(w->encoder, &p, w->in + i * FSDPCK_BLOCK_NBYTES,
                                                         FSDPCK_BLOCK_NBYTES, w->stored + i * FSDPCK_BLOCK_NBYTES);
        double middle = cpu_now();
        for (size_t i = 0; i < NBLOCKS; i++)
            if (!fsdpck_block_decode(w->decoder, &p, w->stored + i * FSDPCK_BLOCK_NBYTES, w->nstored[i],
                                     w->back + i * FSDPCK_BLOCK_NBYTES, FSDPCK_BLOCK_NBYTES))
                return false;
        double end = cpu_now();
        pack = NBYTES / 1e9 / (middle - start) > pack ? NBYTES / 1e9 / (middle - start) : pack;
        unpack = NBYTES / 1e9 / (end - middle) > unpack ? NBYTES / 1e9 / (end - middle) : unpack;
    }
    printf("%s\"%s\":{\"ratio\":%.4f,\"compress_gb_per_s\":%.2f,\"decompress_gb_per_s\":%.2f}",
           dtype == FSDPCK_BFLOAT16 ? "{" : ",", fsdpck_dtype_info(dtype)->name, (double)total / (double)NBYTES, pack,
           unpack);
    return memcmp(w->in, w->back, NBYTES) == 0;
}

static const struct fsdpck_tensor *large_tensor(const struct fsdpck_source *src)
{
    for (size_t i = 0; i < fsdpck_source_ntensors(src); i++) {
        const struct fsdpck_tensor *t = fsdpck_source_tensor(src, i);
        if (t->alias_of < 0 && t->nbytes >= NBYTES &&
            (t->dtype == FSDPCK_BFLOAT16 || t->dtype == FSDPCK_FLOAT16 || t->dtype == FSDPCK_FLOAT32))
            return t;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    static const enum fsdpck_dtype dtypes[] = { FSDPCK_BFLOAT16, FSDPCK_FLOAT16, FSDPCK_FLOAT32 };
    static struct work w;
    struct fsdpck_source *src;
    if (argc != 2 || fsdpck_source_open(argv[1], NULL, NULL, &src, NULL) != 0)
        return fprintf(stderr, "usage: packing MODEL\n"), 2;
    const struct fsdpck_tensor *t = large_tensor(src);
    uint8_t *data = t ? malloc(t->nbytes) : NULL;
    struct fsdpck_read read = { .tensor = t, .dst = data };
    w.encoder = fsdpck_encoder_new();
    w.decoder = fsdpck_decoder_new();
    w.in = malloc(NBYTES);
    w.stored = calloc(1, NBYTES);
    w.back = calloc(1, NBYTES);
    if (!data || !w.encoder || !w.decoder || !w.in || !w.stored || !w.back ||
        fsdpck_source_read(src, &read, 1, NULL) != 0)
        return fprintf(stderr, "packing: no tensor of 64 MiB in bfloat16, float16 or float32, or it cannot be read\n"),
               4;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        uint64_t nelem = NBYTES / fsdpck_dtype_info(dtypes[i])->nbytes, have = t->nelem;
        for (uint64_t at = 0; at < nelem; at += have) /* a narrower type has too few elements: start over */
            fsdpck_dtype_cast(t->dtype, data, dtypes[i], w.in + at * fsdpck_dtype_info(dtypes[i])->nbytes,
                              nelem - at < have ? nelem - at : have);
        if (t->dtype == dtypes[i])
            memcpy(w.in, data, NBYTES);
        if (!measure(&w, dtypes[i]))
            return fprintf(stderr, "packing: the bytes did not come back\n"), 1;
    }
    printf("}\n");
    fsdpck_source_close(src);
    free(data);
    free(w.in);
    free(w.stored);
    free(w.back);
    fsdpck_encoder_free(w.encoder);
    fsdpck_decoder_free(w.decoder);
    return 0;
}
