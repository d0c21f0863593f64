/* SPDX-License-Identifier: Apache-2.0 */
/* Scales that are quantized themselves, as bitsandbytes does: less an offset, by the largest of each nested block, to
 * the nearest value of a map. Map and offset are those that the weight had: the offset is no more than a good guess of
 * the mean, and it stands in JSON whose length must not change. */
#include "quant/encode.h"

#include <math.h>
#include <string.h>

static unsigned nearest(const float map[256], float x)
{
    unsigned best = 0;
    for (unsigned i = 1; i < 256; i++)
        if (fabsf(map[i] - x) < fabsf(map[best] - x))
            best = i;
    return best;
}

/* absmax: (n) of one nested block, which become less by the offset. Returns the largest value. */
static float subtract(const struct fsdpck_quant_nested *q, float *absmax, uint64_t n)
{
    float most = 0;
    for (uint64_t i = 0; i < n; i++) {
        absmax[i] -= q->offset;
        most = fabsf(absmax[i]) > most ? fabsf(absmax[i]) : most;
    }
    return most;
}

/* As its reader computes it: the product is rounded before the sum. */
static float seen(const struct fsdpck_quant_nested *q, unsigned code, float most)
{
    volatile float product = q->map[code] * most;
    return product + q->offset;
}

/* Scales [from, to) of the block, as codes or as a reader sees them. */
static void put(const struct fsdpck_quant_nested *q, const float *x, float most, uint64_t from, uint64_t to, bool codes,
                uint8_t *dst)
{
    for (uint64_t i = from; i < to; i++) {
        const unsigned code = nearest(q->map, most > 0 ? x[i] / most : 0);
        const float value = seen(q, code, most);
        if (codes)
            dst[i - from] = (uint8_t)code;
        else
            memcpy(dst + (i - from) * sizeof value, &value, sizeof value);
    }
}

int fsdpck_quant_encode_nested(struct fsdpck_quant_encoder *e, struct fsdpck_fetch *f,
                               struct fsdpck_quant_target *target, enum fsdpck_quant_output output,
                               const struct fsdpck_matrix_box *box, uint8_t *dst, struct fsdpck_error *err)
{
    const struct fsdpck_quant_nested *q = target->nested;
    const uint64_t all = (target->cols - 1) / target->form->group_cols + 1, begin = box->col, end = begin + box->ncols;
    const bool blocks = output == FSDPCK_OUT_NESTED;
    int rc = fsdpck_quant_reserve(&e->nested, (q->block < all ? q->block : all) * sizeof(float), err);
    float *x = e->nested.data;
    for (uint64_t b = blocks ? begin : begin / q->block; b < (blocks ? end : (end - 1) / q->block + 1) && !rc; b++) {
        const uint64_t first = b * q->block, n = all - first < q->block ? all - first : q->block;
        const struct fsdpck_matrix_box whole = { 0, 1, first, n };
        rc = fsdpck_quant_encode_scales(e, f, target, &whole, x, n * sizeof *x, err);
        if (rc || f->dry)
            continue;
        const float most = subtract(q, x, n);
        const uint64_t from = begin > first ? begin - first : 0, to = end - first < n ? end - first : n;
        if (blocks)
            memcpy(dst + (b - begin) * sizeof most, &most, sizeof most);
        else
            put(q, x, most, from, to, output == FSDPCK_OUT_SCALES,
                dst + (first + from - begin) * (output == FSDPCK_OUT_SCALES ? 1 : sizeof(float)));
    }
    return rc;
}
