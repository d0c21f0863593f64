/* SPDX-License-Identifier: Apache-2.0 */
/* Compresses one block of numbers, and decompresses it (FORMAT.md section 8.2). A block never grows: a block that does
 * not shrink is stored uncompressed, and its size shows that. Knows nothing of files. */
#ifndef CKPT_BLOCK_CODEC_H
#define CKPT_BLOCK_CODEC_H

#include "base/planes.h"

/* Workspaces of one thread, about 200 KiB each; NULL if out of memory. */
struct fsdpck_encoder;
struct fsdpck_encoder *fsdpck_encoder_new(void);
void fsdpck_encoder_free(struct fsdpck_encoder *e); /* does nothing for NULL */
struct fsdpck_decoder;
struct fsdpck_decoder *fsdpck_decoder_new(void);
void fsdpck_decoder_free(struct fsdpck_decoder *d); /* does nothing for NULL */

/* Fills out (room for nbytes) and returns the size of the stored block, at most nbytes. nbytes: 1 …
 * FSDPCK_BLOCK_NBYTES, whole numbers. */
uint32_t fsdpck_block_encode(struct fsdpck_encoder *e, const struct fsdpck_planes *p, const uint8_t *in,
                             uint32_t nbytes, uint8_t *out);
/* Decodes `stored` bytes to exactly nbytes; false if they do not decode to that size. in and out must not overlap. */
bool fsdpck_block_decode(struct fsdpck_decoder *d, const struct fsdpck_planes *p, const uint8_t *in, uint32_t stored,
                         uint8_t *out, uint32_t nbytes);

#endif
