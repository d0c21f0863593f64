/* SPDX-License-Identifier: Apache-2.0 */
/* Measures what quantizing again takes from a change of weights. */
#ifndef CKPT_LORA_ROUNDING_H
#define CKPT_LORA_ROUNDING_H

#include <pthread.h>

#include "quant/decode.h"
#include "quant/targets.h"

/* Sums of squares over elements of one weight. */
struct fsdpck_rounding {
    pthread_mutex_t lock;
    double error, change; /* of quantized - exact, of exact - before */
};

/* Elements of one row of a weight. */
struct fsdpck_rounding_row {
    const uint8_t *codes; /* of the first element; packed forms: it is the first of its byte */
    const void *scales;   /* of the first element's block, as the form stores them */
    uint64_t phase;       /* of the first element in its block */
    uint64_t nelem;
    const float *before, *exact;
};

/* Dequantizes the row and adds to the sums. global: of NVFP4. room: (2 * nelem) floats. */
void fsdpck_rounding_add(const struct fsdpck_quant_target_form *form, float global,
                         const struct fsdpck_rounding_row *row, float *room, double *error, double *change);

#endif
