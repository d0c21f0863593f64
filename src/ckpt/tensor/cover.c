/* SPDX-License-Identifier: Apache-2.0 */
/* Finds overlaps and holes in a set of boxes. Boxes are split, dimension by dimension, into clusters whose intervals
 * intersect; boxes of different clusters cannot overlap. This splits a grid into single boxes; larger clusters are
 * compared pair by pair. Then the volumes tell whether there is a hole. */
#include "tensor/cover.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/box.h"

struct cover_box {
    const uint64_t *offset, *size;
};

struct fsdpck_cover {
    uint32_t ndim;
    const uint64_t *shape;
    struct cover_box *boxes;
    uint64_t count, capacity;
    const struct cover_box *a, *b; /* the two that overlap */
};

struct fsdpck_cover *fsdpck_cover_new(uint32_t ndim, const uint64_t *shape, uint64_t nboxes, struct fsdpck_error *err)
{
    struct fsdpck_cover *c = calloc(1, sizeof *c);
    if (c)
        c->boxes = calloc(nboxes ? nboxes : 1, sizeof *c->boxes);
    if (!c || !c->boxes) {
        fsdpck_error_nomem(err, nboxes * sizeof *c->boxes);
        free(c);
        return NULL;
    }
    c->ndim = ndim;
    c->shape = shape;
    c->capacity = nboxes;
    return c;
}

void fsdpck_cover_add(struct fsdpck_cover *c, const uint64_t *offset, const uint64_t *size)
{
    if (c->count < c->capacity && fsdpck_box_nelem(size, c->ndim) > 0)
        c->boxes[c->count++] = (struct cover_box){ offset, size };
}

static int by_interval(const void *a, const void *b, void *dim)
{
    const struct cover_box *x = a, *y = b;
    uint32_t d = *(const uint32_t *)dim;
    return x->offset[d] < y->offset[d] ? -1 : x->offset[d] > y->offset[d];
}

static bool any_pair(struct fsdpck_cover *c, const struct cover_box *list, uint64_t n)
{
    uint64_t o[FSDPCK_MAX_DIMS], s[FSDPCK_MAX_DIMS];
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t k = 0; k < i; k++)
            if (fsdpck_box_intersect(c->ndim, list[i].offset, list[i].size, list[k].offset, list[k].size, o, s)) {
                c->a = &list[k];
                c->b = &list[i];
                return true;
            }
    return false;
}

/* Returns whether two of the n boxes overlap, if all of them intersect in the dimensions before d. */
static bool any_overlap(struct fsdpck_cover *c, struct cover_box *list, uint64_t n, uint32_t d)
{
    if (n < 2)
        return false;
    if (d == c->ndim)
        return any_pair(c, list, n);
    qsort_r(list, n, sizeof *list, by_interval, &d);
    for (uint64_t first = 0, i = 1, end = list[0].offset[d] + list[0].size[d]; i <= n; i++) {
        if (i < n && list[i].offset[d] < end) {
            uint64_t e = list[i].offset[d] + list[i].size[d];
            end = e > end ? e : end;
            continue;
        }
        if (any_overlap(c, list + first, i - first, d + 1))
            return true;
        if (i < n)
            end = list[i].offset[d] + list[i].size[d];
        first = i;
    }
    return false;
}

static char *at(char text[256], uint32_t ndim, const uint64_t *offset)
{
    size_t n = 0;
    text[0] = 0;
    for (uint32_t d = 0; d < ndim && n < 200; d++)
        n += (size_t)snprintf(text + n, 256 - n, "%s%" PRIu64, d ? ", " : "", offset[d]);
    return text;
}

int fsdpck_cover_check(struct fsdpck_cover *c, const char *file, const char *tensor, struct fsdpck_error *err)
{
    uint64_t want = fsdpck_box_nelem(c->shape, c->ndim), have = 0;
    char a[256], b[256];
    for (uint64_t i = 0; i < c->count; i++) {
        if (!fsdpck_box_inside(c->ndim, c->boxes[i].offset, c->boxes[i].size, c->shape))
            return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, file, "tensor '%s': the chunk at (%s) leaves the tensor",
                                    tensor, at(a, c->ndim, c->boxes[i].offset));
        have += fsdpck_box_nelem(c->boxes[i].size,
                                 c->ndim); /* cannot wrap unnoticed: without overlaps it is at most `want` */
    }
    if (any_overlap(c, c->boxes, c->count, 0))
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, file, "tensor '%s': the chunks at (%s) and (%s) overlap",
                                tensor, at(a, c->ndim, c->a->offset), at(b, c->ndim, c->b->offset));
    if (have != want)
        return fsdpck_error_set(err, FSDPCK_ERR_MISSING, file,
                                "tensor '%s': the chunks hold %" PRIu64 " of its %" PRIu64 " elements", tensor, have,
                                want);
    return 0;
}

void fsdpck_cover_free(struct fsdpck_cover *c)
{
    if (!c)
        return;
    free(c->boxes);
    free(c);
}
