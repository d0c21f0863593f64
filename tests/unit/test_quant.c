/* SPDX-License-Identifier: Apache-2.0 */
/* Quantized weights: models that the real libraries wrote (fixtures/quant), dequantized here and compared bit for bit
 * with what those libraries make of them; boxes against the whole; runs of codes against one code at a time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <math.h>
#include <unistd.h>

#include <cmocka.h>

#include <fsdpck/source.h>

#include "../support/model.h"
#include "../support/opened.h"
#include "../support/sanitized.h"
#include "../support/tree.h"
#include "quant/compute.h"

static const char *const cases[] = { "awq-int4",       "bnb-fp4",       "bnb-int8",     "bnb-nf4",
                                     "bnb-nf4-double", "fp8-block",     "fp8-block-ct", "fp8-block-ue8m0",
                                     "fp8-channel",    "fp8-modelopt",  "fp8-tensor",   "int4-ct",
                                     "mxfp4-ct",       "mxfp4-gptoss",  "mxfp8-ct",     "mxfp8-modelopt",
                                     "nvfp4-ct",       "nvfp4-modelopt" };
enum { NCASES = sizeof cases / sizeof *cases };

static const char *root(void)
{
    const char *set = getenv("FSDPCK_FIXTURES");
    return set ? set : "fixtures";
}

static struct fsdpck_source *open_case(const char *name, enum fsdpck_dtype dtype)
{
    struct fsdpck_error err = { 0 };
    char path[300], text[2000];
    snprintf(path, sizeof path, "%s/quant/%s/model", root(), name);
    struct fsdpck_source *src = opened(path, "hf");
    if (fsdpck_source_dequantize(src, dtype, NULL, &err))
        fail_msg("%s: %s", name, fsdpck_error_format(&err, text, sizeof text));
    return src;
}

static void test_libraries(void **state)
{
    (void)state;
    for (int i = 0; i < NCASES; i++) {
        char path[300];
        snprintf(path, sizeof path, "%s/quant/%s/REF.safetensors", root(), cases[i]);
        struct fsdpck_source *ref = opened(path, "safetensors"), *src = open_case(cases[i], FSDPCK_BFLOAT16);
        if (!strcmp(cases[i], "awq-int4")) { /* computed in float16 */
            fsdpck_source_close(src);
            src = open_case(cases[i], FSDPCK_FLOAT16);
        }
        opened_check_same(ref, src);
        fsdpck_source_close(src);
        fsdpck_source_close(ref);
    }
}

/* ---- boxes ---- */

static void test_boxes(void **state)
{
    static const enum fsdpck_dtype dtypes[] = { FSDPCK_BFLOAT16, FSDPCK_FLOAT16, FSDPCK_FLOAT32 };
    uint64_t seed = 1;
    (void)state;
    for (int i = 0; i < NCASES * 3; i += SANITIZED ? 4 : 1) {
        struct fsdpck_source *src = open_case(cases[i / 3], dtypes[i % 3]);
        for (size_t k = 0; k < fsdpck_source_ntensors(src); k++) {
            const struct fsdpck_tensor *t = fsdpck_source_tensor(src, k);
            uint8_t *whole = opened_read(src, t);
            for (int n = 0; n < 8; n++)
                opened_check_box(src, t, whole, &seed);
            free(whole);
        }
        fsdpck_source_close(src);
    }
}

/* What a plan says is read, and not more than twice the stored parts. */
static void test_plan(void **state)
{
    (void)state;
    struct fsdpck_source *src = open_case("fp8-block", FSDPCK_BFLOAT16);
    const struct fsdpck_tensor *t = fsdpck_source_find(src, "model.layers.0.mlp.down_proj.weight");
    struct fsdpck_read read = { .tensor = t };
    struct fsdpck_plan plan;
    assert_non_null(t);
    assert_int_equal(fsdpck_source_plan(src, &read, 1, &plan, NULL), 0);
    assert_true(plan.read_nbytes >= t->nelem + 16 && plan.needed_nbytes == t->nelem + 16); /* codes; 2 x 2 scales */
    fsdpck_source_close(src);
}

/* ---- memory ---- */

/* A GPTQ weight of 512 inputs in groups of 16, of 102400 outputs: too large to be loaded whole. A sparse file. */
static struct fsdpck_source *open_large(const char *path)
{
    static const char head[] =
        "{\"l.qweight\":{\"dtype\":\"I32\",\"shape\":[64,102400],\"data_offsets\":[0,26214400]},"
        "\"l.qzeros\":{\"dtype\":\"I32\",\"shape\":[32,12800],\"data_offsets\":[26214400,27852800]},"
        "\"l.scales\":{\"dtype\":\"F16\",\"shape\":[32,102400],\"data_offsets\":[27852800,34406400]}}";
    const uint8_t nbytes[8] = { (sizeof head - 1) & 255, (sizeof head - 1) >> 8 };
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_true(fwrite(nbytes, 8, 1, f) == 1 && fwrite(head, sizeof head - 1, 1, f) == 1 && fclose(f) == 0);
    assert_int_equal(truncate(path, 8 + sizeof head - 1 + 34406400), 0);
    return opened(path, "safetensors");
}

