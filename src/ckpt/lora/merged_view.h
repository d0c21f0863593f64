/* SPDX-License-Identifier: Apache-2.0 */
/* A base with an adapter merged into its values, as a source. */
#ifndef CKPT_LORA_MERGED_VIEW_H
#define CKPT_LORA_MERGED_VIEW_H

#include "engine/transfer_plan.h"

/* Presents the base merged: its values pass through edit, which must outlive it. After a failure the base can only be
 * closed. */
int fsdpck_lora_merged_present(struct fsdpck_source *base, const struct fsdpck_edit *edit, struct fsdpck_error *err);
/* Of a source that presents a merge: whether the adapter changes a tensor, the source before the merge, and the merge
 * of elements [begin, begin + nelem). */
bool fsdpck_lora_merged_has(const struct fsdpck_source *src, size_t ordinal);
struct fsdpck_source *fsdpck_lora_merged_base(struct fsdpck_source *src);
int fsdpck_lora_merged_apply(const struct fsdpck_source *src, size_t ordinal, uint64_t begin, uint64_t nelem,
                             const void *in, void *out, struct fsdpck_error *err);

#endif
