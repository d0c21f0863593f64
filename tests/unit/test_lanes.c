/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes, for any chunks of a transfer: each element of each chunk is fed to it once and in order, rows count once for
 * the content id, and a long chunk is cut only where its block hashes and rows can be joined. */
#include "engine/lanes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/value_view.h"
#include "model.h"
#include "tensor/box.h"

enum { MAX_CHUNKS = 64, MAX_TENSORS = 4, MAX_NELEM = 4096 };

struct scene { /* a source, a selection of the same tensors, and chunks */
    struct fsdpck_source src;
    struct fsdpck_tensor tensors[MAX_TENSORS];
    uint64_t shapes[MAX_TENSORS][3];
    struct fsdpck_chosen chosen[MAX_TENSORS];
    struct fsdpck_selection selection;
    struct fsdpck_out_chunk chunks[MAX_CHUNKS];
    uint64_t boxes[MAX_CHUNKS][2][3];
    struct fsdpck_transfer t;
};

static const struct fsdpck_source_ops stored;

static bool is_second(const struct fsdpck_source *src, size_t ordinal)
{
    (void)src;
    return ordinal == 1;
}

static const struct fsdpck_values second_is_late = { .late = is_second };
static const struct fsdpck_source_ops computed = { .values = &second_is_late };

static struct scene *new_scene(void)
{
    struct scene *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->src.ops = &stored;
    s->src.tensors = (struct fsdpck_vec){ .data = s->tensors, .item_nbytes = sizeof *s->tensors };
    s->selection.tensors = s->chosen;
    s->t = (struct fsdpck_transfer){ .src = &s->src, .selection = &s->selection, .chunks = s->chunks };
    return s;
}

static uint32_t add_tensor(struct scene *s, enum fsdpck_dtype dtype, uint32_t ndim, const uint64_t *shape)
{
    size_t i = s->selection.ntensors++;
    if (ndim)
        memcpy(s->shapes[i], shape, ndim * 8);
    s->tensors[i] =
        (struct fsdpck_tensor){ .name = "t", .dtype = dtype, .ndim = ndim, .shape = s->shapes[i], .alias_of = -1 };
    s->tensors[i].nelem = fsdpck_box_nelem(s->shapes[i], ndim);
    s->chosen[i] = (struct fsdpck_chosen){ .name = "t", .source = i, .alias_of = -1, .dtype = dtype };
    s->src.tensors.count = i + 1;
    return (uint32_t)i;
}

static void add_chunk(struct scene *s, uint32_t tensor, const uint64_t *offset, const uint64_t *size, bool hashed)
{
    size_t i = s->t.nchunks++;
    assert_true(i < MAX_CHUNKS);
    memcpy(s->boxes[i][0], offset, s->tensors[tensor].ndim * 8);
    memcpy(s->boxes[i][1], size, s->tensors[tensor].ndim * 8);
    s->chunks[i] = (struct fsdpck_out_chunk){
        .tensor = tensor, .offset = s->boxes[i][0], .size = s->boxes[i][1], .hashes = hashed
    };
}

/* Cuts the tensor at random: its chunks cover it once. */
static void add_random_chunks(struct scene *s, uint32_t tensor, uint64_t *rng)
{
    uint32_t n = s->tensors[tensor].ndim;
    uint64_t offset[12][3] = { { 0 } }, size[12][3];
    size_t count = 1;
    memcpy(size[0], s->shapes[tensor], sizeof size[0]);
    for (uint64_t i = model_below(rng, 11); n && i-- > 0;) {
        size_t k = model_below(rng, count);
        uint32_t d = (uint32_t)model_below(rng, n);
        uint64_t at = size[k][d] > 1 ? 1 + model_below(rng, size[k][d] - 1) : 0;
        if (at == 0)
            continue;
        memcpy(offset[count], offset[k], sizeof offset[k]);
        memcpy(size[count], size[k], sizeof size[k]);
        size[k][d] = at;
        offset[count][d] += at;
        size[count++][d] -= at;
    }
    for (size_t i = 0; i < count; i++)
        add_chunk(s, tensor, offset[i], size[i], true);
}

