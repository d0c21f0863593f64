/* SPDX-License-Identifier: Apache-2.0 */
/* Layout views: random tensors made of random pieces (sliced, transposed, stacked, concatenated) of random inner
 * tensors, and views of such views, against single elements; of a file, of shards with hashes and compressed, and of a
 * source that computes all its tensors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fsdpck/convert.h>

#include "model.h"
#include "opened.h"
#include "sanitized.h"
#include "tree.h"
#include "view/average.h"
#include "view/layout.h"

enum { MAX_NDIM = 3, MAX_PIECES = 8, NTENSORS = 6, NINNER = NTENSORS * MAX_PIECES };

struct piece {
    size_t inner;
    uint64_t offset[MAX_NDIM], size[MAX_NDIM], from[MODEL_MAX_DIMS];
    uint32_t dims[MAX_NDIM];
};

struct made { /* a tensor of the view */
    char name[16];
    enum fsdpck_dtype dtype;
    uint32_t ndim;
    uint64_t shape[MAX_NDIM];
    struct piece pieces[MAX_PIECES];
    size_t npieces;
    struct model_tensor want; /* what its elements must be */
};

/* ---- drawing ---- */

/* Cuts box i in two along a dimension where it can. */
static void cut_box(struct made *t, size_t i, uint64_t *seed)
{
    const uint32_t d = (uint32_t)model_below(seed, t->ndim);
    struct piece *a = &t->pieces[i];
    if (a->size[d] < 2 || t->npieces == MAX_PIECES)
        return;
    struct piece *b = &t->pieces[t->npieces++];
    *b = *a;
    a->size[d] = 1 + model_below(seed, a->size[d] - 1);
    b->offset[d] += a->size[d];
    b->size[d] -= a->size[d];
}

/* Draws an inner tensor that holds the piece somewhere, with its dimensions in any order. */
static void draw_inner(struct model *m, struct made *t, struct piece *p, uint64_t *seed)
{
    uint64_t shape[MODEL_MAX_DIMS];
    uint32_t n = 0, order[MAX_NDIM], count = 0;
    for (uint32_t d = 0; d < t->ndim; d++) {
        p->dims[d] = FSDPCK_LAYOUT_NO_DIM;
        if (p->size[d] != 1 || model_below(seed, 2))
            order[count++] = d;
    }
    for (uint32_t i = count; i-- > 1 && model_below(seed, 2);) { /* sometimes as it is, which is one run */
        const uint32_t k = (uint32_t)model_below(seed, i + 1), swapped = order[i];
        order[i] = order[k];
        order[k] = swapped;
    }
    for (uint32_t i = 0; i <= count && n < MODEL_MAX_DIMS; i++) {
        const bool margin = model_below(seed, 3) == 0;
        if (n + count - i < MODEL_MAX_DIMS && model_below(seed, 3) == 0) { /* a dimension with one index */
            shape[n] = 1 + model_below(seed, 3);
            p->from[n] = model_below(seed, shape[n]);
            n++;
        }
        if (i == count)
            break;
        p->dims[order[i]] = n;
        p->from[n] = margin ? model_below(seed, 3) : 0;
        shape[n] = p->from[n] + p->size[order[i]] + (margin ? model_below(seed, 3) : 0);
        n++;
    }
    p->inner = m->ntensors;
    model_add(m, seed, t->dtype, n, shape);
}

static void draw(struct model *m, struct made *t, int number, uint64_t *seed)
{
    static const enum fsdpck_dtype dtypes[] = { FSDPCK_BFLOAT16, FSDPCK_FLOAT32, FSDPCK_UINT8 };
    memset(t, 0, sizeof *t);
    snprintf(t->name, sizeof t->name, "v%d", number);
    t->dtype = dtypes[model_below(seed, 3)];
    t->ndim = 1 + (uint32_t)model_below(seed, MAX_NDIM);
    t->npieces = 1;
    for (uint32_t d = 0; d < t->ndim; d++)
        t->shape[d] = t->pieces[0].size[d] = 1 + model_below(seed, t->ndim == 1 ? 200000 : t->ndim == 2 ? 300 : 30);
    for (int i = 0; i < 10; i++)
        cut_box(t, model_below(seed, t->npieces), seed);
    for (size_t i = 0; i < t->npieces; i++)
        draw_inner(m, t, &t->pieces[i], seed);
}