/* One column needs the scales of whole rows: these count too. */
static void test_memory(void **state)
{
    char *folder = tree_new(), *path = tree_path(folder, "large.safetensors");
    struct fsdpck_source *src = open_large(path);
    const struct fsdpck_quant_config config = { 0 };
    const struct fsdpck_matrix_box column = { 0, 102400, 5, 1 };
    struct fsdpck_arena arena = { 0 };
    struct fsdpck_quant_weights weights;
    struct fsdpck_quant_inputs in;
    struct fsdpck_fetch f = { .src = src };
    uint16_t *out = malloc(102400 * sizeof *out);
    (void)state;
    assert_int_equal(fsdpck_quant_find(src, &config, &arena, &weights, NULL), 0);
    assert_int_equal(fsdpck_quant_inputs_init(&in, src, FSDPCK_BFLOAT16, NULL), 0);
    assert_int_equal(fsdpck_quant_compute(&in, &f, weights.list, &column, out, 2, NULL), 0);
    assert_true(in.codes.nbytes + in.scale.nbytes + in.zero.nbytes + in.raw.nbytes <=
                fsdpck_quant_inputs_nbytes(weights.list));
    fsdpck_quant_inputs_free(&in);
    fsdpck_arena_free(&arena);
    fsdpck_source_close(src);
    tree_remove(folder);
    free(folder);
    free(path);
    free(out);
}

/* ---- runs ---- */

static float value_of(const struct fsdpck_decode *d, const uint8_t *codes, uint64_t e)
{
    if (d->code == FSDPCK_DECODE_E4M3) /* a NaN keeps its sign */
        return copysignf(fsdpck_e4m3_value(codes[e]), codes[e] & 0x80 ? -1.0f : 1.0f);
    return d->code == FSDPCK_DECODE_INT8 ? (float)(int8_t)codes[e] : d->pairs[codes[e / 2]][e % 2];
}

/* One element, by the scalar casts of the library. */
static void expect(const struct fsdpck_decode *d, const uint8_t *codes, uint64_t e, const struct fsdpck_groups *g,
                   uint8_t out[4])
{
    uint64_t group = (g->phase + e) / g->nelem;
    volatile float v = value_of(d, codes, e) - (g->zero ? g->zero[group] : 0.0f);
    float x = v * g->scale[group];
    uint8_t via[4];
    fsdpck_dtype_cast(FSDPCK_FLOAT32, &x, d->via, via, 1);
    fsdpck_dtype_cast(d->via, via, FSDPCK_FLOAT32, &x, 1);
    fsdpck_dtype_cast(FSDPCK_FLOAT32, &x, d->to, out, 1);
}

static void test_runs(void **state)
{
    static const enum fsdpck_dtype dtypes[] = { FSDPCK_FLOAT32, FSDPCK_FLOAT16, FSDPCK_BFLOAT16 };
    static struct fsdpck_decode d;
    uint8_t codes[2048], out[4 * 2048], want[4];
    float scale[2048], zero[2048];
    uint64_t seed = 7;
    (void)state;
    for (int round = 0; round < (SANITIZED ? 100 : 600); round++) {
        for (size_t i = 0; i < sizeof codes; i++)
            codes[i] = (uint8_t)model_random(&seed);
        for (int i = 0; i < 2048; i++) {
            uint32_t u = (uint32_t)(90 + model_below(&seed, 60)) << 23 | (uint32_t)model_below(&seed, 1u << 23);
            memcpy(&scale[i], &u, 4);
            zero[i] = (float)((int)model_below(&seed, 16) - 8);
        }
        d.code = (enum fsdpck_decode_code)model_below(&seed, 3);
        d.via = dtypes[model_below(&seed, 3)];
        d.to = dtypes[model_below(&seed, 3)];
        fsdpck_decode_set_e2m1(&d, model_below(&seed, 2) != 0);
        struct fsdpck_groups g = { .scale = scale,
                                   .zero = model_below(&seed, 2) ? zero : NULL,
                                   .nelem = (uint64_t[]){ 1, 16, 32, 33, 64, 128, 4096 }[model_below(&seed, 7)],
                                   .phase = model_below(&seed, 300) };
        uint64_t first = model_below(&seed, 700), n = 1 + model_below(&seed, 1000),
                 item = d.to == FSDPCK_FLOAT32 ? 4 : 2;
        fsdpck_decode_run(&d, codes, first, n, &g, out);
        for (uint64_t i = 0; i < n; i++) {
            expect(&d, codes, first + i, &g, want);
            assert_memory_equal(out + i * item, want, item);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_libraries), cmocka_unit_test(test_boxes),
                                        cmocka_unit_test(test_plan), cmocka_unit_test(test_memory),
                                        cmocka_unit_test(test_runs) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
