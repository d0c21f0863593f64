/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a set of boxes fills a tensor exactly: every element in one box, none in two. For sources whose chunks follow
 * no rule. */
#ifndef CKPT_COVER_H
#define CKPT_COVER_H

#include <fsdpck/error.h>

struct fsdpck_cover;

/* Room for nboxes boxes of a tensor. NULL when memory is out. */
struct fsdpck_cover *fsdpck_cover_new(uint32_t ndim, const uint64_t *shape, uint64_t nboxes, struct fsdpck_error *err);
/* offset and size must stay valid until the check. Empty boxes are passed over. */
void fsdpck_cover_add(struct fsdpck_cover *c, const uint64_t *offset, const uint64_t *size);
/* FSDPCK_ERR_FORMAT naming two boxes that overlap or one outside the shape, FSDPCK_ERR_MISSING for a hole. file and
 * tensor are for the message. Time about n log n for the grids that sharding makes. */
int fsdpck_cover_check(struct fsdpck_cover *c, const char *file, const char *tensor, struct fsdpck_error *err);
void fsdpck_cover_free(struct fsdpck_cover *c);

#endif
