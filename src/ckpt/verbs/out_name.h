/* SPDX-License-Identifier: Apache-2.0 */
/* Tells whether OUT can be a folder's name: a name with a file's ending counts as a file. */
#ifndef CKPT_OUT_NAME_H
#define CKPT_OUT_NAME_H

#include <fsdpck/io.h>

/* FSDPCK_ERR_USAGE if `out` ends like a file ("model.bin", "out.txt") and is not an existing folder. A trailing slash
 * means a folder. */
int fsdpck_out_is_folder(const struct fsdpck_io *io, const char *out, const char *verb_makes, struct fsdpck_error *err);

#endif
