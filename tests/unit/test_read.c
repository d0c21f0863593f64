/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes of tensors into memory, for any sharding of the checkpoint, shape of the memory, threads and budget, against a
 * copy of single elements. Also damage, false metadata and system errors. */
#include <fsdpck/convert.h>

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/hash.h"
#include "model.h"
#include "engine/source_impl.h"
#include "tree.h"

enum { GUARD = 0xa5 };

struct fixture { /* a directory with model.safetensors, and checkpoints of it */
    char *root, *file, *out;
    struct model model;
    struct fsdpck_io io;
    struct fsdpck_options opt;
};

static void fixture_free(struct fixture *p)
{
    tree_remove(p->root);
    free(p->root);
    free(p->file);
    free(p->out);
    model_free(&p->model);
}

static void fixture_write(struct fixture *p)
{
    p->root = tree_new();
    p->file = tree_path(p->root, "model.safetensors");
    p->out = tree_path(p->root, "out");
    p->io = model_fast_io();
    p->opt = (struct fsdpck_options){ .io = &p->io };
    model_write_safetensors(&p->model, p->file);
}

static struct fsdpck_source *open_source(const struct fixture *p, const char *path)
{
    struct fsdpck_source *src = NULL;
    struct fsdpck_error err = { 0 };
    if (fsdpck_source_open(path, NULL, &p->opt, &src, &err) != 0)
        fail_msg("%s: %s", err.file, err.message);
    return src;
}

