/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes, runs and strided copies: the arithmetic of every plan. It knows shapes and strides, no files. */
#include "tensor/box.h"

#include <string.h>

uint64_t fsdpck_box_nelem(const uint64_t *size, uint32_t ndim)
{
    uint64_t n = 1;
    for (uint32_t d = 0; d < ndim; d++)
        n *= size[d];
    return n;
}

bool fsdpck_box_intersect(uint32_t ndim, const uint64_t *a_offset, const uint64_t *a_size, const uint64_t *b_offset,
                          const uint64_t *b_size, uint64_t *out_offset, uint64_t *out_size)
{
    bool any = true;
    for (uint32_t d = 0; d < ndim; d++) {
        uint64_t a_end = a_offset[d] + a_size[d], b_end = b_offset[d] + b_size[d];
        uint64_t begin = a_offset[d] > b_offset[d] ? a_offset[d] : b_offset[d];
        uint64_t end = a_end < b_end ? a_end : b_end;
        out_offset[d] = begin;
        out_size[d] = end > begin ? end - begin : 0;
        any = any && out_size[d] != 0;
    }
    return any;
}

bool fsdpck_box_inside(uint32_t ndim, const uint64_t *offset, const uint64_t *size, const uint64_t *shape)
{
    for (uint32_t d = 0; d < ndim; d++)
        if (offset[d] > shape[d] || size[d] > shape[d] - offset[d])
            return false;
    return true;
}

uint64_t fsdpck_box_elements_before(uint32_t ndim, const uint64_t *shape, const uint64_t *offset, const uint64_t *size,
                                    uint64_t flat)
{
    uint64_t nelem = fsdpck_box_nelem(size, ndim), inner = fsdpck_box_nelem(shape, ndim), before = 0;
    if (nelem == 0 || flat >= inner)
        return nelem; /* also ndim 0 with flat > 0 */
    for (uint32_t d = 0; d < ndim; d++) {
        inner /= shape[d];
        nelem /= size[d];
        uint64_t at = flat / inner;
        flat %= inner;
        if (at < offset[d])
            return before;
        if (at - offset[d] >= size[d])
            return before + size[d] * nelem;
        before += (at - offset[d]) * nelem;
    }
    return before;
}

void fsdpck_box_span(uint32_t ndim, const uint64_t *shape, const uint64_t *offset, const uint64_t *size,
                     uint64_t *begin, uint64_t *end)
{
    uint64_t first = 0, last = 0;
    if (fsdpck_box_nelem(size, ndim) == 0) {
        *begin = *end = 0;
        return;
    }
    for (uint32_t d = 0; d < ndim; d++) {
        first = first * shape[d] + offset[d];
        last = last * shape[d] + offset[d] + size[d] - 1;
    }
    *begin = first;
    *end = last + 1;
}

/* Returns the outermost dimension whose whole slices fit between `at` and end; sets *inner to the elements of such a
 * slice. */
static uint32_t widest_slice(uint32_t ndim, const uint64_t *shape, uint64_t at, uint64_t end, uint64_t *inner)
{
    uint32_t d = ndim - 1;
    *inner = 1;
    while (d > 0) {
        uint64_t wider = *inner * shape[d];
        if (at % wider != 0 || end - at < wider)
            break;
        *inner = wider;
        d--;
    }
    return d;
}

int fsdpck_range_boxes(uint32_t ndim, const uint64_t *shape, uint64_t begin, uint64_t end, fsdpck_box_fn visit,
                       void *ctx)
{
    uint64_t offset[FSDPCK_MAX_DIMS + 1] = { 0 }, size[FSDPCK_MAX_DIMS + 1] = { 0 };
    if (ndim == 0)
        return begin < end ? visit(ctx, offset, size) : 0;
    while (begin < end) {
        uint64_t inner, at, n;
        uint32_t d = widest_slice(ndim, shape, begin, end, &inner);
        for (uint32_t i = d + 1; i < ndim; i++) {
            offset[i] = 0;
            size[i] = shape[i];
        }
        at = begin / inner;
        offset[d] = at % shape[d];
        n = (end - begin) / inner;
        size[d] = n < shape[d] - offset[d] ? n : shape[d] - offset[d];
        at /= shape[d];
        for (uint32_t i = d; i-- > 0; at /= shape[i]) {
            offset[i] = at % shape[i];
            size[i] = 1;
        }
        int rc = visit(ctx, offset, size);
        if (rc)
            return rc;
        begin += size[d] * inner;
    }
    return 0;
}

void fsdpck_dense_strides(uint32_t ndim, const uint64_t *size, uint64_t element_nbytes, int64_t *strides)
{
    uint64_t stride = element_nbytes;
    for (uint32_t d = ndim; d-- > 0;) {
        strides[d] = (int64_t)stride;
        stride *= size[d];
    }
}
