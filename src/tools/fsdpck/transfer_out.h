/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the result of convert, reshard, export and the LoRA verbs. */
#ifndef TOOLS_TRANSFER_OUT_H
#define TOOLS_TRANSFER_OUT_H

#include <fsdpck/convert.h>

/* mesh: NULL for outputs without ranks. Returns the exit code. */
int transfer_out_print(const char *out, const struct fsdpck_mesh *mesh, const struct fsdpck_transfer_result *result,
                       bool json);

#endif
