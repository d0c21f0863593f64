/* SPDX-License-Identifier: Apache-2.0 */
/* Loops over strips of fp32. Compiled once per instruction set. */
#include "cpu/simd/table.h"
#include "cpu/simd/vec.h"

#include <math.h>

static void widen(float *dst, const uint16_t *src, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)src[i] << 16;
        memcpy(&dst[i], &bits, 4);
    }
}

/* Rounds to nearest even; NaN stays NaN: its payload may be truncated, so the quiet bit is set. */
static void narrow(uint16_t *dst, const float *src, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &src[i], 4);
        uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        uint32_t nan = bits >> 16 | 0x40;
        dst[i] = (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
    }
}

static void add(float *dst, const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = a[i] + b[i];
}

static void scale(float *dst, const float *src, float factor, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = src[i] * factor;
}

static void add_scaled(float *dst, const float *src, float factor, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] += src[i] * factor;
}

/* Sums in eight lanes, so that the order is the same for every instruction set with fp64 vectors. */
static double sum_squares(const float *x, int64_t n)
{
    double lane[8] = { 0 };
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++)
            lane[j] += (double)x[i + j] * (double)x[i + j];
    for (int j = 0; i < n; i++, j++)
        lane[j] += (double)x[i] * (double)x[i];
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

static float dot(const float *a, const float *b, int64_t n)
{
    vf s0 = { 0 }, s1 = { 0 };
    int64_t i = 0;
    for (; i + 2 * VL <= n; i += 2 * VL) {
        s0 += vload(a + i) * vload(b + i);
        s1 += vload(a + i + VL) * vload(b + i + VL);
    }
    for (; i < n; i += VL)
        s0 += n - i < VL ? vload_tail(a + i, n - i, 0) * vload_tail(b + i, n - i, 0) : vload(a + i) * vload(b + i);
    return vsum(s0 + s1);
}

static float dot3(const float *a, const float *b, const float *c, int64_t n)
{
    vf s = { 0 };
    for (int64_t i = 0; i < n; i += VL)
        s += n - i < VL ? vload_tail(a + i, n - i, 0) * vload_tail(b + i, n - i, 0) * vload_tail(c + i, n - i, 0)
                        : vload(a + i) * vload(b + i) * vload(c + i);
    return vsum(s);
}

static void norm(float *y, const float *x, const float *gamma, float rstd, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * rstd * gamma[i];
}

static void norm_grad(float *dx, const float *dy, const float *gamma, const float *x, float rstd, float c, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dx[i] = rstd * (dy[i] * gamma[i]) - c * x[i];
}

static void norm_gamma(float *sum, const float *dy, const float *x, float rstd, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] += dy[i] * (x[i] * rstd);
}

static void rotate(float *low, float *high, const float *cosines, const float *sines, float sign, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float a = low[i], b = high[i], s = sines[i] * sign;
        low[i] = a * cosines[i] - b * s;
        high[i] = b * cosines[i] + a * s;
    }
}

/* The loops below process a tail as a full vector, so an element's bits do not depend on where a strip ends. */
INLINE vf sigmoid(vf x)
{
    return 1.0f / (1.0f + vexp(-x));
}

INLINE vf load_some(const float *p, int64_t left)
{
    return left >= VL ? vload(p) : vload_tail(p, left, 0);
}

INLINE void store_some(float *p, vf v, int64_t left)
{
    if (left >= VL)
        vstore(p, v);
    else
        vstore_tail(p, v, left);
}

static void swiglu(float *y, const float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL) {
        vf g = load_some(gate + i, n - i);
        store_some(y + i, g * sigmoid(g) * load_some(up + i, n - i), n - i);
    }
}

static void swiglu_grad(float *dgate, float *dup, const float *gate, const float *up, const float *dy, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL) {
        vf g = load_some(gate + i, n - i), u = load_some(up + i, n - i), d = load_some(dy + i, n - i);
        vf s = sigmoid(g);
        store_some(dup + i, d * (g * s), n - i);
        store_some(dgate + i, d * u * (s + g * s * (1.0f - s)), n - i);
    }
}

/* Returns NaN if x contains one. A comparison would drop it, and a loss that should be NaN would look healthy. x·0
 * detects NaNs and infinities; if there are any, the elements are checked one by one. */
static float max(const float *x, int64_t n)
{
    vf m0 = vset(-INFINITY), m1 = m0, odd = { 0 };
    int64_t i = 0;
    for (; i + 2 * VL <= n; i += 2 * VL) {
        vf a = vload(x + i), b = vload(x + i + VL);
        m0 = vmax(a, m0);
        m1 = vmax(b, m1);
        odd += a * 0.0f + b * 0.0f;
    }
    for (; i < n; i += VL) {
        vf v = n - i < VL ? vload_tail(x + i, n - i, -INFINITY) : vload(x + i);
        m0 = vmax(v, m0);
        odd += n - i < VL ? vload_tail(x + i, n - i, 0) * 0.0f : v * 0.0f;
    }
    if (vsum(odd) != 0)
        for (i = 0; i < n; i++)
            if (x[i] != x[i])
                return x[i];
    return vtop(vmax(m0, m1));
}

static float sum_exp(const float *x, float factor, float shift, int64_t n)
{
    vf s = { 0 };
    for (int64_t i = 0; i < n; i += VL)
        s += vexp((n - i < VL ? vload_tail(x + i, n - i, -INFINITY) : vload(x + i)) * factor - shift);
    return vsum(s);
}

static float exp_strip(float *y, const float *x, float factor, float shift, int64_t n)
{
    vf s = { 0 };
    for (int64_t i = 0; i < n; i += VL) {
        vf e = vexp((n - i < VL ? vload_tail(x + i, n - i, -INFINITY) : vload(x + i)) * factor - shift);
        store_some(y + i, e, n - i);
        s += e;
    }
    return vsum(s);
}

static void softmax_grad(float *ds, const float *p, const float *dp, float delta, float factor, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        ds[i] = p[i] * (dp[i] - delta) * factor;
}

static void adamw(float *p, float *m, float *v, const float *g, const struct cpu_adamw *c, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float grad = g[i] * c->grad_scale;
        float mean = m[i] + (grad - m[i]) * c->one_minus_beta1;
        float square = v[i] * c->beta2 + grad * grad * c->one_minus_beta2;
        m[i] = mean;
        v[i] = square;
        p[i] = p[i] * c->keep - c->step_size * mean / (sqrtf(square) * c->inv_sqrt_bias2 + c->eps);
    }
}

const struct cpu_simd SIMD_TABLE = {
    .name = SIMD_NAME,
    .widen = widen,
    .narrow = narrow,
    .add = add,
    .scale = scale,
    .add_scaled = add_scaled,
    .sum_squares = sum_squares,
    .dot = dot,
    .dot3 = dot3,
    .norm = norm,
    .norm_grad = norm_grad,
    .norm_gamma = norm_gamma,
    .rotate = rotate,
    .swiglu = swiglu,
    .swiglu_grad = swiglu_grad,
    .max = max,
    .sum_exp = sum_exp,
    .exp = exp_strip,
    .softmax_grad = softmax_grad,
    .adamw = adamw,
    .dropout = SIMD_DROPOUT,
    .dot_rows = SIMD_DOT_ROWS,
    .add_scaled_rows = SIMD_ADD_SCALED_ROWS,
    .scale_e4m3 = SIMD_SCALE_E4M3,
    .scale_nibbles = SIMD_SCALE_NIBBLES,
};
