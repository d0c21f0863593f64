/* SPDX-License-Identifier: Apache-2.0 */
/* The weights of a frozen base that stay quantized: their shapes, and the form of their rows. Pure: holds no weights.
 */
#ifndef TRAIN_PACKED_H
#define TRAIN_PACKED_H

#include <fsdpck/error.h>
#include <kernels/dequantize.h>

struct packed_weight {
    char name[256];          /* of the weight in the model's files */
    int64_t nrow, ncol;      /* of experts in one tensor, the rows (outputs) of all, one expert after the other */
    struct kern_packed form; /* form.pitch: bytes of a row */
};

struct packed_weights {
    struct packed_weight *list; /* (n) by name */
    size_t n, capacity;
    char held[24]; /* as fsdpck_source_held() says it; empty: no weight of the base is quantized */
};

/* Appends a weight, for the caller to fill. NULL: out of memory. */
struct packed_weight *packed_add(struct packed_weights *p, struct fsdpck_error *err);
/* Call after the last packed_add(). */
void packed_sort(struct packed_weights *p);
/* Returns NULL if the weight is not packed. */
const struct packed_weight *packed_find(const struct packed_weights *p, const char *name);
void packed_free(struct packed_weights *p);

#endif
