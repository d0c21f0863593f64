/* SPDX-License-Identifier: Apache-2.0 */
/* One tensor chunk as a self-contained torch.save zip: the envelope around a payload, for .distcp files (FORMAT.md
 * "Items"). Two steps: first the geometry, before any payload byte is known; later the bytes, when its CRC-32 is
 * known. */
#ifndef CKPT_ITEM_H
#define CKPT_ITEM_H

#include <fsdpck/tensor.h>

struct fsdpck_item_layout {
    uint64_t begin;       /* of the item in the file */
    uint64_t head_nbytes; /* envelope before the payload: payload = begin + head_nbytes */
    uint64_t payload_nbytes;
    uint64_t tail_nbytes; /* envelope after it */
};

/* Lays out an item that begins at file offset `begin` and holds a dense box of `size` ((ndim)) elements. A payload of
 * 64 KiB or more starts at a multiple of 4096 in the file, a smaller one at a multiple of 64. */
void fsdpck_item_lay_out(enum fsdpck_dtype dtype, uint32_t ndim, const uint64_t *size, uint64_t begin,
                         struct fsdpck_item_layout *out);
/* Writes the envelope's bytes: head (head_nbytes) and tail (tail_nbytes). crc32: of the payload. */
void fsdpck_item_write(enum fsdpck_dtype dtype, uint32_t ndim, const uint64_t *size,
                       const struct fsdpck_item_layout *layout, uint32_t crc32, uint8_t *head, uint8_t *tail);
/* Writes a non-tensor value: the zip around its pickle. Returns the zip's size; out NULL: only measures. */
uint64_t fsdpck_item_value(const void *pickle, uint64_t nbytes, uint8_t *out);
#define FSDPCK_ITEM_HEAD_MAX 12288u /* head_nbytes never exceeds it */
#define FSDPCK_ITEM_TAIL_MAX 1024u

#endif