/* Converts the model to a checkpoint on this mesh. */
static void fixture_convert(struct fixture *p, const struct fsdpck_mesh *mesh,
                            const struct fsdpck_placement_rule *rules, size_t nrules, bool compress)
{
    struct fsdpck_error err = { 0 };
    struct fsdpck_source *src = open_source(p, p->file);
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
    memset(r.memory, GUARD, r.nbytes);
    memset(r.want, GUARD, r.nbytes);
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

/* Reads n requests at once. */
static void check_reads(struct fsdpck_source *src, const struct model *m, uint64_t *rng, size_t n)
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

/* ---- random meshes ---- */

struct sharding {
    struct fsdpck_mesh mesh;
    struct fsdpck_placement_rule rule;
};

/* 1-D, HSDP, or two dimensions of which the second shards dimension 1 (of all tensors or none: the names do not tell
 * which have one). */
static struct sharding random_sharding(uint64_t *rng, bool two)
{
    static const uint32_t sizes[] = { 1, 2, 3, 5, 8 };
    uint32_t a = sizes[model_below(rng, 5)], b = sizes[model_below(rng, 3)];
    struct sharding s = { .mesh = { .ndim = 1, .names = { "shard" }, .sizes = { a } } };
    if (two)
        s.mesh = (struct fsdpck_mesh){ .ndim = 2, .names = { "dp", "tp" }, .sizes = { b, a } };
    else if (model_below(rng, 2))
        s.mesh = (struct fsdpck_mesh){ .ndim = 2, .names = { "replicate", "shard" }, .sizes = { b, a } };
    s.rule = (struct fsdpck_placement_rule){ .glob = "*",
                                             .n = 1,
                                             .mesh_dim = { "tp" },
                                             .placement = {
                                                 { .kind = FSDPCK_SHARD, .dim = (uint32_t)model_below(rng, 2) } } };
    return s;
}

static void test_random_boxes(void **state)
{
    (void)state;
    uint64_t rng = 1;
    for (int i = 0; i < 18; i++) {
        struct fixture p = { 0 };
        bool two = i % 3 == 2;
        for (int k = 0; k < 6; k++) {
            model_add_random(&p.model, &rng, 1 + model_below(&rng, k == 0 ? 600000 : 90000));
            while (two && p.model.tensors[k].ndim < 2) {
                free(p.model.tensors[--p.model.ntensors].data);
                model_add_random(&p.model, &rng, 100000);
            }
        }
        model_calm(&p.model);
        fixture_write(&p);
        struct sharding s = random_sharding(&rng, two);
        fixture_convert(&p, &s.mesh, &s.rule, two, i % 2);
        struct fsdpck_source *checkpoint = open_source(&p, p.out), *file = open_source(&p, p.file);
        for (int k = 0; k < 8; k++) {
            check_reads(checkpoint, &p.model, &rng, 1 + model_below(&rng, 6));
            check_reads(file, &p.model, &rng, 1 + model_below(&rng, 6));
        }
        fsdpck_source_close(checkpoint);
        fsdpck_source_close(file);
        fixture_free(&p);
    }
}

/* ---- large tensors: several blocks, direct reads, several windows and jobs ---- */

/* Reports that nothing is in the page cache, on any file system, so that reads bypass it. */
static int64_t nothing_cached(void *ctx, int fd, void *buf, uint64_t nbytes, uint64_t offset)
{
    (void)ctx, (void)fd, (void)buf, (void)nbytes, (void)offset;
    return -EAGAIN;
}

static void add_large(struct model *m, uint64_t *rng)
{
    model_add(m, rng, FSDPCK_FLOAT32, 2, (uint64_t[]){ 1500, 1701 }); /* 10 MB; rows end inside blocks */
    model_add(m, rng, FSDPCK_UINT8, 1, (uint64_t[]){ 9000001 });
    model_add(m, rng, FSDPCK_BFLOAT16, 3, (uint64_t[]){ 3, 1024, 200 });
    model_add(m, rng, FSDPCK_FLOAT64, 2, (uint64_t[]){ 7, 65536 }); /* rows of half a megabyte */
}

static void test_large_tensors(void **state)
{
    (void)state;
    uint64_t rng = 2;
    struct fixture p = { 0 };
    add_large(&p.model, &rng);
    model_calm(&p.model);
    fixture_write(&p);
    for (int i = 0; i < 8; i++) {
        if (i % 4 == 0)
            fixture_convert(&p, &(struct fsdpck_mesh){ .ndim = 1, .names = { "shard" }, .sizes = { 2 } }, NULL, 0,
                            i >= 4);
        p.opt.nthreads = i % 2 ? 1 : 3;
        p.opt.memory_nbytes = i % 4 < 2 ? 0 : 8u << 20;
        p.io.pread_cached = i % 4 == 1 || i % 4 == 2 ? nothing_cached : fsdpck_io_posix.pread_cached;
        struct fsdpck_source *checkpoint = open_source(&p, p.out), *file = open_source(&p, p.file);
        struct fsdpck_error err = { 0 };
        assert_null(model_differs(&p.model, checkpoint, &err));
        assert_null(model_differs(&p.model, file, &err));
        for (int k = 0; k < 4; k++) {
            check_reads(checkpoint, &p.model, &rng, 1 + model_below(&rng, 2));
            check_reads(file, &p.model, &rng, 1 + model_below(&rng, 2));
        }
        fsdpck_source_close(checkpoint);
        fsdpck_source_close(file);
    }
    fixture_free(&p);
}

/* A rank requests rows: each piece may read at most two blocks more. */
static void test_plan_of_rows(void **state)
{
    (void)state;
    uint64_t rng = 3;
    struct fixture p = { 0 };
    add_large(&p.model, &rng);
    fixture_write(&p);
    fixture_convert(&p, &(struct fsdpck_mesh){ .ndim = 1, .names = { "shard" }, .sizes = { 3 } }, NULL, 0, false);
    for (int kind = 0; kind < 2; kind++) {
        struct fsdpck_source *src = open_source(&p, kind ? p.file : p.out);
        for (int i = 0; i < 300; i++) {
            const struct fsdpck_tensor *t = fsdpck_source_tensor(src, model_below(&rng, 4));
            uint64_t offset[MODEL_MAX_DIMS] = { model_below(&rng, t->shape[0]) }, size[MODEL_MAX_DIMS];
            memcpy(size, t->shape, t->ndim * 8);
            size[0] = 1 + model_below(&rng, t->shape[0] - offset[0]);
            struct fsdpck_read read = { .tensor = t, .offset = offset, .size = size };
            struct fsdpck_plan plan;
            assert_int_equal(fsdpck_source_plan(src, &read, 1, &plan, NULL), 0);
            uint64_t rows = (t->shape[0] + 2) / 3,
                     nfiles = kind ? 1 : (offset[0] + size[0] - 1) / rows - offset[0] / rows + 1;
            assert_int_equal(plan.nfiles, nfiles);
            assert_int_equal(plan.nruns, nfiles);
            assert_int_equal(plan.needed_nbytes, t->nbytes / t->shape[0] * size[0]);
            assert_true(plan.read_nbytes >= plan.needed_nbytes);
            assert_true(plan.read_nbytes <= plan.needed_nbytes + (kind ? 0 : 2 * FSDPCK_BLOCK_NBYTES * plan.nruns));
        }
        fsdpck_source_close(src);
    }
    fixture_free(&p);
}

/* ---- invalid requests ---- */

static void test_bad_requests(void **state)
{
    (void)state;
    uint64_t rng = 4;
    struct fixture p = { 0 };
    model_add(&p.model, &rng, FSDPCK_FLOAT32, 2, (uint64_t[]){ 10, 6 });
    fixture_write(&p);
    fixture_convert(&p, &(struct fsdpck_mesh){ .ndim = 1, .names = { "shard" }, .sizes = { 3 } }, NULL, 0, false);
    struct fsdpck_source *src = open_source(&p, p.out), *other = open_source(&p, p.file);
    static const uint64_t bad[][4] = { { 0, 0, 11, 6 }, { 0, 1, 1, 6 },          { 10, 0, 1, 1 },
                                       { 11, 0, 0, 0 }, { UINT64_MAX, 0, 2, 1 }, { 1, 0, UINT64_MAX, 1 } };
    uint8_t dst[240];
    memset(dst, GUARD, sizeof dst);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct fsdpck_error err = { 0 };
        struct fsdpck_plan plan;
        struct fsdpck_read read = {
            .tensor = fsdpck_source_tensor(src, 0), .offset = bad[i], .size = bad[i] + 2, .dst = dst
        };
        assert_int_equal(fsdpck_source_read(src, &read, 1, &err), FSDPCK_ERR_USAGE);
        assert_string_equal(err.tensor, "t0.weight");
        assert_int_equal(fsdpck_source_plan(src, &read, 1, &plan, NULL), FSDPCK_ERR_USAGE);
    }
    struct fsdpck_read reads[2] = { { .tensor = fsdpck_source_tensor(src, 0), .dst = dst },
                                    { .tensor = fsdpck_source_tensor(other, 0), .dst = dst } };
    assert_int_equal(fsdpck_source_read(src, reads, 2, NULL), FSDPCK_ERR_USAGE);
    reads[1].tensor = NULL;
    assert_int_equal(fsdpck_source_read(src, reads, 2, NULL), FSDPCK_ERR_USAGE);
    for (size_t i = 0; i < sizeof dst; i++)
        assert_int_equal(dst[i], GUARD); /* refused before any read */
    assert_int_equal(fsdpck_source_read(src, NULL, 0, NULL), 0);
    fsdpck_source_close(src);
    fsdpck_source_close(other);
    fixture_free(&p);
}

