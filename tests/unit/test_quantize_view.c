/* SPDX-License-Identifier: Apache-2.0 */
/* Sources whose weights are quantized while they are read: against what the real libraries stored (fixtures/quant), and
 * random weights against the quantizers; boxes against the whole; memory; refusals. */
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
#include "../support/sanitized.h"
#include "../support/tree.h"
#include "quant/encode.h"
#include "quant/pack.h"
#include "quant/quantize.h"

static const char *const forms[] = { "fp8-block", "mxfp4", "nvfp4", "nf4" };
enum { NFORMS = sizeof forms / sizeof *forms };

static struct fsdpck_source *open_quantized(const char *path, const char *kind, const char *form)
{
    struct fsdpck_error err = { 0 };
    char text[2000];
    struct fsdpck_source *src = opened(path, kind);
    if (fsdpck_source_quantize(src, form, NULL, 0, &err))
        fail_msg("%s: %s", form, fsdpck_error_format(&err, text, sizeof text));
    return src;
}

/* Every tensor that the library stored, and no other, with its bytes. */
static void check_library(const char *form, const char *name, const char *source)
{
    const char *set = getenv("FSDPCK_FIXTURES"), *root = set ? set : "fixtures";
    char path[300];
    snprintf(path, sizeof path, "%s/quant/%s/model", root, name);
    struct fsdpck_source *want = opened(path, "hf");
    snprintf(path, sizeof path, "%s/quant/%s", root, source);
    struct fsdpck_source *src = open_quantized(path, "hf", form);
    opened_check_same(want, src);
    fsdpck_source_close(want);
    fsdpck_source_close(src);
}

static void test_libraries(void **state)
{
    (void)state;
    check_library("fp8-block", "fp8-block", "source-fp8-block");
    check_library("mxfp4", "mxfp4-ct", "source");
    check_library("nvfp4", "nvfp4-ct", "source");
    check_library("nf4", "bnb-nf4", "source");
}

/* ---- random weights ---- */

struct expected {
    uint8_t *codes, *scales;
    uint64_t codes_nbytes, scales_nbytes;
    float global;
};

static void fill(struct model_tensor *t, uint64_t *seed)
{
    for (uint64_t i = 0; i < t->nelem; i++) {
        float x = (float)((int)model_below(seed, 4001) - 2000) * (model_below(seed, 50) ? 0x1p-12f : 0x1p-6f);
        fsdpck_dtype_cast(FSDPCK_FLOAT32, &x, t->dtype, t->data + i * t->item, 1);
    }
}

static struct expected quantize_whole(const struct model_tensor *t, int form)
{
    const struct fsdpck_fp8_blocks blocks = { 128, 128, false };
    float *in = malloc(t->nelem * sizeof *in);
    struct expected e = { .codes = malloc(t->nelem + 1), .scales = malloc(t->nelem * sizeof(float)) };
    fsdpck_dtype_cast(t->dtype, t->data, FSDPCK_FLOAT32, in, t->nelem);
    e.codes_nbytes = form ? (t->nelem + 1) / 2 : t->nelem;
    e.scales_nbytes = form == 1 ? t->nelem / 32 : form == 2 ? t->nelem / 16 : (t->nelem + 63) / 64 * 4;
    if (form == 0) {
        e.scales_nbytes = (t->shape[0] + 127) / 128 * ((t->shape[1] + 127) / 128) * 4;
        fsdpck_quantize_fp8(in, t->shape[0], t->shape[1], &blocks, e.codes, (float *)(void *)e.scales);
    } else if (form == 1) {
        fsdpck_quantize_mxfp4(in, t->nelem, FSDPCK_MX_ROUNDED, e.codes, e.scales);
    } else if (form == 2) {
        e.global = fsdpck_nvfp4_global(fsdpck_quantize_amax(in, t->nelem), FSDPCK_NVFP4_COMPRESSED_TENSORS);
        fsdpck_quantize_nvfp4(in, t->nelem, e.global, FSDPCK_NVFP4_COMPRESSED_TENSORS, e.codes, e.scales);
    } else {
        fsdpck_quantize_nf4(in, t->nelem, 64, e.codes, (float *)(void *)e.scales);
    }
    free(in);
    return e;
}

