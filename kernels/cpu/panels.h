/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products from packed panels, on processors with AVX-512 (for bf16: AVX512-BF16 and no AMX). A kernel keeps a
 * tile of C in registers along all of K, also across added products (adapters). Then it applies alpha, bias and `add`,
 * and rounds. A unit is four bytes: one fp32, or two bf16 that are neighbours along K. An element of C is one fp32 sum
 * over K in order, in whatever tile it lies, so its bits depend on K only. */
#ifndef CPU_PANELS_H
#define CPU_PANELS_H

#include <kernels/types.h>

enum {
    CPU_PANEL_LANES = 16,  /* columns per vector */
    CPU_PANEL_VECTORS = 4, /* most vectors per strip */
    CPU_PANEL_WIDTH = CPU_PANEL_LANES * CPU_PANEL_VECTORS,
    CPU_PANEL_GROUP = 24, /* rows per group of a packed A: a multiple of the rows of every tile */
};

/* One of the products that are added. Unit u of row i of A is at a + i·row + u·unit bytes; B is (nunit, 16·nvec)
 * units, aligned to 64 bytes. */
struct cpu_panel_part {
    const char *a;
    int64_t row, unit;
    const float *b;
    int64_t nunit;
};

/* Destination of the rows of a strip: C = alpha·sum + bias + add, rounded once. Columns beyond ncol in the last vector
 * are not written. */
struct cpu_panel_out {
    struct kern_mat c;    /* starts at the strip's first element */
    struct kern_cmat add; /* likewise; data NULL: none */
    const float *bias;    /* (16·nvec) or NULL */
    float alpha;
    int64_t ncol;
};

struct cpu_panels {
    int64_t elements; /* elements per unit */
    /* Computes rows 0 … nrow-1 of a strip of nvec vectors. */
    void (*strip)(int64_t nrow, int nvec, const struct cpu_panel_part *parts, int nparts,
                  const struct cpu_panel_out *out);
    /* Finishes nrow rows of C from their transpose in sums: (ncol, CPU_PANEL_WIDTH), the first nrow columns of which
     * are used. */
    void (*store_transposed)(int64_t nrow, float *sums, const struct cpu_panel_out *out);
    /* Packs row j of src (ncol, k) as column j of dst (units of k, width). width is a multiple of 16. Missing elements
     * are 0. */
    void (*pack_rows)(float *dst, int64_t width, struct kern_cmat src, int64_t ncol, int64_t k);
    /* The same from src (k, ncol), with any width. */
    void (*pack_cols)(float *dst, int64_t width, struct kern_cmat src, int64_t ncol, int64_t k);
};

/* Returns NULL if oneDNN is faster or the only choice. */
const struct cpu_panels *cpu_panels_best(enum kern_dtype dtype);

/* These exist on x86-64 only. */
extern const struct cpu_panels cpu_panels_f32, cpu_panels_bf16;

#endif