/* Walks the lanes in order, each element by element, like the engine. */
static void feed_all(const struct scene *s, const struct fsdpck_lanes *lanes)
{
    uint64_t fed[MAX_CHUNKS] = { 0 };
    static uint8_t counted[MAX_TENSORS][MAX_NELEM];
    memset(counted, 0, sizeof counted);
    for (size_t i = 0; i < lanes->count; i++) {
        const struct fsdpck_lane *l = &lanes->list[i];
        const struct fsdpck_tensor *t = &s->tensors[l->tensor];
        assert_true(l->begin < l->end && l->end <= t->nelem);
        for (uint64_t at = l->begin; l->owns_content && at < l->end; at++)
            counted[l->tensor][at]++;
        for (size_t k = 0; k < l->count; k++) {
            uint32_t chunk = lanes->order[l->first + k];
            const struct fsdpck_out_chunk *c = &s->chunks[chunk];
            uint64_t a = fsdpck_box_elements_before(t->ndim, t->shape, c->offset, c->size, l->begin);
            uint64_t b = fsdpck_box_elements_before(t->ndim, t->shape, c->offset, c->size, l->end);
            assert_int_equal(c->tensor, l->tensor);
            assert_int_equal(fed[chunk], a);
            fed[chunk] = b;
            if (l->single)
                assert_true(l->count == 1 && b - a == l->end - l->begin);
        }
        uint64_t row = t->ndim ? t->nelem / t->shape[0] : 1;
        assert_int_equal(l->whole_rows, l->begin % row == 0 && l->end % row == 0);
    }
    for (size_t i = 0; i < s->t.nchunks; i++)
        assert_int_equal(fed[i], fsdpck_box_nelem(s->chunks[i].size, s->tensors[s->chunks[i].tensor].ndim));
    for (size_t i = 0; i < s->selection.ntensors; i++)
        for (uint64_t at = 0; at < s->tensors[i].nelem; at++)
            assert_int_equal(counted[i][at], 1);
}

static void test_random_chunks(void **state)
{
    (void)state;
    uint64_t rng = 1, nclusters = 0, nsingles = 0;
    for (int i = 0; i < 3000; i++) {
        struct scene *s = new_scene();
        struct fsdpck_lanes lanes;
        struct fsdpck_error err = { 0 };
        size_t max_chunks = 1 + model_below(&rng, 6);
        for (uint64_t k = 1 + model_below(&rng, MAX_TENSORS); k-- > 0;) {
            uint64_t shape[3] = { 1 + model_below(&rng, 16), 1 + model_below(&rng, 16), 1 + model_below(&rng, 16) };
            uint32_t tensor = add_tensor(s, FSDPCK_FLOAT32, (uint32_t)model_below(&rng, 4), shape);
            add_random_chunks(s, tensor, &rng);
        }
        assert_int_equal(fsdpck_lanes_make(&s->t, max_chunks, &lanes, &err), 0);
        for (size_t k = 0; k < lanes.count; k++) {
            assert_true(lanes.list[k].count >= 1 && lanes.list[k].count <= max_chunks);
            nclusters += lanes.list[k].count > 1;
            nsingles += lanes.list[k].single;
        }
        feed_all(s, &lanes);
        fsdpck_lanes_free(&lanes);
        free(s);
    }
    assert_true(nclusters > 1000 && nsingles > 1000);
}

/* Parts of a chunk that was cut are consecutive, at blocks and rows, and none is huge. */
static void check_parts(const struct scene *s, size_t most, size_t least)
{
    struct fsdpck_lanes lanes;
    struct fsdpck_error err = { 0 };
    const struct fsdpck_tensor *t = &s->tensors[0];
    uint64_t item = fsdpck_dtype_info(s->chosen[0].dtype)->nbytes, row = t->nelem / t->shape[0], first, last;
    assert_int_equal(fsdpck_lanes_make(&s->t, 8, &lanes, &err), 0);
    assert_in_range(lanes.count, least, most);
    fsdpck_box_span(t->ndim, t->shape, s->chunks[0].offset, s->chunks[0].size, &first, &last);
    for (size_t i = 0; i < lanes.count; i++) {
        const struct fsdpck_lane *l = &lanes.list[i];
        assert_true(l->single && l->owns_content && l->count == 1 && lanes.order[l->first] == 0 &&
                    l->first == lanes.list[0].first);
        assert_int_equal(l->begin, i ? lanes.list[i - 1].end : first);
        if (s->chunks[0].hashes) {
            assert_int_equal((l->begin - first) * item % FSDPCK_BLOCK_NBYTES, 0);
            assert_int_equal((l->begin - first) % row, 0);
        }
    }
    assert_int_equal(lanes.list[lanes.count - 1].end, last);
    fsdpck_lanes_free(&lanes);
}

