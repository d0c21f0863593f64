/* SPDX-License-Identifier: Apache-2.0 */
/* Weights that real libraries quantized (fixtures/quant), as the trainer holds them: packed by the library, then
 * dequantized by the kernel, they are what the library dequantizes itself, bit for bit. Two pieces of code compute the
 * same formulas, as neither floor may use the other's; this test is why they cannot differ. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fsdpck/packed.h>
#include <kernels/memory.h>
#include <kernels/ops.h>
#include <kernels/pool.h>

/* Cases, with the number of their weights that stay packed. The others are dequantized: their forms are rounded in
 * another way, or have zero points. */
static const struct {
    const char *name, *how;
    int npacked;
} cases[] = {
    { "awq-int4", "as stored", 0 },
    { "bnb-fp4", "as stored", 2 },
    { "bnb-int8", "as stored", 0 },
    { "bnb-nf4", "as stored", 2 },
    { "bnb-nf4-double", "as stored", 2 },
    { "fp8-block", "as stored", 2 },
    { "fp8-block-ct", "as stored", 2 },
    { "fp8-block-ue8m0", "as stored", 2 },
    { "fp8-channel", "as stored", 2 },
    { "fp8-modelopt", "as stored", 2 },
    { "fp8-tensor", "as stored", 2 },
    { "int4-ct", "as stored", 0 },
    { "mxfp4-ct", "as stored", 2 },
    { "mxfp4-gptoss", "as stored", 1 },
    { "mxfp8-ct", "as stored", 2 },
    { "mxfp8-modelopt", "as stored", 2 },
    { "nvfp4-ct", "as stored", 2 },
    { "nvfp4-modelopt", "as stored", 2 },
    { "source", "nf4", 2 },
    { "source", "fp8-block", 2 },
    { "source", "mxfp4", 2 },
    { "source", "nvfp4", 2 },
    { "fp8-block", "bf16", 0 },
    { "source", "as stored", 0 },
};

struct rig {
    const struct kern_device *device;
    struct kern_pool *pool;
    struct kern_stream *stream;
    uint64_t random;
};

static uint64_t below(struct rig *rig, uint64_t n)
{
    rig->random = rig->random * 6364136223846793005u + 1442695040888963407u;
    return (rig->random >> 33) % n;
}

static void good(int rc, const struct fsdpck_error *err, const char *name)
{
    char text[2000];
    if (rc)
        fail_msg("%s: %s", name, fsdpck_error_format(err, text, sizeof text));
}

static struct fsdpck_source *open_source(const char *name)
{
    const char *set = getenv("FSDPCK_FIXTURES");
    struct fsdpck_error err = { 0 };
    struct fsdpck_source *src;
    char path[400];
    snprintf(path, sizeof path, "%s/quant/%s%s", set ? set : "fixtures", name, strcmp(name, "source") ? "/model" : "");
    good(fsdpck_source_open(path, NULL, NULL, &src, &err), &err, name);
    return src;
}

/* What the library makes of the values. */
static struct fsdpck_source *open_values(const char *name, const char *how)
{
    struct fsdpck_source *src = open_source(name);
    struct fsdpck_error err = { 0 };
    if (strcmp(how, "as stored") != 0 && strcmp(how, "bf16") != 0)
        good(fsdpck_source_quantize(src, how, NULL, 0, &err), &err, name);
    good(fsdpck_source_dequantize(src, FSDPCK_BFLOAT16, NULL, &err), &err, name);
    return src;
}

static void *read_box(struct fsdpck_source *src, const struct fsdpck_tensor *t, uint64_t row, uint64_t nrow,
                      uint64_t col, uint64_t ncol)
{
    struct fsdpck_error err = { 0 };
    const uint64_t offset[2] = { row, col }, size[2] = { nrow, ncol };
    void *out = calloc(nrow * ncol + 1, fsdpck_dtype_info(t->dtype)->nbytes);
    const struct fsdpck_read read = { .tensor = t, .offset = offset, .size = size, .dst = out };
    assert_non_null(out);
    good(fsdpck_source_read(src, &read, 1, &err), &err, t->name);
    return out;
}

/* [experts, in, out], with the outputs of all experts as rows. */
static uint16_t *read_experts(struct fsdpck_source *src, const struct fsdpck_tensor *t)
{
    struct fsdpck_error err = { 0 };
    const uint64_t zeros[3] = { 0 }, nin = t->shape[1], nout = t->shape[2];
    uint16_t *stored = calloc(t->nelem, sizeof *stored), *out = calloc(t->nelem, sizeof *out);
    const struct fsdpck_read read = { .tensor = t, .offset = zeros, .size = t->shape, .dst = stored };
    assert_non_null(stored);
    assert_non_null(out);
    good(fsdpck_source_read(src, &read, 1, &err), &err, t->name);
    for (uint64_t i = 0; i < t->nelem; i++)
        out[(i / (nin * nout) * nout + i % nout) * nin + i / nout % nin] = stored[i];
    free(stored);
    return out;
}

static struct kern_packed form_of(const struct fsdpck_packed *p)
{
    struct kern_packed form = { .code = p->code == FSDPCK_PACKED_E4M3 ? KERN_CODE_E4M3 : KERN_CODE_NIBBLES,
                                .scale = p->scale == FSDPCK_PACKED_F32          ? KERN_SCALE_F32
                                         : p->scale == FSDPCK_PACKED_E8M0       ? KERN_SCALE_E8M0
                                         : p->scale == FSDPCK_PACKED_E4M3_TIMES ? KERN_SCALE_E4M3_TIMES
                                                                                : KERN_SCALE_E4M3_DIVIDED,
                                .group = (int64_t)p->group,
                                .flat = p->flat,
                                .pitch = (int64_t)p->row_nbytes,
                                .scales_at = (int64_t)p->scales_at,
                                .global_at = (int64_t)p->global_at };
    memcpy(form.values, p->values, sizeof form.values);
    return form;
}

