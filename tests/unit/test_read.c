/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes of tensors into memory, for any sharding of the checkpoint, shape of the memory, threads and budget, against a
 * copy of single elements. (Failures: test_read_failures.c.) */
#include <fsdpck/convert.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "engine/source_impl.h"
#include "read_case.h"
#include "sanitized.h"

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
    for (int i = 0; i < (SANITIZED ? 6 : 18); i++) {
        struct read_case p = { 0 };
        bool two = i % 3 == 2;
        for (int k = 0; k < 6; k++) {
            model_add_random(&p.model, &rng, 1 + model_below(&rng, k == 0 ? 600000 : 90000));
            while (two && p.model.tensors[k].ndim < 2) {
                free(p.model.tensors[--p.model.ntensors].data);
                model_add_random(&p.model, &rng, 100000);
            }
        }
        model_calm(&p.model);
        read_case_write(&p);
        struct sharding s = random_sharding(&rng, two);
        read_case_convert(&p, &s.mesh, &s.rule, two, i % 2);
        struct fsdpck_source *checkpoint = read_case_open(&p, p.out), *file = read_case_open(&p, p.file);
        for (int k = 0; k < 8; k++) {
            read_case_check(checkpoint, &p.model, &rng, 1 + model_below(&rng, 6));
            read_case_check(file, &p.model, &rng, 1 + model_below(&rng, 6));
        }
        fsdpck_source_close(checkpoint);
        fsdpck_source_close(file);
        read_case_free(&p);
    }
}

/* ---- large tensors: several blocks, direct reads, several windows and jobs ---- */

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
    struct read_case p = { 0 };
    add_large(&p.model, &rng);
    model_calm(&p.model);
    read_case_write(&p);
    for (int i = 0; i < 8; i++) {
        if (i % 4 == 0)
            read_case_convert(&p, &(struct fsdpck_mesh){ .ndim = 1, .names = { "shard" }, .sizes = { 2 } }, NULL, 0,
                              i >= 4);
        p.opt.nthreads = i % 2 ? 1 : 3;
        p.opt.memory_nbytes = i % 4 < 2 ? 0 : 8u << 20;
        p.io.pread_cached = i % 4 == 1 || i % 4 == 2 ? read_case_nothing_cached : fsdpck_io_posix.pread_cached;
        struct fsdpck_source *checkpoint = read_case_open(&p, p.out), *file = read_case_open(&p, p.file);
        struct fsdpck_error err = { 0 };
        assert_null(model_differs(&p.model, checkpoint, &err));
        assert_null(model_differs(&p.model, file, &err));
        for (int k = 0; k < 4; k++) {
            read_case_check(checkpoint, &p.model, &rng, 1 + model_below(&rng, 2));
            read_case_check(file, &p.model, &rng, 1 + model_below(&rng, 2));
        }
        fsdpck_source_close(checkpoint);
        fsdpck_source_close(file);
    }
    read_case_free(&p);
}

/* A rank requests rows: each piece may read at most two blocks more. */
static void test_plan_of_rows(void **state)
{
    (void)state;
    uint64_t rng = 3;
    struct read_case p = { 0 };
    add_large(&p.model, &rng);
    read_case_write(&p);
    read_case_convert(&p, &(struct fsdpck_mesh){ .ndim = 1, .names = { "shard" }, .sizes = { 3 } }, NULL, 0, false);
    for (int kind = 0; kind < 2; kind++) {
        struct fsdpck_source *src = read_case_open(&p, kind ? p.file : p.out);
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
    read_case_free(&p);
}

/* ---- invalid requests ---- */

static void test_bad_requests(void **state)
{
    (void)state;
    uint64_t rng = 4;
    struct read_case p = { 0 };
    model_add(&p.model, &rng, FSDPCK_FLOAT32, 2, (uint64_t[]){ 10, 6 });
    read_case_write(&p);
    read_case_convert(&p, &(struct fsdpck_mesh){ .ndim = 1, .names = { "shard" }, .sizes = { 3 } }, NULL, 0, false);
    struct fsdpck_source *src = read_case_open(&p, p.out), *other = read_case_open(&p, p.file);
    static const uint64_t bad[][4] = { { 0, 0, 11, 6 }, { 0, 1, 1, 6 },          { 10, 0, 1, 1 },
                                       { 11, 0, 0, 0 }, { UINT64_MAX, 0, 2, 1 }, { 1, 0, UINT64_MAX, 1 } };
    uint8_t dst[240];
    memset(dst, READ_CASE_GUARD, sizeof dst);
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
        assert_int_equal(dst[i], READ_CASE_GUARD); /* refused before any read */
    assert_int_equal(fsdpck_source_read(src, NULL, 0, NULL), 0);
    fsdpck_source_close(src);
    fsdpck_source_close(other);
    read_case_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_boxes),
        cmocka_unit_test(test_large_tensors),
        cmocka_unit_test(test_plan_of_rows),
        cmocka_unit_test(test_bad_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
