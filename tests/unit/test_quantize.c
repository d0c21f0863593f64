/* SPDX-License-Identifier: Apache-2.0 */
/* Quantizers: the models that fixtures/quant were made from must give the bytes that the real libraries stored. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fsdpck/source.h>

#include "../support/model.h"
#include "../support/opened.h"
#include "quant/decode.h"
#include "quant/quantize.h"

static const char *const names[] = { "model.layers.0.mlp.down_proj", "model.layers.0.self_attn.k_proj" };

struct quantized {
    struct fsdpck_source *stored;
    const char *module;
    float *in; /* (rows, cols) the weight that was quantized */
    uint64_t rows, cols, nelem;
};

static struct fsdpck_source *open_model(const char *root, const char *name, const char *inside)
{
    char path[300];
    snprintf(path, sizeof path, "%s/quant/%s%s", root ? root : "fixtures", name, inside);
    return opened(path, "hf");
}

static const struct fsdpck_tensor *part(const struct quantized *q, const char *suffix)
{
    char name[200];
    snprintf(name, sizeof name, "%s.%s", q->module, suffix);
    const struct fsdpck_tensor *t = fsdpck_source_find(q->stored, name);
    if (!t)
        fail_msg("no %s", name);
    return t;
}

/* Fails unless the stored part has these bytes. */
static void expect(const struct quantized *q, const char *suffix, const void *got, uint64_t nbytes)
{
    const struct fsdpck_tensor *t = part(q, suffix);
    uint8_t *want = opened_read(q->stored, t);
    assert_int_equal(t->nbytes, nbytes);
    for (uint64_t i = 0; i < nbytes; i++)
        if (want[i] != ((const uint8_t *)got)[i])
            fail_msg("%s.%s: byte %d of %d is %02x, wanted %02x", q->module, suffix, (int)i, (int)nbytes,
                     ((const uint8_t *)got)[i], want[i]);
    free(want);
}

static void with(const char *name, const char *source, void (*check)(const struct quantized *q))
{
    const char *root = getenv("FSDPCK_FIXTURES");
    struct fsdpck_source *stored = open_model(root, name, "/model"), *src = open_model(root, source, "");
    for (int i = 0; i < 2; i++) {
        char weight[200];
        snprintf(weight, sizeof weight, "%s.weight", names[i]);
        const struct fsdpck_tensor *t = fsdpck_source_find(src, weight);
        assert_non_null(t);
        uint8_t *raw = opened_read(src, t);
        struct quantized q = { stored, names[i], malloc(t->nelem * sizeof(float)), t->shape[0], t->shape[1], t->nelem };
        fsdpck_dtype_cast(t->dtype, raw, FSDPCK_FLOAT32, q.in, t->nelem);
        check(&q);
        free(q.in);
        free(raw);
    }
    fsdpck_source_close(stored);
    fsdpck_source_close(src);
}

static void check_fp8(const struct quantized *q)
{
    const struct fsdpck_fp8_blocks blocks = { 128, 128, false };
    uint8_t *codes = malloc(q->nelem);
    float scales[64];
    fsdpck_quantize_fp8(q->in, q->rows, q->cols, &blocks, codes, scales);
    expect(q, "weight", codes, q->nelem);
    expect(q, "weight_scale_inv", scales, ((q->rows + 127) / 128) * ((q->cols + 127) / 128) * 4);
    free(codes);
}

static void check_ue8m0(const struct quantized *q)
{
    const struct fsdpck_fp8_blocks blocks = { 16, 32, true };
    uint8_t *codes = malloc(q->nelem), bytes[64];
    float scales[64];
    uint64_t n = ((q->rows + 15) / 16) * ((q->cols + 31) / 32);
    fsdpck_quantize_fp8(q->in, q->rows, q->cols, &blocks, codes, scales);
    for (uint64_t i = 0; i < n; i++)
        bytes[i] = fsdpck_e8m0_code(scales[i]);
    expect(q, "weight", codes, q->nelem);
    expect(q, "weight_scale_inv", bytes, n);
    free(codes);
}

/* Scales in the dtype in which they are stored, for blocks, rows or the whole. */
static void check_scaled(const struct quantized *q)
{
    const struct fsdpck_tensor *t = part(q, "weight_scale");
    const bool grid = t->ndim == 2 && t->shape[1] > 1, rows = t->nelem == q->rows;
    const struct fsdpck_fp8_blocks blocks = { grid ? 32 : rows ? 1 : q->rows, grid ? 32 : q->cols, false };
    uint8_t *codes = malloc(q->nelem), *stored = malloc(t->nbytes);
    float *scales = malloc(t->nelem * sizeof *scales);
    fsdpck_quantize_fp8_scaled(q->in, q->rows, q->cols, &blocks, t->dtype, codes, scales);
    fsdpck_dtype_cast(FSDPCK_FLOAT32, scales, t->dtype, stored, t->nelem);
    expect(q, "weight_scale", stored, t->nbytes);
    expect(q, "weight", codes, q->nelem);
    free(codes);
    free(stored);
    free(scales);
}

