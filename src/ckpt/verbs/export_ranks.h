/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts an export into what each rank of vLLM's tensor parallelism holds (its sharded_state). */
#ifndef CKPT_EXPORT_RANKS_H
#define CKPT_EXPORT_RANKS_H

#include "verbs/export_impl.h"

/* Before the tensors are chosen: makes the source present the weights as vLLM joins them. */
int fsdpck_export_ranks_begin(struct export *x);
/* After they are listed, whole: lists the parts of each rank instead, rank after rank. */
int fsdpck_export_ranks_cut(struct export *x);
/* Writes the name of a file into `name`: model-rank-R-part-P.safetensors. uuid: of a save in place, else NULL. */
void fsdpck_export_ranks_name(const struct export *x, size_t file, const char *uuid, char *name, size_t nbytes);

#endif