/* ---- damage ---- */

static void flip(const char *path, uint64_t offset)
{
    uint8_t b;
    int fd = open(path, O_RDWR);
    assert_int_equal(pread(fd, &b, 1, (off_t)offset), 1);
    b ^= 0x10;
    assert_int_equal(pwrite(fd, &b, 1, (off_t)offset), 1);
    close(fd);
}

struct extent_location {
    uint64_t payload, nbytes;
    uint32_t file;
};

static int note_extent(void *ctx, const struct fsdpck_extent *e, struct fsdpck_error *err)
{
    (void)err;
    *(struct extent_location *)ctx = (struct extent_location){ e->payload, e->payload_nbytes, e->file };
    return 0;
}

/* Rows 0 to 333 of 1000 belong to rank 0, and so on; a row has 2000 bytes. */
static void test_damage(void **state)
{
    (void)state;
    enum { ROW = 2000, EACH = 334 };
    uint64_t rng = 5;
    struct fixture p = { 0 };
    model_add(&p.model, &rng, FSDPCK_INT32, 2, (uint64_t[]){ 1000, ROW / 4 });
    fixture_write(&p);
    fixture_convert(&p, &(struct fsdpck_mesh){ .ndim = 1, .names = { "shard" }, .sizes = { 3 } }, NULL, 0, false);
    uint8_t *dst = malloc(1000 * ROW);
    assert_non_null(dst);
    for (int i = 0; i < 30; i++) {
        struct fsdpck_source *src = open_source(&p, p.out);
        const struct fsdpck_tensor *t = fsdpck_source_tensor(src, 0);
        uint64_t row = model_below(&rng, 1000), rank = row / EACH,
                 at = (row - rank * EACH) * ROW + model_below(&rng, ROW), block = at / FSDPCK_BLOCK_NBYTES;
        struct extent_location w = { 0 };
        assert_int_equal(src->ops->extents(src, 0, (uint64_t[]){ row, 0 }, (uint64_t[]){ 1, 1 }, note_extent, &w, NULL),
                         0);
        assert_int_equal(w.file, rank);
        const char *path = source_files(src)[rank].path;
        flip(path, w.payload + at);
        struct fsdpck_error err = { 0 };
        struct fsdpck_read read = { .tensor = t, .dst = dst };
        assert_int_equal(fsdpck_source_read(src, &read, 1, &err), FSDPCK_ERR_DAMAGED);
        uint64_t end = (block + 1) * FSDPCK_BLOCK_NBYTES < w.nbytes ? (block + 1) * FSDPCK_BLOCK_NBYTES : w.nbytes;
        char want[200];
        snprintf(want, sizeof want, "rows %llu..%llu of rank %llu are damaged",
                 (unsigned long long)(rank * EACH + block * FSDPCK_BLOCK_NBYTES / ROW),
                 (unsigned long long)(rank * EACH + (end + ROW - 1) / ROW - 1), (unsigned long long)rank);
        assert_non_null(strstr(err.message, want));
        assert_string_equal(err.tensor, "t0.weight");
        assert_string_equal(err.file, path);
        assert_true(err.has_offset && err.offset == w.payload + block * FSDPCK_BLOCK_NBYTES);
        /* rows of other blocks are not affected */
        uint64_t far = row >= 500 ? 0 : 900;
        read = (struct fsdpck_read){
            .tensor = t, .offset = (uint64_t[]){ far, 0 }, .size = (uint64_t[]){ 50, 500 }, .dst = dst
        };
        assert_int_equal(fsdpck_source_read(src, &read, 1, NULL), 0);
        assert_memory_equal(dst, p.model.tensors[0].data + far * ROW, 50 * ROW);
        /* one element of the damaged block is affected */
        read = (struct fsdpck_read){
            .tensor = t, .offset = (uint64_t[]){ row, 3 }, .size = (uint64_t[]){ 1, 1 }, .dst = dst
        };
        uint64_t element = (row - rank * EACH) * ROW + 12;
        assert_int_equal(fsdpck_source_read(src, &read, 1, NULL),
                         element / FSDPCK_BLOCK_NBYTES == block ? FSDPCK_ERR_DAMAGED : 0);
        flip(path, w.payload + at);
        fsdpck_source_close(src);
    }
    free(dst);
    fixture_free(&p);
}