static void check_mxfp8(const struct quantized *q, enum fsdpck_mx_rule rule)
{
    uint8_t *codes = malloc(q->nelem), *scales = malloc(q->nelem / 32);
    fsdpck_quantize_mxfp8(q->in, q->nelem, rule, codes, scales);
    expect(q, "weight_scale", scales, q->nelem / 32);
    expect(q, "weight", codes, q->nelem);
    free(codes);
    free(scales);
}

static void check_mxfp8_ct(const struct quantized *q)
{
    check_mxfp8(q, FSDPCK_MX_ROUNDED);
}

static void check_mxfp8_modelopt(const struct quantized *q)
{
    check_mxfp8(q, FSDPCK_MX_CEIL);
}

static void check_mxfp4(const struct quantized *q)
{
    uint8_t *codes = malloc(q->nelem / 2), *scales = malloc(q->nelem / 32);
    fsdpck_quantize_mxfp4(q->in, q->nelem, FSDPCK_MX_ROUNDED, codes, scales);
    expect(q, "weight_scale", scales, q->nelem / 32);
    expect(q, "weight_packed", codes, q->nelem / 2);
    free(codes);
    free(scales);
}

static void check_nvfp4(const struct quantized *q, enum fsdpck_nvfp4_rule rule, const char *global, const char *packed)
{
    uint8_t *codes = malloc(q->nelem / 2), *scales = malloc(q->nelem / 16);
    float g = fsdpck_nvfp4_global(fsdpck_quantize_amax(q->in, q->nelem), rule);
    fsdpck_quantize_nvfp4(q->in, q->nelem, g, rule, codes, scales);
    expect(q, global, &g, 4);
    expect(q, "weight_scale", scales, q->nelem / 16);
    expect(q, packed, codes, q->nelem / 2);
    free(codes);
    free(scales);
}

static void check_nvfp4_ct(const struct quantized *q)
{
    check_nvfp4(q, FSDPCK_NVFP4_COMPRESSED_TENSORS, "weight_global_scale", "weight_packed");
}

static void check_nvfp4_modelopt(const struct quantized *q)
{
    check_nvfp4(q, FSDPCK_NVFP4_MODELOPT, "weight_scale_2", "weight");
}

static void check_nf4(const struct quantized *q)
{
    uint64_t nblocks = (q->nelem + 63) / 64;
    uint8_t *codes = malloc((q->nelem + 1) / 2);
    float *absmax = malloc(nblocks * sizeof *absmax);
    fsdpck_quantize_nf4(q->in, q->nelem, 64, codes, absmax);
    expect(q, "weight.quant_map", fsdpck_nf4_values, sizeof(float) * 16);
    expect(q, "weight.absmax", absmax, nblocks * 4);
    expect(q, "weight", codes, (q->nelem + 1) / 2);
    free(codes);
    free(absmax);
}

static void test_libraries(void **state)
{
    (void)state;
    with("fp8-block", "source-fp8-block", check_fp8);
    with("fp8-block-ue8m0", "source", check_ue8m0);
    with("fp8-tensor", "source", check_scaled);
    with("fp8-channel", "source", check_scaled);
    with("fp8-block-ct", "source", check_scaled);
    with("fp8-modelopt", "source", check_scaled);
    with("mxfp8-ct", "source", check_mxfp8_ct);
    with("mxfp8-modelopt", "source", check_mxfp8_modelopt);
    with("mxfp4-ct", "source", check_mxfp4);
    with("nvfp4-ct", "source", check_nvfp4_ct);
    with("nvfp4-modelopt", "source", check_nvfp4_modelopt);
    with("bnb-nf4", "source", check_nf4);
}

/* gpt-oss: the rule of the OCP specification, over columns of the stored weight. */
static void test_floor(void **state)
{
    const char *root = getenv("FSDPCK_FIXTURES");
    struct fsdpck_source *stored = open_model(root, "mxfp4-gptoss", "/model"),
                         *src = open_model(root, "source-mxfp4-gptoss", "");
    const struct fsdpck_tensor *t = fsdpck_source_find(src, "model.layers.0.mlp.experts.down_proj");
    struct quantized q = { .stored = stored, .module = "model.layers.0.mlp" };
    (void)state;
    assert_non_null(t);
    uint64_t in = t->shape[1], out = t->shape[2], n = t->nelem;
    uint8_t *raw = opened_read(src, t), *codes = malloc(n / 2), *scales = malloc(n / 32);
    float *w = malloc(n * sizeof *w), *turned = malloc(n * sizeof *w);
    fsdpck_dtype_cast(t->dtype, raw, FSDPCK_FLOAT32, w, n);
    for (uint64_t e = 0; e < t->shape[0]; e++)
        for (uint64_t i = 0; i < in; i++)
            for (uint64_t o = 0; o < out; o++)
                turned[(e * out + o) * in + i] = w[(e * in + i) * out + o];
    fsdpck_quantize_mxfp4(turned, n, FSDPCK_MX_FLOOR, codes, scales);
    expect(&q, "experts.down_proj_scales", scales, n / 32);
    expect(&q, "experts.down_proj_blocks", codes, n / 2);
    free(raw);
    free(codes);
    free(scales);
    free(w);
    free(turned);
    fsdpck_source_close(stored);
    fsdpck_source_close(src);
}

