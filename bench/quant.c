/* SPDX-License-Identifier: Apache-2.0 */
/* Measures dequantizing and quantizing on one core: GB of weights (bf16 out, or bf16 bytes in) per CPU second, for each
 * form, over rows of 4096. Prints one JSON object. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "quant/decode.h"
#include "quant/quantize.h"

enum { ROWS = 1024, COLS = 4096, PASSES = 5 };
#define NELEM ((uint64_t)ROWS * COLS)

struct work {
    uint8_t *codes, *scales;
    float *scale, *in;
    uint16_t *out;
    struct fsdpck_decode decode;
    struct fsdpck_groups groups;
};

static double cpu_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void decode_rows(struct work *w)
{
    const uint64_t row_nbytes = w->decode.code == FSDPCK_DECODE_NIBBLE ? COLS / 2 : COLS;
    for (uint64_t i = 0; i < ROWS; i++)
        fsdpck_decode_run(&w->decode, w->codes + i * row_nbytes, 0, COLS, &w->groups, w->out + i * COLS);
}

static void to_fp8(struct work *w)
{
    const struct fsdpck_fp8_blocks blocks = { 128, 128, false };
    fsdpck_quantize_fp8(w->in, ROWS, COLS, &blocks, w->codes, w->scale);
}

static void to_mxfp4(struct work *w)
{
    fsdpck_quantize_mxfp4(w->in, NELEM, FSDPCK_MX_FLOOR, w->codes, w->scales);
}

static void to_nvfp4(struct work *w)
{
    fsdpck_quantize_nvfp4(w->in, NELEM, 2688.0f, FSDPCK_NVFP4_COMPRESSED_TENSORS, w->codes, w->scales);
}

static void to_nf4(struct work *w)
{
    fsdpck_quantize_nf4(w->in, NELEM, 64, w->codes, w->scale);
}

/* Prints the best of several passes. */
static void measure(struct work *w, const char *name, void (*run)(struct work *w), const char *end)
{
    double best = 0;
    for (int pass = 0; pass < PASSES; pass++) {
        double start = cpu_now();
        run(w);
        double rate = (double)NELEM * 2 / (cpu_now() - start) * 1e-9;
        best = rate > best ? rate : best;
    }
    printf("\"%s\": %.2f%s", name, best, end);
}

static void measure_decode(struct work *w, const char *name, enum fsdpck_decode_code code, uint64_t group)
{
    w->decode.code = code;
    w->groups = (struct fsdpck_groups){ .scale = w->scale, .nelem = group };
    measure(w, name, decode_rows, ", ");
}

int main(void)
{
    static struct work w;
    w.codes = malloc(NELEM);
    w.scales = malloc(NELEM / 16);
    w.scale = malloc(NELEM / 64 * sizeof *w.scale);
    w.in = malloc(NELEM * sizeof *w.in);
    w.out = malloc(NELEM * sizeof *w.out);
    if (!w.codes || !w.scales || !w.scale || !w.in || !w.out)
        return 1;
    for (uint64_t i = 0; i < NELEM; i++) {
        w.codes[i] = (uint8_t)(i * 2654435761u >> 13) & 0x77;
        w.in[i] = (float)((int)(i * 2654435761u >> 8 & 0xffff) - 0x8000) * 0x1p-15f;
    }
    for (uint64_t i = 0; i < NELEM / 64; i++)
        w.scale[i] = 1.0f / (float)(i + 1);
    w.decode.via = FSDPCK_FLOAT32;
    w.decode.to = FSDPCK_BFLOAT16;
    fsdpck_decode_set_e2m1(&w.decode, false);
    printf("{");
    measure_decode(&w, "from fp8-block", FSDPCK_DECODE_E4M3, 128);
    measure_decode(&w, "from int8", FSDPCK_DECODE_INT8, COLS);
    measure_decode(&w, "from mxfp4", FSDPCK_DECODE_NIBBLE, 32);
    measure_decode(&w, "from nvfp4", FSDPCK_DECODE_NIBBLE, 16);
    measure_decode(&w, "from nf4", FSDPCK_DECODE_NIBBLE, 64);
    measure(&w, "to fp8-block", to_fp8, ", ");
    measure(&w, "to mxfp4", to_mxfp4, ", ");
    measure(&w, "to nvfp4", to_nvfp4, ", ");
    measure(&w, "to nf4", to_nf4, "}\n");
    free(w.codes);
    free(w.scales);
    free(w.scale);
    free(w.in);
    free(w.out);
    return 0;
}
