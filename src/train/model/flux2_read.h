/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAIN_FLUX2_READ_H
#define TRAIN_FLUX2_READ_H

#include "model/model_reader.h"

/* Reads transformer/config.json of a FLUX.2 pipeline. */
void flux2_read(struct model_reader *r, struct model *m);
/* Refuses keys that are not in the list (nknown); those that begin with "_" say nothing of the maths. */
void model_refuse_unknown(struct model_reader *r, const char *const *known, size_t nknown);

#endif
