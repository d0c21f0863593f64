/* SPDX-License-Identifier: Apache-2.0 */
/* Dequantized rows of every form, of random shapes, against a scalar reference: the same bits, but for the payload of
 * a NaN. */
#include "harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct kind {
    enum kern_code code;
    enum kern_code_scale scale;
    int64_t group;
    bool flat;
};

static const struct kind kinds[] = {
    { KERN_CODE_E4M3, KERN_SCALE_F32, 128, false },            /* block FP8 */
    { KERN_CODE_E4M3, KERN_SCALE_F32, 1 << 20, false },        /* one scale a row */
    { KERN_CODE_E4M3, KERN_SCALE_E8M0, 32, false },            /* MXFP8 */
    { KERN_CODE_NIBBLES, KERN_SCALE_E8M0, 32, false },         /* MXFP4 */
    { KERN_CODE_NIBBLES, KERN_SCALE_E4M3_TIMES, 16, false },   /* NVFP4 */
    { KERN_CODE_NIBBLES, KERN_SCALE_E4M3_DIVIDED, 16, false }, /* NVFP4 of compressed-tensors */
    { KERN_CODE_NIBBLES, KERN_SCALE_F32, 64, true },           /* NF4 */
    { KERN_CODE_NIBBLES, KERN_SCALE_F32, 7, true },            /* groups that begin in the middle of a byte */
};

static int64_t below(struct rig *rig, int64_t n)
{
    return (int64_t)((rig_uniform(rig) + 1) / 2 * (double)n) % n;
}

static double e4m3(int code)
{
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const double x = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    return (code & 0x7f) == 0x7f ? (double)NAN : code & 0x80 ? -x : x;
}

static float scale_of(const struct kern_packed *form, const unsigned char *row, int64_t group)
{
    float scale, global;
    if (form->scale == KERN_SCALE_F32) {
        memcpy(&scale, row + form->scales_at + 4 * group, 4);
        return scale;
    }
    const int code = row[form->scales_at + group];
    if (form->scale == KERN_SCALE_E8M0)
        return (float)ldexp(1, code - 127);
    memcpy(&global, row + form->global_at, 4);
    return form->scale == KERN_SCALE_E4M3_TIMES ? (float)e4m3(code) * global : (float)e4m3(code) / global;
}

static float wanted(const struct kern_dequantize *d, int64_t row, int64_t col)
{
    const struct kern_packed *form = &d->form;
    const unsigned char *bytes = (const unsigned char *)d->rows + row * form->pitch;
    const int64_t at = (form->flat ? (d->first + row) * d->ncol % form->group : 0) + col;
    const float scale = scale_of(form, bytes, at / form->group);
    const float value =
        form->code == KERN_CODE_E4M3 ? (float)e4m3(bytes[col]) : form->values[bytes[col / 2] >> (col % 2 * 4) & 15];
    const float product = value * scale;
    uint32_t bits;
    memcpy(&bits, &product, 4);
    bits = product != product ? bits : (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    float out;
    memcpy(&out, &bits, 4);
    return out;
}

/* Random bytes; scales and the scale of all scales are finite. */
static void fill(struct rig *rig, const struct kern_dequantize *d, unsigned char *rows)
{
    const struct kern_packed *form = &d->form;
    const int64_t nscales = kern_packed_nscales(form, d->ncol);
    for (int64_t i = 0; i < d->nrow * form->pitch; i++)
        rows[i] = (unsigned char)below(rig, 256);
    for (int64_t row = 0; row < d->nrow; row++) {
        unsigned char *scales = rows + row * form->pitch + form->scales_at;
        const float global = (float)(0.01 + fabs(rig_uniform(rig)));
        for (int64_t g = 0; g < nscales; g++) {
            const float scale = (float)(rig_uniform(rig) * pow(2, (double)below(rig, 12) - 8));
            if (form->scale == KERN_SCALE_F32)
                memcpy(scales + 4 * g, &scale, 4);
            else
                scales[g] = (unsigned char)(form->scale == KERN_SCALE_E8M0 ? below(rig, 255) : below(rig, 127));
        }
        if (form->scale >= KERN_SCALE_E4M3_TIMES)
            memcpy(rows + row * form->pitch + form->global_at, &global, 4);
    }
}

static void check_bits(struct rig *rig, const struct kern_dequantize *d, const struct matrix *m)
{
    for (int64_t row = 0; row < d->nrow; row++)
        for (int64_t col = 0; col < d->ncol; col++) {
            const float want = wanted(d, row, col), is = (float)(d->turned ? at(m, col, row) : at(m, row, col));
            if (memcmp(&want, &is, 4) != 0 && (want == want || is == is))
                fail_msg("row %lld, column %lld: %a, not %a", (long long)row, (long long)col, (double)is, (double)want);
            rig->hash = rig->hash * 31 + (is == is ? (uint64_t)(int64_t)(is * 1024) : 7);
        }
}

static void one(struct rig *rig, const struct kind *kind, int64_t nrow, int64_t ncol, bool turned)
{
    struct kern_dequantize d = {
        .nrow = nrow,
        .ncol = ncol,
        .form = { .code = kind->code, .scale = kind->scale, .group = kind->group, .flat = kind->flat },
        .first = kind->flat ? below(rig, 1000) : 0,
        .turned = turned
    };
    struct kern_packed *form = &d.form;
    form->scales_at = ((kind->code == KERN_CODE_E4M3 ? ncol : ncol / 2) + 3) / 4 * 4;
    form->global_at =
        (form->scales_at + kern_packed_nscales(form, ncol) * (kind->scale == KERN_SCALE_F32 ? 4 : 1) + 3) / 4 * 4;
    form->pitch = form->global_at + 4;
    for (int i = 0; i < 16; i++)
        form->values[i] = (float)rig_uniform(rig);
    unsigned char *rows = must_alloc((size_t)(nrow * form->pitch));
    fill(rig, &d, rows);
    struct matrix m = turned ? matrix_new(ncol, nrow, rig->dtype) : matrix_new(nrow, ncol, rig->dtype);
    d.rows = rows;
    d.to = view(&m);
    rig->ops->dequantize(rig->stream, &d);
    check_stream(rig);
    check_bits(rig, &d, &m);
    matrix_free(&m);
    must_free(rows);
}

static void every_kind(struct rig *rig)
{
    static const int64_t shapes[][2] = { { 1, 2 }, { 3, 64 }, { 5, 130 }, { 2, 2050 } };
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            one(rig, &kinds[k], shapes[i][0], shapes[i][1], i % 2);
        for (int i = 0; i < 6; i++)
            one(rig, &kinds[k], 1 + below(rig, 40), 2 * (1 + below(rig, 300)), i % 2);
    }
}

static void test_dequantize(void **state)
{
    (void)state;
    rig_run_all(every_kind);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_dequantize) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
