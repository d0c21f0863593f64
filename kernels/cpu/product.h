/* SPDX-License-Identifier: Apache-2.0 */
/* A product whose operands may be masked by dropout while they are read. */
#ifndef CPU_PRODUCT_H
#define CPU_PRODUCT_H

#include <kernels/gemm.h>

/* drop_a and drop_b mask an operand: element (row, col) of the matrix as stored. alpha must include the scale 1/(1-p),
 * so that masking does not round. p = 0: no mask. */
struct cpu_product {
    struct kern_gemm g;
    struct kern_dropout drop_a, drop_b;
};

#endif
