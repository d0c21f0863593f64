/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a product with the panel kernels of panels.h as a plan says: which operand gives the rows, how the product is
 * cut into pieces and into blocks along K, whether A is packed. An element of C has the same bits under every plan. */
#ifndef CPU_PACKED_RUN_H
#define CPU_PACKED_RUN_H

#include "cpu/panels.h"

#include <kernels/gemm.h>

struct kern_stream;

enum { CPU_PACKED_PARTS = 8 };

struct cpu_packed_plan {
    bool transposed;    /* compute Cᵀ = Bᵀ · Aᵀ */
    bool pack_a;        /* false: read A in place, except for parts whose rows do not fill the panels' grain */
    bool pack_b;        /* false: read whole strips of B in place (fp32, not transposed) */
    int nvec;           /* vectors per strip */
    int64_t rows, cols; /* of a piece; cols is a multiple of the strip's width */
    int64_t units;      /* most units of K per block: packed B of a piece stays in a worker's cache */
};

/* One of the products that are added: C += a · b, as in kern_gemm. */
struct cpu_packed_part {
    struct kern_cmat a, b;
    int64_t k;
    bool trans_a, trans_b;
    int64_t at; /* units of K in the parts before this one */
};

struct cpu_packed {
    struct kern_stream *stream;
    const struct cpu_panels *panels;
    const struct kern_gemm *g;
    int64_t m, n; /* rows and columns of the product as computed, which may be transposed */
    struct cpu_packed_part parts[CPU_PACKED_PARTS];
    int nparts;
    int64_t units; /* units of K over all parts */
    struct cpu_packed_plan plan;
};

/* Number of parts of at most `each` in n. */
static inline int64_t cpu_packed_cut(int64_t n, int64_t each)
{
    return (n + each - 1) / each;
}

/* Units of K that k elements of a part take. */
static inline int64_t cpu_packed_units(const struct cpu_packed *w, int64_t k)
{
    const int64_t grain = w->panels->grain;
    return cpu_packed_cut(k, w->panels->elements * grain) * grain;
}

/* Returns true if the kernels can read A of this part in place: rows of their type, in whole grains. */
static inline bool cpu_packed_row_fits(const struct cpu_packed *w, const struct cpu_packed_part *o)
{
    return o->a.dtype == (w->panels->elements == 2 ? KERN_BF16 : KERN_F32) &&
           o->k % (w->panels->elements * w->panels->grain) == 0;
}

/* w: as collected, not transposed. Out of memory: sets the stream's error. */
void cpu_packed_run(const struct cpu_packed *w, const struct cpu_packed_plan *plan);

#endif
