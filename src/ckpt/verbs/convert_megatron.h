/* SPDX-License-Identifier: Apache-2.0 */
/* The files that Megatron-core reads beside a DCP checkpoint. */
#ifndef CKPT_CONVERT_MEGATRON_H
#define CKPT_CONVERT_MEGATRON_H

#include "commit/commit.h"

int fsdpck_convert_write_megatron(const struct fsdpck_io *io, struct fsdpck_commit *commit, struct fsdpck_error *err);

#endif
