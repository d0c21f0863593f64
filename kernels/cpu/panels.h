/* SPDX-License-Identifier: Apache-2.0 */
/* Own matrix products from packed panels, where the processor has AVX-512 (for bf16 AVX512-BF16 without AMX): small kernels that keep a tile of C in registers
 * while they go along K, also through several products that are added (adapters), and finish it on the way out. A unit is four bytes: one fp32, or two bf16
 * that follow each other along K. An element of C is one fp32 sum over K in order, whatever the tile that it lies in: its bits depend on K alone. */
#ifndef CPU_PANELS_H
#define CPU_PANELS_H

#include <kernels/types.h>

enum {
    CPU_PANEL_LANES = 16,  /* columns of a vector */
    CPU_PANEL_VECTORS = 4, /* of a strip at most */
    CPU_PANEL_WIDTH = CPU_PANEL_LANES * CPU_PANEL_VECTORS,
    CPU_PANEL_GROUP = 24,  /* rows of a packed A: a multiple of every tile's */
};

/* One product of those that are added. Row i's unit u of A is at a + i·row + u·unit bytes; B is (nunit, 16·nvec) units, aligned to 64 bytes. */
struct cpu_panel_part {
    const char *a;
    int64_t row, unit;
    const float *b;
    int64_t nunit;
};

/* Where a strip's rows go: C = alpha·sum + bias + add, rounded once. Columns of the last vector that do not exist are left alone. */
struct cpu_panel_out {
    struct kern_mat c;     /* from the strip's first element on */
    struct kern_cmat add;  /* the same; data NULL: none */
    const float *bias;     /* (16·nvec) or NULL */
    float alpha;
    int64_t ncol;
};

struct cpu_panels {
    int64_t elements; /* of a unit */
    /* Rows 0 … nrow-1 of a strip of nvec vectors. */
    void (*strip)(int64_t nrow, int nvec, const struct cpu_panel_part *parts, int nparts, const struct cpu_panel_out *out);
    /* The same end for C's transpose, which lies in sums: (ncol, CPU_PANEL_WIDTH), of which the first nrow of each are C's rows. */
    void (*turn)(int64_t nrow, float *sums, const struct cpu_panel_out *out);
    /* dst (units of k, width): unit u of column j from row j of src, (ncol, k); width is a multiple of 16. What is not there is 0. */
    void (*pack_rows)(float *dst, int64_t width, struct kern_cmat src, int64_t ncol, int64_t k);
    /* The same from src (k, ncol); any width. */
    void (*pack_cols)(float *dst, int64_t width, struct kern_cmat src, int64_t ncol, int64_t k);
};

/* NULL where oneDNN is the better choice, or the only one. */
const struct cpu_panels *cpu_panels_best(enum kern_dtype dtype);

/* On x86-64 only. */
extern const struct cpu_panels cpu_panels_f32, cpu_panels_bf16;

#endif