/* The part with this suffix is these bytes, read whole and in random boxes. */
static void check_part(struct fsdpck_source *src, const char *weight, const char *suffix, const void *want,
                       uint64_t nbytes, uint64_t *seed)
{
    char name[100];
    snprintf(name, sizeof name, "%s%s", weight, suffix);
    const struct fsdpck_tensor *t = fsdpck_source_find(src, name);
    if (!t)
        fail_msg("no %s", name);
    assert_int_equal(t->nbytes, nbytes);
    for (int i = 0; i < 6; i++)
        opened_check_box(src, t, want, seed);
    uint8_t *got = opened_read(src, t);
    assert_memory_equal(got, want, nbytes);
    free(got);
}

static void check_weight(struct fsdpck_source *src, const struct model_tensor *t, int form, uint64_t *seed)
{
    static const char *const codes[] = { "", "_packed", "_packed", "" }, *const scales[] = { "_scale_inv", "_scale",
                                                                                             "_scale", ".absmax" };
    struct expected e = quantize_whole(t, form);
    check_part(src, t->name, scales[form], e.scales, e.scales_nbytes, seed);
    check_part(src, t->name, codes[form], e.codes, e.codes_nbytes, seed);
    if (form == 2)
        check_part(src, t->name, "_global_scale", &e.global, 4, seed);
    if (form == 3)
        check_part(src, t->name, ".quant_map", fsdpck_nf4_values, 64, seed);
    free(e.codes);
    free(e.scales);
}

/* Sanitizers see the small shapes. */
enum { FIRST_ROUND = SANITIZED ? 2 * NFORMS : 0 };

/* Shapes that end in partial blocks and groups, and one too wide for a row of blocks to be one piece. */
static void test_random(void **state)
{
    static const enum fsdpck_dtype dtypes[] = { FSDPCK_BFLOAT16, FSDPCK_FLOAT16, FSDPCK_FLOAT32 };
    static const uint64_t group[] = { 1, 32, 16, 1 };
    uint64_t seed = 5;
    char *folder = tree_new(), *path = tree_path(folder, "m.safetensors");
    (void)state;
    for (int round = FIRST_ROUND; round < 6 * NFORMS; round++) {
        struct model m = { 0 };
        int form = round % NFORMS;
        uint64_t g = group[form], wide = round / NFORMS;
        uint64_t shape[2] = { 1 + model_below(&seed, 300), g * (1 + model_below(&seed, 700 / g)) };
        if (wide < 2) {
            shape[0] = wide ? 129 : 260;
            shape[1] = wide ? 33024 : 8320;
        }
        fill(model_add(&m, &seed, dtypes[model_below(&seed, 3)], 2, shape), &seed);
        model_write_safetensors(&m, path);
        struct fsdpck_source *src = open_quantized(path, "safetensors", forms[form]);
        check_weight(src, m.tensors, form, &seed);
        fsdpck_source_close(src);
        model_free(&m);
    }
    tree_remove(folder);
    free(folder);
    free(path);
}

/* ---- cost ---- */