static void test_long_chunks(void **state)
{
    (void)state;
    static const struct {
        enum fsdpck_dtype dtype;
        uint64_t rows, columns;
        bool hashed;
        size_t least, most; /* number of parts */
    } cases[] = {
        { FSDPCK_FLOAT32, 100000, 1024, true, 10, 20 }, /* 400 MB, rows of 4 KiB */
        { FSDPCK_BFLOAT16, 49152, 576, true, 1, 4 },    /* 56 MB, rows of 1152 bytes */
        { FSDPCK_FLOAT32, 8000, 4097, true, 1, 1 },     /* rows and blocks align every 256 MB: not cut */
        { FSDPCK_FLOAT32, 8000, 4097, false, 4, 5 },    /* without any hashes */
        { FSDPCK_UINT8, 3, 100000000, true, 1, 3 },
        { FSDPCK_COMPLEX128, 1u << 20, 8, true, 4, 4 },
        { FSDPCK_FLOAT64, 1, 1, true, 1, 1 },
        { FSDPCK_INT8, 33554432, 1, true, 1, 1 }, /* 32 MiB, to the byte */
        { FSDPCK_INT8, 33554433, 1, true, 2, 2 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint64_t skip = 0; skip < 2 && skip < cases[i].rows;
             skip++) { /* with and without the tensor's first chunk */
            struct scene *s = new_scene();
            add_tensor(s, cases[i].dtype, 2, (uint64_t[]){ cases[i].rows + skip, cases[i].columns });
            add_chunk(s, 0, (uint64_t[]){ skip, 0 }, (uint64_t[]){ cases[i].rows, cases[i].columns }, cases[i].hashed);
            check_parts(s, cases[i].most, cases[i].least);
            free(s);
        }
}

static void test_nothing(void **state)
{
    (void)state;
    struct scene *s = new_scene();
    struct fsdpck_lanes lanes;
    struct fsdpck_error err = { 0 };
    assert_int_equal(fsdpck_lanes_make(&s->t, 1, &lanes, &err), 0);
    assert_int_equal(lanes.count, 0);
    fsdpck_lanes_free(&lanes);
    add_tensor(s, FSDPCK_BOOL, 0, NULL);
    add_chunk(s, 0, s->shapes[0], s->shapes[0], true);
    assert_int_equal(fsdpck_lanes_make(&s->t, 1, &lanes, &err), 0);
    assert_int_equal(lanes.count, 1);
    assert_true(lanes.list[0].single && lanes.list[0].whole_rows && lanes.list[0].owns_content);
    fsdpck_lanes_free(&lanes);
    free(s);
}

/* Lanes of a late tensor come last, in their order; where chunks are compressed, their order in the file counts. */
static void test_late(void **state)
{
    (void)state;
    const uint64_t shape[] = { 3, 5 }, first[] = { 0, 0 }, third[] = { 1, 0 }, one[] = { 1, 5 }, two[] = { 2, 5 };
    const uint32_t wanted[] = { 0, 2, 3, 1, 1 };
    for (int compress = 0; compress < 2; compress++) {
        struct scene *s = new_scene();
        struct fsdpck_lanes lanes;
        struct fsdpck_error err = { 0 };
        s->src.ops = &computed;
        s->t.compress = compress;
        for (uint32_t i = 0; i < MAX_TENSORS; i++) {
            add_tensor(s, FSDPCK_FLOAT32, 2, shape);
            if (i == 1)
                add_chunk(s, i, first, one, true);
            add_chunk(s, i, i == 1 ? third : first, i == 1 ? two : shape, true);
        }
        assert_int_equal(fsdpck_lanes_make(&s->t, 8, &lanes, &err), 0);
        assert_int_equal(lanes.count, 5);
        for (size_t i = 0; i < 5; i++)
            assert_int_equal(lanes.list[i].tensor, compress ? (i ? i - (i > 1) : 0) : wanted[i]);
        assert_true(compress || lanes.list[3].begin < lanes.list[4].begin);
        fsdpck_lanes_free(&lanes);
        free(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_chunks),
        cmocka_unit_test(test_long_chunks),
        cmocka_unit_test(test_late),
        cmocka_unit_test(test_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
