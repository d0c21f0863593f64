/* SPDX-License-Identifier: Apache-2.0 */
/* The decoder layers of a model, by the names of their tensors. */
#ifndef CKPT_DOCTOR_LAYERS_H
#define CKPT_DOCTOR_LAYERS_H

#include "doctor/model.h"

/* Splits "model.layers.3.mlp.gate.weight" into the layer's number and *rest, "mlp.gate.weight". prefix:
 * "model.layers.". Returns false for other names. */
bool fsdpck_doctor_split(const char *name, const char *prefix, uint64_t *index, const char **rest);
/* Returns the prefix that the language model's layers have, or NULL if the model has no such names. */
const char *fsdpck_doctor_layer_prefix(const struct doctor_model *m);
/* Returns the number of routed experts that config.json states, or 0. */
uint64_t fsdpck_doctor_experts_count(const struct doctor_model *m);

/* Gets the prefix "mtp." of layers for multi-token prediction that stand beside the model, and how many there are: 1 +
 * the highest number. Returns false if there are no such names. */
bool fsdpck_doctor_mtp_prefix(const struct doctor_model *m, char *out, size_t nbytes, uint64_t *nlayers);

/* Returns whether the folder holds some modules of a model, such as a tool's example: nothing tells what else should be
 * in it. */
bool fsdpck_doctor_is_fragment(const struct doctor_model *m);

enum { DOCTOR_MAX_LAYERS = 4096 };

#endif