/* Every E4M3 value and every midpoint between two comes back as nearest-even code. */
static void test_e4m3(void **state)
{
    const struct fsdpck_fp8_blocks blocks = { 1, 512, false };
    float in[512] = { 448.0f }, inv;
    uint8_t codes[512];
    (void)state;
    for (int c = 0; c < 126; c++) {
        float a = fsdpck_e4m3_value((uint8_t)c), b = fsdpck_e4m3_value((uint8_t)(c + 1));
        in[1 + 2 * c] = a;
        in[2 + 2 * c] = -(a + b) / 2;
    }
    fsdpck_quantize_fp8(in, 1, 512, &blocks, codes, &inv);
    assert_true(inv == 1.0f);
    for (int c = 0; c < 126; c++) {
        assert_int_equal(codes[1 + 2 * c], c);
        assert_int_equal(codes[2 + 2 * c], 0x80 | (c + (c & 1)));
    }
}

/* The code whose value is nearest; the lower one of two. */
static unsigned nearest_nf4(float x)
{
    unsigned code = 0;
    while (code < 15 && x > (fsdpck_nf4_values[code] + fsdpck_nf4_values[code + 1]) / 2)
        code++;
    return code;
}

/* A short, odd block at the end, and a block of zeros. */
static void test_ends(void **state)
{
    float in[64 + 64 + 33], absmax[3];
    uint8_t codes[(sizeof in / sizeof *in + 1) / 2];
    uint64_t seed = 3, n = sizeof in / sizeof *in;
    (void)state;
    for (uint64_t i = 0; i < n; i++)
        in[i] = i < 64 ? 0.0f : (float)((int)model_below(&seed, 2001) - 1000) / 999.0f;
    fsdpck_quantize_nf4(in, n, 64, codes, absmax);
    assert_true(absmax[0] == 0 && absmax[1] == fsdpck_quantize_amax(in + 64, 64));
    for (uint64_t i = 0; i < n; i++) {
        float x = i < 64 ? 0 : i < 128 ? in[i] * (1.0f / absmax[1]) : in[i] / absmax[2];
        assert_int_equal(codes[i / 2] >> (i % 2 ? 0 : 4) & 15, nearest_nf4(x));
    }
    assert_int_equal(codes[n / 2] & 15, 7); /* the code of 0 */
}

/* Blocks of any size, cut by any row length: every block alone gives the same codes and scale. */
static void test_partial_blocks(void **state)
{
    float in[40 * 200], block[40 * 200], scales[40 * 13], inv;
    uint8_t codes[40 * 200], alone[40 * 200];
    uint64_t seed = 9;
    (void)state;
    for (int round = 0; round < 200; round++) {
        const struct fsdpck_fp8_blocks b = { 1 + model_below(&seed, 40), 16 + model_below(&seed, 200), round % 2 };
        const struct fsdpck_fp8_blocks whole = { 1000, 1000, round % 2 };
        uint64_t nrows = 1 + model_below(&seed, 40), ncols = 1 + model_below(&seed, 200), at = 0;
        for (uint64_t i = 0; i < nrows * ncols; i++)
            in[i] = (float)((int)model_below(&seed, 4001) - 2000) * 0x1p-12f;
        fsdpck_quantize_fp8(in, nrows, ncols, &b, codes, scales);
        for (uint64_t i = 0; i < nrows; i += b.rows)
            for (uint64_t k = 0; k < ncols; k += b.cols, at++) {
                uint64_t nr = nrows - i < b.rows ? nrows - i : b.rows, nc = ncols - k < b.cols ? ncols - k : b.cols;
                for (uint64_t r = 0; r < nr; r++)
                    memcpy(block + r * nc, in + (i + r) * ncols + k, nc * sizeof *in);
                fsdpck_quantize_fp8(block, nr, nc, &whole, alone, &inv);
                assert_true(inv == scales[at]);
                for (uint64_t r = 0; r < nr; r++)
                    assert_memory_equal(codes + (i + r) * ncols + k, alone + r * nc, nc);
            }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_libraries), cmocka_unit_test(test_floor),
                                        cmocka_unit_test(test_e4m3), cmocka_unit_test(test_ends),
                                        cmocka_unit_test(test_partial_blocks) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
