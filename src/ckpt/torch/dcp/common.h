/* SPDX-License-Identifier: Apache-2.0 */
/* What Megatron-core's common.pt says of a checkpoint. */
#ifndef CKPT_MEGATRON_COMMON_H
#define CKPT_MEGATRON_COMMON_H

#include "engine/source_impl.h"

struct fsdpck_megatron_common {
    bool norms_plus_one; /* --apply-layernorm-1p: norms multiply by 1 + weight */
};

/* Reads common.pt in a folder below the source ("": in it), if there is one. FSDPCK_ERR_UNSUPPORTED: its pickle asks
 * for what has no place there. */
int fsdpck_megatron_common_read(const struct fsdpck_source *src, const char *folder, struct fsdpck_megatron_common *out,
                                struct fsdpck_error *err);
/* Returns the folder, below `path`, of the newest save that latest_checkpointed_iteration.txt names, malloc'ed; NULL:
 * there is no such file, or no folder that it names. */
char *fsdpck_megatron_latest(const struct fsdpck_io *io, const char *path);
/* Writes the folder's name for the line of that file: "7" and "release" are iter_0000007 and release. */
void fsdpck_megatron_folder(const char *line, char *out, size_t nbytes);

#define FSDPCK_MEGATRON_LATEST "latest_checkpointed_iteration.txt"

#endif
