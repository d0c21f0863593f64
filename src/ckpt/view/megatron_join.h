/* SPDX-License-Identifier: Apache-2.0 */
/* A tensor of Megatron's, joined from weights as they are published: those of all layers and experts, where these are
 * dimensions. */
#ifndef CKPT_MEGATRON_JOIN_H
#define CKPT_MEGATRON_JOIN_H

#include "view/layout.h"
#include "view/megatron_table.h"

struct fsdpck_megatron_join {
    struct fsdpck_layout *layout;
    const struct fsdpck_megatron_config *config;
    uint32_t nlead;                    /* leading dimensions */
    uint64_t lead_shape[2], lead[2];   /* their sizes; where the next parts go */
    const struct fsdpck_tensor *first; /* the first part: all have its dtype and number of columns; NULL: none so far */
    uint64_t nrows;                    /* of one layer's, or expert's */
    struct fsdpck_vec boxes;
};

void fsdpck_megatron_join_begin(struct fsdpck_megatron_join *j, struct fsdpck_layout *layout,
                                const struct fsdpck_megatron_config *config);
/* Adds the rows of 1, 2 or 3 weights (as in a row of the table) at j->lead. ordinals: in the inner source. */
int fsdpck_megatron_join_parts(struct fsdpck_megatron_join *j, const size_t *ordinals, int nparts,
                               struct fsdpck_error *err);
/* Lists the tensor. */
int fsdpck_megatron_join_end(struct fsdpck_megatron_join *j, const char *name, struct fsdpck_error *err);
void fsdpck_megatron_join_free(struct fsdpck_megatron_join *j);

#endif
