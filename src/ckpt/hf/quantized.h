/* SPDX-License-Identifier: Apache-2.0 */
/* Recognises quantized weights: codes that have no meaning without their scales. Uses names and dtypes of tensors, and
 * the configuration of a model folder. */
#ifndef CKPT_QUANTIZED_H
#define CKPT_QUANTIZED_H

#include <fsdpck/source.h>

#include "engine/selection.h"
#include "hf/assets.h"

/* If the tensor is part of a quantized weight (its codes, a scale, a zero point, a table), returns the name of another
 * part of it, or the tensor's own name if that alone proves it; otherwise NULL. An 8-bit tensor without a scale beside
 * it is an ordinary one. */
const char *fsdpck_quantized_beside(const struct fsdpck_source *src, const struct fsdpck_tensor *t);

/* FSDPCK_ERR_UNSUPPORTED if one of the selected tensors is quantized, or if a configuration among the assets (NULL:
 * none) says that the model is. `why` ends the sentence: "--dtype would cast …". */
int fsdpck_quantized_refuse(const struct fsdpck_source *src, const struct fsdpck_selection *selection,
                            const struct fsdpck_assets_out *assets, const char *why, struct fsdpck_error *err);
/* Gives a note about selected tensors that a cast does not change: 8-bit floats outside quantized weights. */
void fsdpck_quantized_note_uncast(const struct fsdpck_selection *selection, const struct fsdpck_options *opt);
extern const char fsdpck_quantized_cast[];    /* why --dtype is refused */
extern const char fsdpck_quantized_merge[];   /* why merge-lora is refused */
extern const char fsdpck_quantized_average[]; /* why average is refused */

#endif