/* ---- what must be seen ---- */

/* Places one piece of a tensor, element by element. */
static void place(struct made *t, const struct piece *p, const struct model_tensor *inner)
{
    uint64_t at[MAX_NDIM] = { 0 };
    for (;;) {
        uint64_t to = 0, from = 0;
        for (uint32_t d = 0; d < t->ndim; d++)
            to = to * t->shape[d] + p->offset[d] + at[d];
        for (uint32_t k = 0; k < inner->ndim; k++) {
            uint64_t index = p->from[k];
            for (uint32_t d = 0; d < t->ndim; d++)
                index += p->dims[d] == k ? at[d] : 0;
            from = from * inner->shape[k] + index;
        }
        memcpy(t->want.data + to * inner->item, inner->data + from * inner->item, inner->item);
        uint32_t d = t->ndim;
        while (d-- > 0 && ++at[d] == p->size[d])
            at[d] = 0;
        if (d == UINT32_MAX)
            return;
    }
}

static void fill_want(struct made *t, const struct model_tensor *inner)
{
    struct model_tensor *w = &t->want;
    snprintf(w->name, sizeof w->name, "%s", t->name);
    w->dtype = t->dtype;
    w->ndim = t->ndim;
    w->item = fsdpck_dtype_info(t->dtype)->nbytes;
    w->nelem = 1;
    for (uint32_t d = 0; d < t->ndim; d++)
        w->nelem *= w->shape[d] = t->shape[d];
    w->nbytes = w->nelem * w->item;
    w->data = malloc(w->nbytes);
    for (size_t i = 0; i < t->npieces; i++)
        place(t, &t->pieces[i], &inner[t->pieces[i].inner]);
}

/* ---- the view ---- */

static void add_made(struct fsdpck_layout *l, const struct made *t, const size_t *ordinals)
{
    struct fsdpck_layout_piece pieces[MAX_PIECES];
    struct fsdpck_error err = { 0 };
    for (size_t i = 0; i < t->npieces; i++) {
        const struct piece *p = &t->pieces[i];
        pieces[i] = (struct fsdpck_layout_piece){ ordinals[p->inner], p->offset, p->size, p->from, p->dims };
    }
    if (fsdpck_layout_add(l, t->name, t->dtype, t->ndim, t->shape, pieces, t->npieces, &err))
        fail_msg("%s", err.message);
}

static void check_boxes(struct fsdpck_source *src, const struct made *t, uint64_t *seed)
{
    const struct fsdpck_tensor *shown = fsdpck_source_find(src, t->name);
    for (int n = 0; n < 6; n++) {
        uint64_t offset[MAX_NDIM], size[MAX_NDIM], nbytes = t->want.item;
        int64_t strides[MAX_NDIM];
        for (uint32_t d = t->ndim; d-- > 0;) {
            offset[d] = n ? model_below(seed, t->shape[d]) : 0; /* the first time, the whole */
            size[d] = n ? 1 + model_below(seed, t->shape[d] - offset[d]) : t->shape[d];
            strides[d] = (int64_t)nbytes;
            nbytes *= size[d];
        }
        uint8_t *got = malloc(nbytes), *want = malloc(nbytes);
        const struct fsdpck_read read = { .tensor = shown, .offset = offset, .size = size, .dst = got };
        struct fsdpck_error err = { 0 };
        struct fsdpck_plan plan;
        if (fsdpck_source_read(src, &read, 1, &err))
            fail_msg("%s: %s", t->name, err.message);
        model_get_box(&t->want, offset, size, want, strides);
        assert_memory_equal(got, want, nbytes);
        assert_int_equal(fsdpck_source_plan(src, &read, 1, &plan, &err), 0);
        assert_int_equal(plan.needed_nbytes, nbytes);
        free(got);
        free(want);
    }
}

static void free_made(struct made *list, int n)
{
    for (int i = 0; i < n; i++)
        free(list[i].want.data);
}