/* A stored hash is as relevant as the payload. */
static void test_damaged_hash(void **state)
{
    (void)state;
    uint64_t rng = 6;
    struct fixture p = { 0 };
    model_add(&p.model, &rng, FSDPCK_INT32, 2, (uint64_t[]){ 1000, 500 });
    fixture_write(&p);
    fixture_convert(&p, &(struct fsdpck_mesh){ .ndim = 1, .names = { "shard" }, .sizes = { 1 } }, NULL, 0, false);
    struct fsdpck_source *src = open_source(&p, p.out);
    uint8_t *dst = malloc(2000000);
    struct fsdpck_read read = { .tensor = fsdpck_source_tensor(src, 0), .dst = dst };
    struct fsdpck_error err = { 0 };
    flip(source_files(src)[0].path, source_files(src)[0].pub.nbytes - 64 - 16 * 3 + 5);
    assert_int_equal(fsdpck_source_read(src, &read, 1, &err), FSDPCK_ERR_DAMAGED);
    free(dst);
    fsdpck_source_close(src);
    fixture_free(&p);
}

/* ---- a difficult system ---- */

struct moody {
    struct fsdpck_io io;
    _Atomic uint64_t rng;
    int mood; /* 0: short transfers and EINTR; 1: and nothing is cached; 2: and caching is unknown */
};

static uint64_t throw_dice(struct moody *m, uint64_t n)
{
    uint64_t rng = m->rng++;
    return model_below(&rng, n);
}

static int64_t moody_pread(void *ctx, int fd, void *buf, uint64_t nbytes, uint64_t offset)
{
    struct moody *m = ctx;
    uint64_t dice = throw_dice(m, 4);
    if (dice == 0)
        return -EINTR;
    bool direct = fcntl(fd, F_GETFL) & O_DIRECT;
    int64_t n = fsdpck_io_posix.pread(NULL, fd, buf, direct || dice > 1 ? nbytes : 1 + throw_dice(m, nbytes), offset);
    /* the bytes beyond the result are garbage */
    return n > 1 && direct && dice == 1 ? 1 + (int64_t)throw_dice(m, (uint64_t)n) : n;
}

