/* SPDX-License-Identifier: Apache-2.0 */
/* Spells a shape for messages. */
#ifndef CKPT_SHAPE_TEXT_H
#define CKPT_SHAPE_TEXT_H

#include <fsdpck/tensor.h>

/* Writes "[4, 8]", cut off at nbytes including NUL; returns buf. */
const char *fsdpck_shape_text(const struct fsdpck_tensor *t, char *buf, size_t nbytes);

#endif
