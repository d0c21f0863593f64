/* SPDX-License-Identifier: Apache-2.0 */
/* Adds parameters and linear layers to a layout: for the files that know a family's blocks. */
#ifndef TRAIN_LAYOUT_BUILD_H
#define TRAIN_LAYOUT_BUILD_H

#include "model/layout.h"

struct target;

struct layout_builder {
    const struct model *m;
    const struct train_config *config;
    const struct packed_weights *packed;
    struct layout *l;
    struct fsdpck_error *err;
    size_t ntargets;
    bool *rank_used, *alpha_used; /* (lora.nrank_pattern), (lora.nalpha_pattern) true: some module has its r or alpha
                                     from this pattern */
    int rc;
};

/* How "all-linear" and DoRA take a layer. Experts and their router are parameters of other modules in transformers 5:
 * PEFT counts them among the linear modules all the same, and has no DoRA for them. */
enum layer_kind { LAYER_LINEAR, LAYER_HEAD, LAYER_EMBEDDING, LAYER_EXPERT };

/* Adds a parameter of the base, or its trained copy, in the group `group`; ncol 0: one dimension. path: its module.
 * source: the module that has the tensor in the base's files. constant: as in struct param, and fp32. Returns its
 * number; -1 after a failure, which b->rc tells. */
int32_t build_base_param(struct layout_builder *b, uint32_t group, int64_t nrow, int64_t ncol, const char *path,
                         const char *source, const char *suffix, bool constant);
int32_t build_param_of(struct layout_builder *b, uint32_t group, int64_t nrow, int64_t ncol, const char *path,
                       const char *source, const char *suffix);
int32_t build_param(struct layout_builder *b, uint32_t group, int64_t nrow, int64_t ncol, const char *path,
                    const char *suffix);

/* Keeps the parameter quantized if its weight is. nrow, ncol: of the quantized rows. */
void build_choose_packed(struct layout_builder *b, int32_t number, int64_t nrow, int64_t ncol);

/* A linear layer without bias and adapter; one with what the config chooses. */
struct linear build_weight(struct layout_builder *b, uint32_t group, int64_t nin, int64_t nout, const char *path);
struct linear build_linear(struct layout_builder *b, uint32_t group, int64_t nin, int64_t nout, bool bias,
                           const char *path);
/* Gives the layer rank and scale if the config chooses it. */
void build_choose_adapter(struct layout_builder *b, struct linear *x, enum layer_kind kind);
/* Gives the layer rank and scale, and counts their patterns as used. */
void build_take_target(struct layout_builder *b, const struct target *t, struct linear *x);
/* Adds a parameter that LoRA introduces. Returns its number; -1 after a failure. */
int32_t build_adapter(struct layout_builder *b, uint32_t group, int64_t nrow, int64_t ncol, const char *path,
                      const char *suffix);
/* Adds the adapters of layers that share their input. All A are adjacent, so that they and their gradients can be used
 * as one matrix. */
void build_adapters(struct layout_builder *b, uint32_t group, struct linear *const *layers, int n);

#endif
