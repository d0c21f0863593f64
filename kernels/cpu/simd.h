/* SPDX-License-Identifier: Apache-2.0 */
/* Loops over a strip of fp32 that profit from vector instructions. The files in simd/ are compiled once per instruction
 * set and fill one table each; the best one for the processor is chosen at run time. All tables are correct; they
 * differ in the last bits. Any two operands may be the same strip; otherwise none may overlap. */
#ifndef CPU_SIMD_H
#define CPU_SIMD_H

#include <kernels/random.h>
#include <kernels/types.h>

/* Kernels process rows in strips of this many elements, so that widened values fit on the stack and in the L1 cache. */
enum { CPU_STRIP = 1024 };

/* Constants of one AdamW step, rounded to fp32. */
struct cpu_adamw {
    float grad_scale, keep, one_minus_beta1, beta2, one_minus_beta2, step_size, inv_sqrt_bias2, eps;
};

struct cpu_simd {
    const char *name;

    void (*widen)(float *dst, const uint16_t *src, int64_t n);
    void (*narrow)(uint16_t *dst, const float *src, int64_t n);

    void (*add)(float *dst, const float *a, const float *b, int64_t n);
    void (*scale)(float *dst, const float *src, float factor, int64_t n);
    void (*add_scaled)(float *dst, const float *src, float factor, int64_t n); /* dst += factor · src */

    double (*sum_squares)(const float *x, int64_t n);
    float (*dot)(const float *a, const float *b, int64_t n);
    float (*dot3)(const float *a, const float *b, const float *c, int64_t n);          /* Σ a·b·c */
    void (*norm)(float *y, const float *x, const float *gamma, float rstd, int64_t n); /* y = x · rstd · gamma */
    void (*norm_grad)(float *dx, const float *dy, const float *gamma, const float *x, float rstd, float c,
                      int64_t n); /* dx = rstd·dy·gamma - c·x */
    void (*norm_gamma)(float *sum, const float *dy, const float *x, float rstd, int64_t n); /* sum += dy · x · rstd */

    void (*rotate)(float *low, float *high, const float *cosines, const float *sines, float sign, int64_t n);
    void (*swiglu)(float *y, const float *gate, const float *up, int64_t n);
    void (*swiglu_grad)(float *dgate, float *dup, const float *gate, const float *up, const float *dy, int64_t n);

    float (*max)(const float *x, int64_t n);                               /* -inf for n = 0 */
    float (*sum_exp)(const float *x, float scale, float shift, int64_t n); /* Σ exp(x·scale - shift) */
    float (*exp)(float *y, const float *x, float scale, float shift,
                 int64_t n); /* y = exp(x·scale - shift); returns Σ y */
    void (*softmax_grad)(float *ds, const float *p, const float *dp, float delta, float scale,
                         int64_t n); /* ds = p·(dp - delta)·scale */

    void (*adamw)(float *p, float *m, float *v, const float *g, const struct cpu_adamw *, int64_t n);
    /* y = x · keep if the element's uniform number is at least p, else 0. index: that of the first element. */
    void (*dropout)(float *y, const float *x, float p, float keep, const struct kern_philox *, uint64_t index,
                    int64_t n);

    /* For bf16 rows (nrow, n) at pitch. dot_rows: y[row] = row · x. add_scaled_rows: y (n) += Σ factors[row] · row. */
    void (*dot_rows)(float *y, const uint16_t *w, int64_t pitch, const float *x, int64_t nrow, int64_t n);
    void (*add_scaled_rows)(float *y, const uint16_t *w, int64_t pitch, const float *factors, int64_t nrow, int64_t n);

    /* Value of each code times the scale, as bf16: of E4M3 codes, and of codes first … first+n-1 of nibbles, the low
     * one of a byte first. */
    void (*scale_e4m3)(uint16_t *dst, const uint8_t *codes, float scale, int64_t n);
    void (*scale_nibbles)(uint16_t *dst, const uint8_t *codes, const float values[16], float scale, int64_t first,
                          int64_t n);
};

const struct cpu_simd *cpu_simd_best(void);
/* All tables that this processor can run, best first, ended by NULL; for tests. */
const struct cpu_simd *const *cpu_simd_all(void);

/* The last two exist on x86-64 only. */
extern const struct cpu_simd cpu_simd_base, cpu_simd_avx2, cpu_simd_avx512;

#endif