static int64_t moody_pread_cached(void *ctx, int fd, void *buf, uint64_t nbytes, uint64_t offset)
{
    struct moody *m = ctx;
    uint64_t dice = throw_dice(m, 4);
    if (m->mood == 2)
        return -EOPNOTSUPP;
    if (m->mood == 1 || dice == 0)
        return -EAGAIN;
    return fsdpck_io_posix.pread(NULL, fd, buf, dice == 1 ? 1 + throw_dice(m, nbytes) : nbytes, offset);
}

static void test_moody_system(void **state)
{
    (void)state;
    uint64_t rng = 7;
    struct fixture p = { 0 };
    model_add(&p.model, &rng, FSDPCK_FLOAT32, 2, (uint64_t[]){ 900, 1301 });
    model_add(&p.model, &rng, FSDPCK_UINT8, 1, (uint64_t[]){ 700001 });
    fixture_write(&p);
    fixture_convert(&p, &(struct fsdpck_mesh){ .ndim = 1, .names = { "shard" }, .sizes = { 2 } }, NULL, 0, false);
    for (int i = 0; i < 9; i++) {
        struct moody m = { .io = p.io, .rng = rng, .mood = i % 3 };
        m.io.ctx = &m;
        m.io.pread = moody_pread;
        m.io.pread_cached = moody_pread_cached;
        p.opt = (struct fsdpck_options){ .io = &m.io, .nthreads = 1 };
        struct fsdpck_source *checkpoint = open_source(&p, p.out), *file = open_source(&p, p.file);
        for (int k = 0; k < 8; k++) {
            check_reads(checkpoint, &p.model, &rng, 2);
            check_reads(file, &p.model, &rng, 2);
        }
        fsdpck_source_close(checkpoint);
        fsdpck_source_close(file);
    }
    fixture_free(&p);
}

/* The file is truncated while it is open: an error, without delay. */
static void test_cut_while_open(void **state)
{
    (void)state;
    uint64_t rng = 8;
    struct fixture p = { 0 };
    model_add(&p.model, &rng, FSDPCK_UINT8, 1, (uint64_t[]){ 3000000 });
    fixture_write(&p);
    p.io.pread_cached = nothing_cached;
    struct fsdpck_source *src = open_source(&p, p.file);
    uint8_t *dst = malloc(3000000);
    struct fsdpck_read read = { .tensor = fsdpck_source_tensor(src, 0), .dst = dst };
    assert_int_equal(fsdpck_source_read(src, &read, 1, NULL), 0); /* so that both descriptors are open */
    for (off_t left = 2000123; left > 500; left /= 7) {
        struct fsdpck_error err = { 0 };
        assert_int_equal(truncate(p.file, left), 0);
        if (fsdpck_source_read(src, &read, 1, &err) != FSDPCK_ERR_MISSING)
            fail_msg("%s: %s", err.file, err.message);
        assert_string_equal(err.file, p.file);
    }
    free(dst);
    fsdpck_source_close(src);
    fixture_free(&p);
}

static void test_stop(void **state)
{
    (void)state;
    uint64_t rng = 9;
    volatile int stop = 1;
    struct fixture p = { 0 };
    model_add(&p.model, &rng, FSDPCK_UINT8, 1, (uint64_t[]){ 100 });
    fixture_write(&p);
    p.opt.stop = &stop;
    struct fsdpck_source *src = open_source(&p, p.file);
    uint8_t dst[100];
    struct fsdpck_read read = { .tensor = fsdpck_source_tensor(src, 0), .dst = dst };
    assert_int_equal(fsdpck_source_read(src, &read, 1, NULL), FSDPCK_ERR_STOPPED);
    fsdpck_source_close(src);
    fixture_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_boxes), cmocka_unit_test(test_large_tensors),  cmocka_unit_test(test_plan_of_rows),
        cmocka_unit_test(test_bad_requests), cmocka_unit_test(test_damage),         cmocka_unit_test(test_damaged_hash),
        cmocka_unit_test(test_moody_system), cmocka_unit_test(test_cut_while_open), cmocka_unit_test(test_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
