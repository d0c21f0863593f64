/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products from packed panels, on processors with AVX-512. bf16 is multiplied as such by AMX and by AMD's
 * AVX512-BF16, and widened to fp32 where the processor has no such instruction, or a slow one. A kernel keeps a tile of
 * C in registers along all of K, also across added products (adapters). Then it applies alpha, bias and `add`, and
 * rounds. A unit is four bytes: one fp32, or two bf16 that are neighbours along K. An element of C is one fp32 sum over
 * K in order, in whatever tile it lies, so its bits depend on K only. */
#ifndef CPU_PANELS_H
#define CPU_PANELS_H

#include <kernels/types.h>

enum {
    CPU_PANEL_LANES = 16,  /* columns per vector */
    CPU_PANEL_VECTORS = 4, /* most vectors per strip */
    CPU_PANEL_WIDTH = CPU_PANEL_LANES * CPU_PANEL_VECTORS,
    CPU_PANEL_GROUP = 24, /* rows per group of a transposed A that pack_cols packs */
};

/* One of the products that are added. Unit u of row i of A is at a + i·row + u·unit bytes (kernels with
 * pack_transposed: unit is 4); B is (nunit, 16·nvec) units, aligned to 64 bytes. nunit is a multiple of the grain. */
struct cpu_panel_part {
    const char *a;
    int64_t row, unit;
    const float *b;
    int64_t pitch; /* floats from one unit of B to the next */
    int64_t nunit;
};

/* Destination of the rows of a strip: C = alpha·sum + bias + add, rounded once. Columns beyond ncol in the last vector
 * are not written. start, unless NULL, is where the sums start from instead of 0: whole vectors in every row. It may be
 * C. */
struct cpu_panel_out {
    struct kern_mat c;    /* starts at the strip's first element */
    struct kern_cmat add; /* likewise; data NULL: none */
    const float *bias;    /* (16·nvec) or NULL */
    float alpha;
    int64_t ncol;
    const float *start;
    int64_t start_pitch;
};

struct cpu_panels {
    int64_t elements; /* elements per unit */
    int64_t grain;    /* K of each part is filled up with 0 to a multiple of this many units, and is cut only there */
    int64_t rows;     /* rows of A that all strips take in turn, so that they stay in the cache */
    /* A thread calls enter before its first strip and leave after its last. NULL: nothing to do. */
    void (*enter)(void);
    void (*leave)(void);
    /* Computes rows 0 … nrow-1 of a strip of nvec vectors. */
    void (*strip)(int64_t nrow, int nvec, const struct cpu_panel_part *parts, int nparts,
                  const struct cpu_panel_out *out);
    /* Finishes nrow rows of C from their transpose in sums: (ncol, CPU_PANEL_WIDTH), the first nrow columns of which
     * are used. */
    void (*store_transposed)(int64_t nrow, float *sums, const struct cpu_panel_out *out);
    /* Packs row j of src (ncol, k) as column j of dst (units of k, width); width is a multiple of 16. Missing elements
     * are 0. Panels of fp32 widen a bf16 src. */
    void (*pack_rows)(float *dst, int64_t width, struct kern_cmat src, int64_t ncol, int64_t k);
    /* The same from src (k, ncol), with any width. */
    void (*pack_cols)(float *dst, int64_t width, struct kern_cmat src, int64_t ncol, int64_t k);
    /* Packs column j of src (k, ncol) as row j of dst, for kernels that read whole rows of A: units of k, filled up
     * with 0 to a multiple of 16. NULL: A is packed by pack_cols in groups of CPU_PANEL_GROUP rows, over which
     * `unit` steps. */
    void (*pack_transposed)(float *dst, int64_t pitch, struct kern_cmat src, int64_t ncol, int64_t k);
};

/* Returns the panels that multiply this type, NULL if oneDNN is faster or the only choice. */
const struct cpu_panels *cpu_panels_best(enum kern_dtype dtype);

/* These exist on x86-64 only. */
extern const struct cpu_panels cpu_panels_f32, cpu_panels_bf16, cpu_panels_amx;

#endif
