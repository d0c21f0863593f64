/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes, runs and strided copies against loops over single elements, on random shapes. */
#include "tensor/box.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "draw.h"

enum { MAX_NDIM = 5, MAX_NELEM = 4096 };

static uint32_t random_shape(uint64_t *shape)
{
    uint32_t ndim = (uint32_t)draw(MAX_NDIM + 1);
    for (uint32_t d = 0; d < ndim; d++)
        shape[d] = 1 + draw(5);
    return ndim;
}

static void random_box(uint32_t ndim, const uint64_t *shape, uint64_t *offset, uint64_t *size)
{
    for (uint32_t d = 0; d < ndim; d++) {
        offset[d] = draw(shape[d]);
        size[d] = 1 + draw(shape[d] - offset[d]);
    }
}

static bool holds(uint32_t ndim, const uint64_t *shape, const uint64_t *offset, const uint64_t *size, uint64_t flat)
{
    for (uint32_t d = ndim; d-- > 0; flat /= shape[d]) {
        uint64_t at = flat % shape[d];
        if (at < offset[d] || at >= offset[d] + size[d])
            return false;
    }
    return true;
}

static void elements_before_and_span(void **state)
{
    (void)state;
    for (int round = 0; round < 400; round++) {
        uint64_t shape[MAX_NDIM], offset[MAX_NDIM], size[MAX_NDIM], count = 0, first = UINT64_MAX, last = 0, begin, end;
        uint32_t ndim = random_shape(shape);
        uint64_t nelem = fsdpck_box_nelem(shape, ndim);
        random_box(ndim, shape, offset, size);
        for (uint64_t flat = 0; flat < nelem; flat++) {
            assert_int_equal(fsdpck_box_elements_before(ndim, shape, offset, size, flat), count);
            if (!holds(ndim, shape, offset, size, flat))
                continue;
            first = count++ ? first : flat;
            last = flat;
        }
        assert_int_equal(fsdpck_box_elements_before(ndim, shape, offset, size, nelem), count);
        assert_int_equal(fsdpck_box_nelem(size, ndim), count);
        fsdpck_box_span(ndim, shape, offset, size, &begin, &end);
        assert_int_equal(begin, first);
        assert_int_equal(end, last + 1);
    }
}

static void intersect_and_inside(void **state)
{
    (void)state;
    for (int round = 0; round < 400; round++) {
        uint64_t shape[MAX_NDIM], ao[MAX_NDIM], as[MAX_NDIM], bo[MAX_NDIM], bs[MAX_NDIM], o[MAX_NDIM], s[MAX_NDIM],
            common = 0;
        uint32_t ndim = random_shape(shape);
        random_box(ndim, shape, ao, as);
        random_box(ndim, shape, bo, bs);
        assert_true(fsdpck_box_inside(ndim, ao, as, shape));
        bool meet = fsdpck_box_intersect(ndim, ao, as, bo, bs, o, s);
        for (uint64_t flat = 0; flat < fsdpck_box_nelem(shape, ndim); flat++) {
            bool both = holds(ndim, shape, ao, as, flat) && holds(ndim, shape, bo, bs, flat);
            common += both;
            if (meet)
                assert_int_equal(both, holds(ndim, shape, o, s, flat));
        }
        assert_int_equal(meet, common > 0);
        assert_int_equal(fsdpck_box_nelem(s, ndim), common);
    }
    const uint64_t shape[2] = { 4, UINT64_MAX }, offset[2] = { 3, 5 }, size[2] = { 1, UINT64_MAX - 4 };
    assert_false(fsdpck_box_inside(2, offset, size, shape)); /* offset + size wraps around */
}

struct cutter {
    uint32_t ndim;
    const uint64_t *shape;
    uint64_t next;
    int nboxes;
};

static int take_box(void *ctx, const uint64_t *offset, const uint64_t *size)
{
    struct cutter *c = ctx;
    uint64_t begin, end;
    assert_true(fsdpck_box_inside(c->ndim, offset, size, c->shape));
    fsdpck_box_span(c->ndim, c->shape, offset, size, &begin, &end);
    assert_int_equal(begin, c->next);
    assert_int_equal(end - begin, fsdpck_box_nelem(size, c->ndim)); /* one run */
    c->next = end;
    c->nboxes++;
    return 0;
}

static int stop_at_second(void *ctx, const uint64_t *offset, const uint64_t *size)
{
    (void)offset;
    (void)size;
    return ++*(int *)ctx == 2 ? -77 : 0;
}

