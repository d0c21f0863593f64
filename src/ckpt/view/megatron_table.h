/* SPDX-License-Identifier: Apache-2.0 */
/* What a layer's tensors are called in Megatron-core and in Hugging Face models, and which of them a layer has. */
#ifndef CKPT_MEGATRON_TABLE_H
#define CKPT_MEGATRON_TABLE_H

#include "view/megatron_config.h"

enum { FSDPCK_MEGATRON_MAX_PARTS = 3 };

/* A tensor of a layer, or of an expert, and what its rows are, in order. */
struct fsdpck_megatron_row {
    const char *from;                          /* after "decoder.layers.N.", or the expert */
    const char *to[FSDPCK_MEGATRON_MAX_PARTS]; /* one: the tensor; two: its halves; three: q, k and v by groups */
    enum { ANY, INPUT_HIDDEN, OUTPUT_HIDDEN } hidden; /* which side of the matrix is hidden_size wide */
    unsigned needs;                                   /* traits of a layer that has it */
};

/* All end with a row without names. The parts of an expert are called as in an mlp. The last: what a layer for
 * multi-token prediction has beside a layer, after "mtp.layers.K.". */
extern const struct fsdpck_megatron_row fsdpck_megatron_layer_rows[], fsdpck_megatron_expert_rows[],
    fsdpck_megatron_mtp_rows[];

/* Returns the row of a tensor in a layer of these traits, or NULL. */
const struct fsdpck_megatron_row *fsdpck_megatron_find(const struct fsdpck_megatron_row *rows, const char *from,
                                                       unsigned traits);
/* Writes the published name of part `to` of a layer's tensor, or of an expert's. */
void fsdpck_megatron_name(const struct fsdpck_megatron_config *c, uint64_t layer, const char *to, char *out,
                          size_t nbytes);
void fsdpck_megatron_expert_name(const struct fsdpck_megatron_config *c, uint64_t layer, uint64_t expert,
                                 const char *to, char *out, size_t nbytes);
/* Fails if the source lacks a weight that config.json demands, or one of `nmtp` layers for multi-token prediction. */
int fsdpck_megatron_check_all(const struct fsdpck_source *src, const struct fsdpck_megatron_config *c, uint64_t nmtp,
                              struct fsdpck_error *err);

#endif
