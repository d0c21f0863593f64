/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes and runs of row-major tensors. All counts in elements. Pure arithmetic.
 *
 * The basis of everything here: the elements of a box, in the tensor's row-major order, are in the box's own row-major
 * order. So a contiguous range of the tensor intersects a dense chunk in one contiguous range of that chunk, whatever
 * the chunk's box. */
#ifndef CKPT_BOX_H
#define CKPT_BOX_H

#include <fsdpck/tensor.h>

uint64_t fsdpck_box_nelem(const uint64_t *size, uint32_t ndim);
/* Computes the intersection of two boxes; false if it is empty. out_* may alias a_*. */
bool fsdpck_box_intersect(uint32_t ndim, const uint64_t *a_offset, const uint64_t *a_size, const uint64_t *b_offset,
                          const uint64_t *b_size, uint64_t *out_offset, uint64_t *out_size);
/* Returns whether offset + size is inside shape, without overflow. */
bool fsdpck_box_inside(uint32_t ndim, const uint64_t *offset, const uint64_t *size, const uint64_t *shape);
/* Returns the number of the box's elements before flat position `flat` of the tensor: the tensor's range [a, b)
 * intersects the box in the box's own range [rank(a), rank(b)). shape: of the tensor. */
uint64_t fsdpck_box_elements_before(uint32_t ndim, const uint64_t *shape, const uint64_t *offset, const uint64_t *size,
                                    uint64_t flat);
/* Computes the first and one past the last flat position of the box in the tensor; it is contiguous if end - begin ==
 * nelem. */
void fsdpck_box_span(uint32_t ndim, const uint64_t *shape, const uint64_t *offset, const uint64_t *size,
                     uint64_t *begin, uint64_t *end);
/* Splits the flat range [begin, end) of a tensor into at most 2*ndim+1 boxes, in order. A nonzero return of visit stops
 * the loop and is returned. */
int fsdpck_range_boxes(uint32_t ndim, const uint64_t *shape, uint64_t begin, uint64_t end, fsdpck_box_fn visit,
                       void *ctx);

/* Copies a box of elements between two strided buffers. size: (ndim); strides in bytes, signed. Joins contiguous
 * dimensions first. */
void fsdpck_copy_strided(uint32_t ndim, const uint64_t *size, uint64_t element_nbytes, void *dst,
                         const int64_t *dst_strides, const void *src, const int64_t *src_strides);
/* Computes the byte strides of a dense row-major box. */
void fsdpck_dense_strides(uint32_t ndim, const uint64_t *size, uint64_t element_nbytes, int64_t *strides);

#endif