static void ranges_become_few_boxes(void **state)
{
    (void)state;
    for (int round = 0; round < 2000; round++) {
        uint64_t shape[MAX_NDIM];
        uint32_t ndim = random_shape(shape);
        uint64_t nelem = fsdpck_box_nelem(shape, ndim), begin = draw(nelem + 1), end = begin + draw(nelem - begin + 1);
        struct cutter c = { ndim, shape, begin, 0 };
        assert_int_equal(fsdpck_range_boxes(ndim, shape, begin, end, take_box, &c), 0);
        assert_int_equal(c.next, end);
        assert_true(c.nboxes <= 2 * (int)ndim + 1);
    }
    const uint64_t shape[2] = { 4, 4 };
    int count = 0;
    assert_int_equal(fsdpck_range_boxes(2, shape, 1, 15, stop_at_second, &count), -77);
    assert_int_equal(count, 2);
}

/* ---- strided copies ---- */

static int64_t place_of(uint32_t ndim, const uint64_t *size, const int64_t *strides, uint64_t element)
{
    int64_t at = 0;
    for (uint32_t d = ndim; d-- > 0; element /= size[d])
        at += (int64_t)(element % size[d]) * strides[d];
    return at;
}

/* Strides of the box inside a larger array with its dimensions in random order, some backwards. *origin: offset of the
 * box's first element. */
static uint64_t random_strides(uint32_t ndim, const uint64_t *size, uint64_t item, int64_t *strides, int64_t *origin)
{
    uint32_t order[MAX_NDIM] = { 0 };
    uint64_t total = item;
    for (uint32_t d = 0; d < ndim; d++) {
        uint32_t at = (uint32_t)draw(d + 1);
        order[d] = order[at];
        order[at] = d;
    }
    if (draw(2)) /* often plain row-major */
        for (uint32_t d = 0; d < ndim; d++)
            order[d] = ndim - 1 - d;
    *origin = 0;
    for (uint32_t i = 0; i < ndim; i++) {
        uint32_t d = order[i];
        bool backwards = draw(6) == 0;
        strides[d] = backwards ? -(int64_t)total : (int64_t)total;
        *origin += backwards ? (int64_t)(total * (size[d] - 1)) : 0;
        total *= size[d] + (draw(2) ? 0 : draw(3));
    }
    return total;
}

static void strided_copies_move_every_element_once(void **state)
{
    (void)state;
    static const uint64_t items[] = { 1, 2, 4, 8, 16, 3, 32 };
    for (int round = 0; round < 3000; round++) {
        uint64_t size[MAX_NDIM], item = items[draw(7)];
        int64_t from[MAX_NDIM], to[MAX_NDIM], src0, dst0;
        uint32_t ndim = random_shape(size);
        uint64_t nsrc = random_strides(ndim, size, item, from, &src0),
                 ndst = random_strides(ndim, size, item, to, &dst0);
        unsigned char *src = malloc(nsrc), *dst = malloc(ndst), *want = malloc(ndst);
        assert_true(src && dst && want);
        for (uint64_t i = 0; i < nsrc; i++)
            src[i] = (unsigned char)draw(256);
        memset(dst, 0xee, ndst);
        memset(want, 0xee, ndst);
        for (uint64_t i = 0; i < fsdpck_box_nelem(size, ndim); i++)
            memcpy(want + dst0 + place_of(ndim, size, to, i), src + src0 + place_of(ndim, size, from, i), item);
        fsdpck_copy_strided(ndim, size, item, dst + dst0, to, src + src0, from);
        assert_memory_equal(dst, want, ndst);
        free(src);
        free(dst);
        free(want);
    }
}

static void empty_boxes_copy_nothing(void **state)
{
    (void)state;
    const uint64_t size[3] = { 2, 0, 3 };
    int64_t strides[3];
    fsdpck_dense_strides(3, size, 4, strides);
    assert_int_equal(strides[2], 4);
    fsdpck_copy_strided(3, size, 4, NULL, strides, NULL, strides);
    const uint64_t dense[3] = { 2, 3, 4 };
    fsdpck_dense_strides(3, dense, 2, strides);
    assert_int_equal(strides[0], 24);
    assert_int_equal(strides[1], 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_before_and_span), cmocka_unit_test(intersect_and_inside),
        cmocka_unit_test(ranges_become_few_boxes),  cmocka_unit_test(strided_copies_move_every_element_once),
        cmocka_unit_test(empty_boxes_copy_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