/* A second view on the first: each tensor a part of one of the first, turned. */
static void check_second(struct fsdpck_source *src, const struct made *first, uint64_t *seed)
{
    struct made second[NTENSORS];
    struct model_tensor inner[NTENSORS];
    size_t ordinals[NTENSORS];
    struct fsdpck_layout *l;
    for (int i = 0; i < NTENSORS; i++)
        inner[i] = first[i].want;
    for (size_t i = 0; i < NTENSORS; i++)
        ordinals[i] = (size_t)(fsdpck_source_find(src, first[i].name) - source_tensors(src));
    assert_int_equal(fsdpck_layout_begin(src, &l, NULL), 0);
    for (int i = 0; i < NTENSORS; i++) {
        const struct made *f = &first[i];
        struct made *t = &second[i];
        memset(t, 0, sizeof *t);
        snprintf(t->name, sizeof t->name, "w%d", i);
        t->dtype = f->dtype;
        t->ndim = f->ndim;
        t->npieces = 1;
        struct piece *p = &t->pieces[0];
        p->inner = (size_t)i;
        for (uint32_t d = 0; d < f->ndim; d++) {
            const uint32_t k = f->ndim - 1 - d;
            p->dims[d] = k;
            p->from[k] = model_below(seed, f->shape[k]);
            t->shape[d] = p->size[d] = 1 + model_below(seed, f->shape[k] - p->from[k]);
        }
        fill_want(t, inner);
        add_made(l, t, ordinals);
    }
    assert_int_equal(fsdpck_layout_pass(l, ordinals[0], "passed", NULL), 0);
    for (int i = 0; i < NTENSORS; i++)
        check_boxes(src, &second[i], seed);
    assert_int_equal(fsdpck_source_find(src, "passed")->nelem, first[0].want.nelem);
    free_made(second, NTENSORS);
}

/* computed: by averaging the source with nothing, which changes no finite value. */
static void check_source(const char *path, bool computed, const struct model *m, const struct made *first,
                         uint64_t *seed)
{
    struct fsdpck_source *src = opened(path, NULL);
    const struct fsdpck_select all = { 0 };
    const struct fsdpck_averaging alone = { .sources = &src, .n = 1, .select = &all };
    struct fsdpck_average_left left;
    struct fsdpck_layout *l;
    if (computed)
        assert_int_equal(fsdpck_source_average(&alone, &left, NULL), 0);
    size_t ordinals[NINNER];
    for (size_t i = 0; i < m->ntensors; i++)
        ordinals[i] = (size_t)(fsdpck_source_find(src, m->tensors[i].name) - source_tensors(src));
    assert_int_equal(fsdpck_layout_begin(src, &l, NULL), 0);
    for (int i = 0; i < NTENSORS; i++)
        add_made(l, &first[i], ordinals);
    for (int i = 0; i < NTENSORS; i++)
        check_boxes(src, &first[i], seed);
    check_second(src, first, seed);
    fsdpck_source_close(src);
}

static void shard(const char *from, const char *to, bool compress)
{
    struct fsdpck_source *src = opened(from, NULL);
    const struct fsdpck_io io = model_fast_io();
    const struct fsdpck_options opt = { .io = &io };
    const struct fsdpck_convert_request req = { .out = to,
                                                .mesh = { .ndim = 1, .names = { "shard" }, .sizes = { 3 } },
                                                .compress = compress };
    assert_int_equal(fsdpck_convert(src, &req, &opt, NULL, NULL), 0);
    fsdpck_source_close(src);
}

static void test_random(void **state)
{
    uint64_t seed = 11;
    (void)state;
    for (int round = 0; round < (SANITIZED ? 4 : 12); round++) {
        struct model m = { 0 };
        struct made first[NTENSORS];
        char *root = tree_new(), *file = tree_path(root, "m.safetensors"), *dir = tree_path(root, "shards");
        for (int i = 0; i < NTENSORS; i++)
            draw(&m, &first[i], i, &seed);
        for (size_t i = 0; i < m.ntensors; i++)
            for (uint64_t k = m.tensors[i].item - 1; k < m.tensors[i].nbytes; k += m.tensors[i].item)
                m.tensors[i].data[k] &= 0x3b; /* finite */
        for (int i = 0; i < NTENSORS; i++)
            fill_want(&first[i], m.tensors);
        model_write_safetensors(&m, file);
        shard(file, dir, round % 2);
        check_source(file, false, &m, first, &seed);
        check_source(dir, false, &m, first, &seed);
        check_source(file, true, &m, first, &seed);
        free_made(first, NTENSORS);
        model_free(&m);
        tree_remove(root);
        free(root);
        free(file);
        free(dir);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_random) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
