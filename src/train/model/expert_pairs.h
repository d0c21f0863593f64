/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters of parameters (lora.target_parameters): the weights of all experts of a layer, which transformers has as
 * one parameter each, and the router's. */
#ifndef TRAIN_EXPERT_PAIRS_H
#define TRAIN_EXPERT_PAIRS_H

#include "config/target.h"
#include "model/layout_build.h"

/* The config's choice for a layer. */
struct expert_pairs {
    char path[LAYOUT_NAME];      /* "model.layers.0.mlp.experts", also where the files have another name */
    struct target gate_up, down; /* of gate_up_proj and down_proj */
};

/* block: "model.layers.0". */
void expert_pairs_find(struct layout_builder *b, const char *block, struct expert_pairs *out);
/* Gives a layer of an expert the adapter that lora.target_modules chooses. */
void expert_pairs_choose_adapter(struct layout_builder *b, const struct expert_pairs *pairs, struct linear *x);
/* Adds the pairs of factors, and gives each expert's layers their parts. */
void expert_pairs_add(struct layout_builder *b, uint32_t group, const struct expert_pairs *pairs, struct layer *layer);
/* Gives the router rank and scale if lora.target_parameters chooses its weight. */
void router_pair_choose(struct layout_builder *b, const char *block, struct linear *router);

#endif
