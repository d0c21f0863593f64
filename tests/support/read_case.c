/* SPDX-License-Identifier: Apache-2.0 */
/* A model to read, and random reads of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "read_case.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/source_impl.h"
#include "tree.h"

void read_case_free(struct read_case *p)
{
    tree_remove(p->root);
    free(p->root);
    free(p->file);
    free(p->out);
    model_free(&p->model);
}

void read_case_write(struct read_case *p)
{
    p->root = tree_new();
    p->file = tree_path(p->root, "model.safetensors");
    p->out = tree_path(p->root, "out");
    p->io = model_fast_io();
    p->opt = (struct fsdpck_options){ .io = &p->io };
    model_write_safetensors(&p->model, p->file);
}

struct fsdpck_source *read_case_open(const struct read_case *p, const char *path)
{
    struct fsdpck_source *src = NULL;
    struct fsdpck_error err = { 0 };
    if (fsdpck_source_open(path, NULL, &p->opt, &src, &err) != 0)
        fail_msg("%s: %s", err.file, err.message);
    return src;
}

void read_case_convert(struct read_case *p, const struct fsdpck_mesh *mesh, const struct fsdpck_placement_rule *rules,
                       size_t nrules, bool compress)
{
    struct fsdpck_error err = { 0 };
    struct fsdpck_source *src = read_case_open(p, p->file);
    struct fsdpck_convert_request req = {
        .out = p->out, .mesh = *mesh, .rules = rules, .nrules = nrules, .force = true, .compress = compress
    };
    if (fsdpck_convert(src, &req, NULL, NULL, &err) != 0)
        fail_msg("%s: %s", err.file, err.message);
    fsdpck_source_close(src);
}

/* ---- random requests ---- */

struct request { /* a box and memory for it, with guard bytes around every element that has padding */
    const struct model_tensor *t;
    uint64_t offset[MODEL_MAX_DIMS], size[MODEL_MAX_DIMS];
    int64_t strides[MODEL_MAX_DIMS];
    uint8_t *memory, *want;
    uint64_t first, nbytes; /* of the memory */
    bool dense, whole;
};

/* Strides with another order of dimensions, padding, and some of them negative. */
static void shape_memory(struct request *r, uint64_t *rng)
{
    uint32_t order[MODEL_MAX_DIMS] = { 0, 1, 2, 3 };
    int64_t extent = (int64_t)r->t->item, low = 0;
    for (uint32_t d = r->t->ndim; d-- > 1 && model_below(rng, 2);) {
        uint32_t k = (uint32_t)model_below(rng, d + 1), o = order[d];
        order[d] = order[k];
        order[k] = o;
    }
    for (uint32_t i = r->t->ndim; i-- > 0;) {
        uint32_t d = order[i];
        int64_t n = (int64_t)r->size[d];
        if (!r->dense && model_below(rng, 2))
            extent += (int64_t)model_below(rng, 9);
        r->strides[d] = extent;
        extent *= n ? n : 1;
        if (!r->dense && model_below(rng, 4) == 0 && n) {
            low += r->strides[d] * (n - 1);
            r->strides[d] = -r->strides[d];
        }
    }
    r->first = (uint64_t)low + model_below(rng, 64);
    r->nbytes = r->first + (uint64_t)extent + 64;
}

static struct request random_request(const struct model *m, uint64_t *rng)
{
    struct request r = { .t = &m->tensors[model_below(rng, m->ntensors)], .dense = model_below(rng, 3) == 0 };
    r.whole = model_below(rng, 8) == 0;
    for (uint32_t d = 0; d < r.t->ndim; d++) {
        uint64_t n = r.t->shape[d];
        bool full = r.whole || model_below(rng, 3) == 0;
        r.offset[d] = full ? 0 : model_below(rng, n + 1);
        r.size[d] = full ? n : model_below(rng, n - r.offset[d] + 1);
    }
    if (r.dense) {
        int64_t at = (int64_t)r.t->item;
        for (uint32_t d = r.t->ndim; d-- > 0; at *= (int64_t)r.size[d])
            r.strides[d] = at;
        r.first = model_below(rng, 64);
        r.nbytes = r.first + (uint64_t)at + 64;
    } else {
        shape_memory(&r, rng);
    }
    r.memory = malloc(r.nbytes);
    r.want = malloc(r.nbytes);
    assert_true(r.memory && r.want);
    memset(r.memory, READ_CASE_GUARD, r.nbytes);
    memset(r.want, READ_CASE_GUARD, r.nbytes);
    model_get_box(r.t, r.offset, r.size, r.want + r.first, r.strides);
    return r;
}

static uint64_t box_nbytes(const struct request *r)
{
    uint64_t n = r->t->item;
    for (uint32_t d = 0; d < r->t->ndim; d++)
        n *= r->size[d];
    return n;
}

static void check_plan(struct fsdpck_source *src, const struct fsdpck_read *reads, const struct request *requests,
                       size_t n)
{
    struct fsdpck_plan plan;
    struct fsdpck_error err = { 0 };
    uint64_t want = 0, any = 0;
    assert_int_equal(fsdpck_source_plan(src, reads, n, &plan, &err), 0);
    for (size_t i = 0; i < n; i++)
        want += box_nbytes(&requests[i]), any |= box_nbytes(&requests[i]);
    assert_int_equal(plan.needed_nbytes, want);
    assert_true(plan.read_nbytes >= plan.needed_nbytes || src->compressed);
    assert_true(plan.nfiles <= fsdpck_source_nfiles(src) && (plan.nfiles > 0) == (any > 0) &&
                (plan.nruns > 0) == (any > 0));
    assert_true(plan.peak_nbytes <= FSDPCK_DEFAULT_MEMORY);
}

void read_case_check(struct fsdpck_source *src, const struct model *m, uint64_t *rng, size_t n)
{
    struct request requests[6];
    struct fsdpck_read reads[6] = { 0 };
    struct fsdpck_error err = { 0 };
    for (size_t i = 0; i < n; i++) {
        struct request *r = &requests[i];
        *r = random_request(m, rng);
        reads[i] = (struct fsdpck_read){ .tensor = fsdpck_source_find(src, r->t->name),
                                         .dst = r->memory + r->first,
                                         .offset = r->whole ? NULL : r->offset,
                                         .size = r->whole ? NULL : r->size,
                                         .strides = r->dense ? NULL : r->strides };
    }
    check_plan(src, reads, requests, n);
    if (fsdpck_source_read(src, reads, n, &err) != 0)
        fail_msg("%s: %s: %s", err.file, err.tensor, err.message);
    for (size_t i = 0; i < n; i++) {
        assert_memory_equal(requests[i].memory, requests[i].want, requests[i].nbytes);
        free(requests[i].memory);
        free(requests[i].want);
    }
}

int64_t read_case_nothing_cached(void *ctx, int fd, void *buf, uint64_t nbytes, uint64_t offset)
{
    (void)ctx, (void)fd, (void)buf, (void)nbytes, (void)offset;
    return -EAGAIN;
}
