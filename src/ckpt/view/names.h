/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a model's weights have the names that Hugging Face models are published with. */
#ifndef CKPT_VIEW_NAMES_H
#define CKPT_VIEW_NAMES_H

#include "engine/source_impl.h"

/* Refuses a source whose weights have another program's names, unless fsdpck_source_set_names() asked for them: a
 * folder of them would load without its weights. Megatron's names get a note only, because no --names keeps them.
 * folder: has config.json where the source has none, or NULL. Without config.json anywhere nothing is refused: some
 * models are published under such names. */
int fsdpck_source_check_published(struct fsdpck_source *src, const char *folder, struct fsdpck_error *err);

#endif
