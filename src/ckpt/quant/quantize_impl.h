/* SPDX-License-Identifier: Apache-2.0 */
/* The loops that the quantizers share. */
#ifndef CKPT_QUANT_QUANTIZE_IMPL_H
#define CKPT_QUANT_QUANTIZE_IMPL_H

#include "quant/quantize.h"

/* Values that are scaled, by a factor or a divisor of each group, and become codes. */
struct fsdpck_encoding {
    enum { FSDPCK_CODES_E4M3, FSDPCK_CODES_E2M1, FSDPCK_CODES_E2M1_SIGNED_ZERO, FSDPCK_CODES_NF4 } kind;
    bool divide;
    const float *by; /* one for each group */
    uint64_t group;  /* elements: a divisor or a multiple of 64 */
    const float *midpoints;
};

void fsdpck_quantize_codes(const struct fsdpck_encoding *c, const float *in, uint64_t nelem, uint8_t *out);
/* Largest absolute values of groups. */
void fsdpck_quantize_amax_each(const float *in, uint64_t ngroups, uint64_t group, float *out);
/* The exponent of a group's scale. most: the largest code. */
int fsdpck_mx_exponent(float amax, float most, enum fsdpck_mx_rule rule);

#endif
