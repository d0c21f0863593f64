/* SPDX-License-Identifier: Apache-2.0 */
/* Dequantizes packed rows, eight elements a thread. */
#include "cuda/ops.h"
#include "cuda/vec.cuh"

namespace {

/* Exponent and mantissa, moved to those of an fp32 number, are one whose exponent is too small by 120. */
__device__ __forceinline__ float e4m3(uint32_t code)
{
    const uint32_t sign = (code & 0x80) << 24;
    if ((code & 0x7f) == 0x7f)
        return float_of(0x7fc00000 | sign);
    return float_of(bits_of(float_of((code & 0x7f) << 20) * 0x1p120f) | sign);
}

__device__ __forceinline__ float e8m0(uint32_t code)
{
    return float_of(code == 0 ? 0x00400000u : code == 255 ? 0x7fc00000u : code << 23);
}

struct dequantize_op {
    struct kern_dequantize d;
    __device__ float scale_of(const uint8_t *row, uint32_t group) const
    {
        const uint8_t *scales = row + d.form.scales_at;
        if (d.form.scale == KERN_SCALE_F32)
            return reinterpret_cast<const float *>(scales)[group];
        if (d.form.scale == KERN_SCALE_E8M0)
            return e8m0(scales[group]);
        const float global = *reinterpret_cast<const float *>(row + d.form.global_at), scale = e4m3(scales[group]);
        return d.form.scale == KERN_SCALE_E4M3_TIMES ? scale * global : scale / global;
    }
    __device__ float value_of(const uint8_t *row, int64_t col) const
    {
        return d.form.code == KERN_CODE_E4M3 ? e4m3(row[col]) : d.form.values[row[col / 2] >> (col % 2 * 4) & 15];
    }
    __device__ float one(int64_t row, int64_t col) const
    {
        const uint8_t *bytes = static_cast<const uint8_t *>(d.rows) + row * d.form.pitch;
        const int64_t phase = d.form.flat ? (d.first + row) * d.ncol % d.form.group : 0;
        return widen(narrow(value_of(bytes, col) * scale_of(bytes, (uint32_t)((phase + col) / d.form.group))));
    }
    template <types K> __device__ void at(int64_t row, int64_t col, int n, bool whole) const
    {
        const uint8_t *bytes = static_cast<const uint8_t *>(d.rows) + row * d.form.pitch;
        const int64_t phase = d.form.flat ? (d.first + row) * d.ncol % d.form.group : 0;
        uint32_t group = UINT32_MAX;
        float scale = 0;
        f8 x = {};
        for (int i = 0; i < n; i++) {
            const uint32_t now = (uint32_t)((phase + col + i) / d.form.group);
            if (now != group)
                scale = scale_of(bytes, now);
            group = now;
            x.v[i] = widen(narrow(value_of(bytes, col + i) * scale));
        }
        store8<K>(d.to, row, col, n, whole, x);
    }
};

/* Rows become columns: row and col are those of the result. */
struct turned_op {
    dequantize_op rows;
    template <types K> __device__ void at(int64_t row, int64_t col, int n, bool whole) const
    {
        f8 x = {};
        for (int i = 0; i < n; i++)
            x.v[i] = rows.one(col + i, row);
        store8<K>(rows.d.to, row, col, n, whole, x);
    }
};

} // namespace

void cuda_dequantize(struct kern_stream *stream, const struct kern_dequantize *d)
{
    if (d->turned)
        for_eights(stream, { d->to }, d->ncol, d->nrow, turned_op{ { *d } });
    else
        for_eights(stream, { d->to }, d->nrow, d->ncol, dequantize_op{ *d });
}
