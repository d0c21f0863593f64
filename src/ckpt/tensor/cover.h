/* SPDX-License-Identifier: Apache-2.0 */
/* Tells whether a set of boxes fills a tensor exactly: every element in one box, none in two. For sources whose chunks
 * follow no rule. */
#ifndef CKPT_COVER_H
#define CKPT_COVER_H

#include <fsdpck/error.h>

struct fsdpck_cover;

/* Makes room for nboxes boxes of a tensor. NULL: out of memory. */
struct fsdpck_cover *fsdpck_cover_new(uint32_t ndim, const uint64_t *shape, uint64_t nboxes, struct fsdpck_error *err);
/* offset and size must stay valid until the check. Skips empty boxes. */
void fsdpck_cover_add(struct fsdpck_cover *c, const uint64_t *offset, const uint64_t *size);
/* FSDPCK_ERR_FORMAT names two boxes that overlap or one outside the shape, FSDPCK_ERR_MISSING a hole. file and tensor
 * are for the message. Takes about n log n time for the grids that sharding makes. */
int fsdpck_cover_check(struct fsdpck_cover *c, const char *file, const char *tensor, struct fsdpck_error *err);
void fsdpck_cover_free(struct fsdpck_cover *c);

#endif