/* Rows [first, first + nrow), as a rank that owns them has them. */
static void check_rows(struct rig *rig, struct fsdpck_source *src, const struct fsdpck_tensor *t,
                       const struct fsdpck_packed *p, const uint16_t *values, uint64_t first, uint64_t nrow)
{
    void *rows = read_box(src, t, first, nrow, 0, p->row_nbytes);
    uint16_t *out = calloc(nrow * p->cols, sizeof *out);
    char message[KERN_MESSAGE_BYTES];
    assert_non_null(out);
    const struct kern_dequantize d = { .nrow = (int64_t)nrow,
                                       .ncol = (int64_t)p->cols,
                                       .form = form_of(p),
                                       .first = (int64_t)first,
                                       .rows = rows,
                                       .to = { out, (int64_t)p->cols, KERN_BF16 } };
    rig->device->ops->dequantize(rig->stream, &d);
    assert_int_equal(rig->device->stream_sync(rig->stream, message), KERN_OK);
    if (memcmp(out, values + first * p->cols, nrow * p->cols * sizeof *out) != 0)
        fail_msg("%s: rows %llu to %llu have other values", t->name, (unsigned long long)first,
                 (unsigned long long)(first + nrow));
    free(rows);
    free(out);
}

/* Any box of the packed rows is that part of the whole. */
static void check_box(struct rig *rig, struct fsdpck_source *src, const struct fsdpck_tensor *t, const uint8_t *whole)
{
    const uint64_t row = below(rig, t->shape[0]), col = below(rig, t->shape[1]),
                   nrow = 1 + below(rig, t->shape[0] - row), ncol = 1 + below(rig, t->shape[1] - col);
    uint8_t *box = read_box(src, t, row, nrow, col, ncol);
    for (uint64_t i = 0; i < nrow; i++)
        assert_memory_equal(box + i * ncol, whole + (row + i) * t->shape[1] + col, ncol);
    free(box);
}

static void check_packed(struct rig *rig, struct fsdpck_source *src, const struct fsdpck_tensor *t,
                         const struct fsdpck_packed *p, const uint16_t *values)
{
    uint8_t *whole = read_box(src, t, 0, t->shape[0], 0, t->shape[1]);
    assert_int_equal(t->dtype, FSDPCK_UINT8);
    assert_int_equal(p->row_nbytes % 4, 0);
    check_rows(rig, src, t, p, values, 0, p->rows);
    for (int i = 0; i < 5; i++) {
        const uint64_t first = below(rig, p->rows);
        check_rows(rig, src, t, p, values, first, 1 + below(rig, p->rows - first));
        check_box(rig, src, t, whole);
    }
    free(whole);
}

static void run_case(struct rig *rig, const char *name, const char *how, int wanted)
{
    struct fsdpck_source *values = open_values(name, how), *src = open_source(name);
    struct fsdpck_error err = { 0 };
    int npacked = 0;
    good(fsdpck_source_hold(src, how, &err), &err, name);
    assert_int_equal(fsdpck_source_ntensors(src), fsdpck_source_ntensors(values));
    for (size_t i = 0; i < fsdpck_source_ntensors(src); i++) {
        const struct fsdpck_tensor *t = fsdpck_source_tensor(src, i), *u = fsdpck_source_find(values, t->name);
        struct fsdpck_packed packed;
        bool is;
        assert_non_null(u);
        good(fsdpck_source_packed(src, t, &is, &packed, &err), &err, name);
        npacked += is;
        if ((u->ndim != 2 && !is) || (!is && t->dtype != u->dtype))
            continue;
        void *want = u->ndim == 3 ? read_experts(values, u) : read_box(values, u, 0, u->shape[0], 0, u->shape[1]);
        if (is) {
            check_packed(rig, src, t, &packed, want);
        } else {
            void *got = read_box(src, t, 0, t->shape[0], 0, t->shape[1]);
            assert_memory_equal(got, want, u->nbytes);
            free(got);
        }
        free(want);
    }
    if (npacked != wanted)
        fail_msg("%s, %s: %d weights are packed, not %d", name, how, npacked, wanted);
    fsdpck_source_close(src);
    fsdpck_source_close(values);
}

static void test_values(void **state)
{
    char message[KERN_MESSAGE_BYTES];
    struct rig rig = { .device = kern_device_find("cpu", message), .pool = kern_pool_new(2), .random = 1 };
    (void)state;
    assert_non_null(rig.device);
    assert_int_equal(rig.device->stream_new(0, rig.pool, &rig.stream, message), KERN_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        run_case(&rig, cases[i].name, cases[i].how, cases[i].npacked);
    rig.device->stream_free(rig.stream);
    kern_pool_free(rig.pool);
}

static void test_refused(void **state)
{
    struct fsdpck_error err = { 0 };
    struct fsdpck_source *src = open_source("source");
    (void)state;
    assert_int_equal(fsdpck_source_hold(src, "int3", &err), FSDPCK_ERR_USAGE);
    fsdpck_source_close(src);
    src = open_source("fp8-block");
    err = (struct fsdpck_error){ 0 };
    assert_int_equal(fsdpck_source_hold(src, "nf4", &err), FSDPCK_ERR_UNSUPPORTED);
    fsdpck_source_close(src);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_values), cmocka_unit_test(test_refused) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
