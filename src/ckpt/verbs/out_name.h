/* SPDX-License-Identifier: Apache-2.0 */
/* Whether OUT can be meant as a folder: a name that ends as files do was meant as one. */
#ifndef CKPT_OUT_NAME_H
#define CKPT_OUT_NAME_H

#include <fsdpck/io.h>

/* FSDPCK_ERR_USAGE where `out` ends as a file of some kind ("model.bin", "out.txt") and is no folder that is there. A trailing slash means a folder. */
int fsdpck_out_is_folder(const struct fsdpck_io *io, const char *out, const char *verb_makes, struct fsdpck_error *err);

#endif