/* A plan counts the pass for the largest value of NVFP4, and an encoder keeps to its memory. */
static void test_cost(void **state)
{
    struct model m = { 0 };
    uint64_t seed = 1, shape[2] = { 200, 8320 };
    char *folder = tree_new(), *path = tree_path(folder, "m.safetensors");
    (void)state;
    fill(model_add(&m, &seed, FSDPCK_BFLOAT16, 2, shape), &seed);
    model_write_safetensors(&m, path);
    for (int form = 0; form < NFORMS; form++) {
        struct fsdpck_source *src = open_quantized(path, "safetensors", forms[form]), *plain = opened(path, NULL);
        struct fsdpck_read read = { .tensor = fsdpck_source_tensor(src, 0) };
        struct fsdpck_plan plan;
        assert_int_equal(fsdpck_source_plan(src, &read, 1, &plan, NULL), 0);
        assert_int_equal(plan.needed_nbytes, m.tensors->nbytes * (form == 2 ? 2 : 1));

        struct fsdpck_quant_targets targets;
        struct fsdpck_quant_encoder e;
        struct fsdpck_arena arena = { 0 };
        struct fsdpck_fetch f = { .src = plain };
        const struct fsdpck_matrix_box all = { 0, read.tensor->shape[0], 0, read.tensor->shape[1] };
        void *out = malloc(read.tensor->nbytes);
        assert_int_equal(
            fsdpck_quant_targets_choose(plain, fsdpck_quant_target_form(forms[form]), NULL, 0, &arena, &targets, NULL),
            0);
        assert_int_equal(fsdpck_quant_encoder_init(&e, plain, &targets, NULL), 0);
        assert_int_equal(fsdpck_quant_encode(&e, &f, targets.list, FSDPCK_OUT_CODES, &all, out, all.ncols, NULL), 0);

        struct fsdpck_kept_scales *kept = &targets.list->kept; /* the scales need no second pass over the weight */
        struct fsdpck_matrix_box scales = { 0, forms[form][0] == 'f' ? 2 : 200, 0, 0 };
        if (form == 3)
            scales.nrows = 1;
        scales.ncols = kept->nunits * kept->unit_nbytes / scales.nrows / (form == 0 || form == 3 ? 4 : 1);
        const uint64_t before = f.read_nbytes;
        e.target = NULL;
        assert_int_equal(fsdpck_quant_encode(&e, &f, targets.list, FSDPCK_OUT_SCALES, &scales, out,
                                             kept->nunits * kept->unit_nbytes / scales.nrows, NULL),
                         0);
        assert_int_equal(f.read_nbytes, before);
        assert_true(kept->ended && targets.kept_nbytes == 0);
        assert_true(e.raw.nbytes + e.in.nbytes + e.part.nbytes + e.codes.nbytes + e.scales.nbytes <=
                    fsdpck_quant_encoder_nbytes(&targets));
        fsdpck_quant_encoder_free(&e);
        fsdpck_quant_targets_free(&targets);
        fsdpck_arena_free(&arena);
        fsdpck_source_close(plain);
        fsdpck_source_close(src);
        free(out);
    }
    model_free(&m);
    tree_remove(folder);
    free(folder);
    free(path);
}

/* Rows of NF4 have room for all scales that they may need, however long a file says that its blocks are. */
static void test_packed_rows(void **state)
{
    static const uint64_t groups[] = { 1, 2, 6, 62, 64, 100, UINT64_C(1) << 63, UINT64_MAX };
    (void)state;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        const uint64_t cols = 62, g = groups[i];
        struct fsdpck_quant_weight w = { .nmat = 1, .ndim = 2, .shape = { 8, cols }, .flat = true, .group_cols = g };
        struct fsdpck_packed p;
        w.code = FSDPCK_DECODE_NIBBLE;
        w.packing = FSDPCK_PACK_HIGH;
        w.via = FSDPCK_BFLOAT16;
        for (int k = 0; k < FSDPCK_QUANT_NPARTS; k++)
            w.part[k] = SIZE_MAX;
        assert_true(fsdpck_quant_packed(NULL, &w, &p));
        for (uint64_t row = 0; row < 8; row++) {
            const uint64_t n = ((row + 1) * cols - 1) / g - row * cols / g + 1;
            assert_true(p.scales_at == 32 && p.scales_at + n * sizeof(float) <= p.row_nbytes);
        }
        assert_true(p.row_nbytes <= 32 + (cols / g + 2) * sizeof(float));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_libraries), cmocka_unit_test(test_packed_rows),
                                        cmocka_unit_test(test_random), cmocka_unit_test(test_cost) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
