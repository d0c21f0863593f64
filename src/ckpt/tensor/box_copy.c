/* SPDX-License-Identifier: Apache-2.0 */
/* Copies a box of elements between two strided buffers, with as few and as long moves as the strides allow. It knows
 * only bytes. */
#include "tensor/box.h"

#include <string.h>

/* A loop nest, innermost dimension first. */
struct nest {
    uint32_t ndim;
    uint64_t run; /* bytes that are contiguous on both sides */
    uint64_t size[FSDPCK_MAX_DIMS];
    int64_t dst[FSDPCK_MAX_DIMS], src[FSDPCK_MAX_DIMS];
};

/* Drops dimensions of 1, and joins each dimension with its inner one if both sides are contiguous. False: nothing to
 * copy. */
static bool nest_make(struct nest *n, uint32_t ndim, const uint64_t *size, uint64_t element_nbytes, const int64_t *dst,
                      const int64_t *src)
{
    n->ndim = 0;
    n->run = element_nbytes;
    for (uint32_t d = ndim; d-- > 0;) {
        uint32_t in = n->ndim - 1;
        if (size[d] == 0)
            return false;
        if (size[d] == 1)
            continue;
        if (n->ndim == 0 && dst[d] == (int64_t)n->run && src[d] == (int64_t)n->run) {
            n->run *= size[d];
        } else if (n->ndim > 0 && dst[d] == n->dst[in] * (int64_t)n->size[in] &&
                   src[d] == n->src[in] * (int64_t)n->size[in]) {
            n->size[in] *= size[d];
        } else {
            n->size[n->ndim] = size[d];
            n->dst[n->ndim] = dst[d];
            n->src[n->ndim++] = src[d];
        }
    }
    return true;
}

/* A loop per width: the compiler turns each memcpy into one move. */
#define MOVE_LOOP(width) \
    for (uint64_t i = 0; i < count; i++) { \
        memcpy(dst, src, width); \
        dst += dst_stride; \
        src += src_stride; \
    } \
    break

static void copy_line(char *dst, int64_t dst_stride, const char *src, int64_t src_stride, uint64_t count, uint64_t run)
{
    switch (run) {
    case 1: MOVE_LOOP(1);
    case 2: MOVE_LOOP(2);
    case 4: MOVE_LOOP(4);
    case 8: MOVE_LOOP(8);
    case 16: MOVE_LOOP(16);
    case 32: MOVE_LOOP(32);
    default: MOVE_LOOP(run);
    }
}

void fsdpck_copy_strided(uint32_t ndim, const uint64_t *size, uint64_t element_nbytes, void *dst,
                         const int64_t *dst_strides, const void *src, const int64_t *src_strides)
{
    struct nest n;
    uint64_t at[FSDPCK_MAX_DIMS] = { 0 };
    if (!nest_make(&n, ndim, size, element_nbytes, dst_strides, src_strides))
        return;
    if (n.ndim == 0) {
        memcpy(dst, src, n.run);
        return;
    }
    char *to = dst;
    const char *from = src;
    for (;;) {
        copy_line(to, n.dst[0], from, n.src[0], n.size[0], n.run);
        uint32_t d = 1;
        for (; d < n.ndim; d++) {
            to += n.dst[d];
            from += n.src[d];
            if (++at[d] < n.size[d])
                break;
            to -= n.dst[d] * (int64_t)n.size[d];
            from -= n.src[d] * (int64_t)n.size[d];
            at[d] = 0;
        }
        if (d == n.ndim)
            return;
    }
}
