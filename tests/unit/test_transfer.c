/* SPDX-License-Identifier: Apache-2.0 */
/* The whole engine: models are converted and resharded over meshes of all kinds with the smallest memory. The output,
 * content ids included, equals an element-by-element computation from the input. */
#include <fsdpck/fsdpck.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model.h"
#include "sanitized.h"
#include "shard_check.h"
#include "tree.h"

#define SMALL_MEMORY (8u << 20)

struct fixture {
    char *root;
    struct model model;
    struct fsdpck_io io;
    struct fsdpck_options opt;
    unsigned nsteps;
    uint64_t done, total; /* as reported to progress */
    bool went_back;
    bool compressed; /* of the last step */
};

static void take_progress(void *ctx, uint64_t done, uint64_t total)
{
    struct fixture *p = ctx;
    p->went_back |= done < p->done || done > total;
    p->done = done;
    p->total = total;
}

static void fixture_begin(struct fixture *p)
{
    p->root = tree_new();
    p->io = model_fast_io();
    p->opt = (struct fsdpck_options){ .io = &p->io, .memory_nbytes = SMALL_MEMORY };
}

static void fixture_free(struct fixture *p)
{
    tree_remove(p->root);
    free(p->root);
    model_free(&p->model);
}

/* The model's file, then the output of each step. */
static char *path_of(const struct fixture *p, unsigned step)
{
    char name[32];
    snprintf(name, sizeof name, step ? "step-%u" : "model.safetensors", step);
    return tree_path(p->root, name);
}

static struct fsdpck_source *open_step(struct fixture *p, unsigned step)
{
    struct fsdpck_source *src = NULL;
    struct fsdpck_error err = { 0 };
    char *path = path_of(p, step);
    if (fsdpck_source_open(path, NULL, &p->opt, &src, &err) != 0)
        fail_msg("%s: %s", err.file, err.message);
    free(path);
    return src;
}

static uint64_t model_nbytes(const struct model *m)
{
    uint64_t n = 0;
    for (size_t i = 0; i < m->ntensors; i++)
        n += m->tensors[i].nbytes;
    return n;
}

/* Converts the last step's output once more. */
static void convert(struct fixture *p, struct fsdpck_convert_request req)
{
    struct fsdpck_error err = { 0 };
    struct fsdpck_transfer_result result;
    struct fsdpck_options opt = p->opt;
    struct fsdpck_source *src = open_step(p, p->nsteps);
    char *out = path_of(p, ++p->nsteps);
    req.out = out;
    p->compressed = req.compress;
    opt.progress = take_progress;
    opt.ctx = p;
    p->done = p->total = 0;
    if (fsdpck_convert(src, &req, &opt, &result, &err) != 0)
        fail_msg("step %u: %s: %s: %s", p->nsteps, err.file, err.tensor, err.message);
    assert_int_equal(result.nfiles, fsdpck_mesh_nranks(&req.mesh));
    assert_int_equal(result.ntensors, p->model.ntensors);
    assert_true(p->done == p->total && !p->went_back);
    if (!req.select.cast) {
        assert_int_equal(result.payload_nbytes, model_nbytes(&p->model));
        assert_int_equal(p->total, model_nbytes(&p->model));
    }
    fsdpck_source_close(src);
    free(out);
}

static void check_step(struct fixture *p, bool rows_known)
{
    struct fsdpck_source *src = open_step(p, p->nsteps);
    struct fsdpck_error err = { 0 };
    const char *bad = model_differs(&p->model, src, &err);
    if (bad)
        fail_msg("step %u: %s differs: %s", p->nsteps, bad, err.message);
    for (size_t i = 0; i < p->model.ntensors; i++) {
        const struct fsdpck_tensor *t = fsdpck_source_find(src, p->model.tensors[i].name);
        uint8_t content[16];
        model_content(&p->model.tensors[i], content);
        if (rows_known)
            assert_true(t->has_content);
        if (t->has_content)
            assert_memory_equal(t->content, content, 16);
    }
    bad = p->compressed ? NULL : shard_check(&p->model, fsdpck_source_path(src), (uint32_t)fsdpck_source_nranks(src));
    if (bad)
        fail_msg("step %u: %s", p->nsteps, bad);
    fsdpck_source_close(src);
}

static void expect_no_problem(void *ctx, const struct fsdpck_problem *p)
{
    (void)ctx;
    fail_msg("%s@%llu: %s", p->file, (unsigned long long)p->offset, p->what);
}

static void verify_step(struct fixture *p)
{
    struct fsdpck_verify_result result;
    struct fsdpck_error err = { 0 };
    char *path = path_of(p, p->nsteps);
    assert_int_equal(fsdpck_verify(path, "fsdpck", false, &p->opt, expect_no_problem, NULL, &result, &err), 0);
    assert_int_equal(result.nproblems, 0);
    free(path);
}

static void drop_step(struct fixture *p, unsigned step)
{
    char *path = path_of(p, step);
    tree_remove(path);
    free(path);
}

static void write_model(struct fixture *p)
{
    char *path = path_of(p, 0);
    model_write_safetensors(&p->model, path);
    free(path);
}

/* ---- meshes ---- */

static const struct fsdpck_placement_rule columns = {
    .glob = "t[1-4].*", .n = 1, .mesh_dim = { "tp" }, .placement = { { .kind = FSDPCK_SHARD, .dim = 1 } }
};
static const struct fsdpck_placement_rule rows = {
    .glob = "*", .n = 1, .mesh_dim = { "tp" }, .placement = { { .kind = FSDPCK_SHARD } }
};
static const struct fsdpck_placement_rule only_columns = {
    .glob = "*", .n = 1, .mesh_dim = { "shard" }, .placement = { { .kind = FSDPCK_SHARD, .dim = 1 } }
};

/* Any mesh that the tool accepts. rules: room for one. */
static struct fsdpck_convert_request random_request(uint64_t *rng, struct fsdpck_placement_rule *rule)
{
    static const uint32_t sizes[] = { 1, 2, 3, 4, 7 };
    uint32_t a = sizes[model_below(rng, 5)], b = sizes[model_below(rng, 3)];
    struct fsdpck_convert_request req = { .mesh = { .ndim = 1, .names = { "shard" }, .sizes = { a } } };
    switch (model_below(rng, 5)) {
    case 0: break;
    case 1: req.mesh = (struct fsdpck_mesh){ .ndim = 2, .names = { "replicate", "shard" }, .sizes = { b, a } }; break;
    case 2: *rule = only_columns; break;
    default:
        req.mesh = (struct fsdpck_mesh){ .ndim = 2, .names = { "dp", "tp" }, .sizes = { b, a } };
        *rule = model_below(rng, 2) ? rows : columns;
        rule->glob = "*";
    }
    if (rule->n) {
        req.rules = rule;
        req.nrules = 1;
    }
    return req;
}

static void test_random_chains(void **state)
{
    (void)state;
    uint64_t rng = 1;
    for (int i = 0; i < (SANITIZED ? 6 : 20); i++) {
        struct fixture p = { 0 };
        fixture_begin(&p);
        for (uint64_t k = 1 + model_below(&rng, 6); p.model.ntensors < k;) {
            if (model_add_random(&p.model, &rng, 1 + model_below(&rng, 300000))->ndim <
                2) /* a rule may shard dimension 1 of all of them */
                free(p.model.tensors[--p.model.ntensors].data);
        }
        model_calm(&p.model);
        write_model(&p);
        p.opt.nthreads = 1 + (unsigned)model_below(&rng, 3);
        for (int k = 0; k < 4; k++) {
            struct fsdpck_placement_rule rule = { 0 };
            struct fsdpck_convert_request req = random_request(&rng, &rule);
            req.compress = model_below(&rng, 2);
            convert(&p, req);
            check_step(&p, false);
            verify_step(&p);
        }
        fixture_free(&p);
    }
}

/* Scalars, vectors and empty tensors, with fewer elements than ranks. */
static void test_small_tensors(void **state)
{
    (void)state;
    uint64_t rng = 2;
    struct fixture p = { 0 };
    fixture_begin(&p);
    model_add(&p.model, &rng, FSDPCK_FLOAT64, 0, NULL);
    model_add(&p.model, &rng, FSDPCK_BOOL, 1, (uint64_t[]){ 3 });
    model_add(&p.model, &rng, FSDPCK_INT16, 2, (uint64_t[]){ 5, 0 });
    model_add(&p.model, &rng, FSDPCK_FLOAT8_E4M3FN, 1, (uint64_t[]){ 1 });
    for (int k = 0; k < 30; k++)
        model_add_random(&p.model, &rng, 200);
    write_model(&p);
    static const uint32_t n[] = { 8, 3, 1, 5 };
    for (int k = 0; k < 4; k++) {
        convert(&p, (struct fsdpck_convert_request){ .mesh = { .ndim = 1, .names = { "shard" }, .sizes = { n[k] } } });
        check_step(&p, true);
        verify_step(&p);
    }
    convert(&p, (struct fsdpck_convert_request){
                    .mesh = { .ndim = 2, .names = { "replicate", "shard" }, .sizes = { 3, 2 } } });
    check_step(&p, true);
    verify_step(&p);
    fixture_free(&p);
}

/* Tensors that are many times larger than the memory: lanes of many chunks, windows, cut chunks. */
static void add_large(struct model *m, uint64_t *rng)
{
    model_add(m, rng, FSDPCK_INT64, 2, (uint64_t[]){ 9, 3 });
    model_add(m, rng, FSDPCK_FLOAT32, 2, (uint64_t[]){ 2601, 2101 }); /* 22 MB, where no sizes divide each other */
    model_add(m, rng, FSDPCK_BFLOAT16, 2,
              (uint64_t[]){ 640, 40960 }); /* 52 MB: cut into two lanes if it is one chunk */
    model_add(m, rng, FSDPCK_UINT8, 3, (uint64_t[]){ 3, 7, 200001 });
    model_add(m, rng, FSDPCK_FLOAT64, 2, (uint64_t[]){ 2, 300000 });
}

static void test_large_tensors(void **state)
{
    (void)state;
    uint64_t rng = 3;
    struct fixture p = { 0 };
    fixture_begin(&p);
    add_large(&p.model, &rng);
    model_calm(&p.model);
    write_model(&p);
    struct fsdpck_mesh two = { .ndim = 2, .names = { "dp", "tp" }, .sizes = { 2, 3 } };
    const struct fsdpck_convert_request steps[] = {
        { .mesh = { .ndim = 1, .names = { "shard" }, .sizes = { 1 } } },
        { .mesh = two, .rules = &columns, .nrules = 1 },
        { .mesh = { .ndim = 1, .names = { "shard" }, .sizes = { 40 } },
          .rules = &only_columns,
          .nrules = 1 },                              /* more chunks than a lane may contain */
        { .mesh = two, .rules = &rows, .nrules = 1 }, /* strided */
        { .mesh = { .ndim = 2, .names = { "replicate", "shard" }, .sizes = { 2, 3 } } },
        { .mesh = { .ndim = 1, .names = { "shard" }, .sizes = { 2 } },
          .compress = true }, /* chunks wait for their turn in the file, even those that are never cut */
        { .mesh = two, .rules = &columns, .nrules = 1, .compress = true },
        { .mesh = { .ndim = 1, .names = { "shard" }, .sizes = { 40 } },
          .rules = &only_columns,
          .nrules = 1,
          .compress = true },
    };
    for (size_t k = 0; k < sizeof steps / sizeof *steps; k += SANITIZED ? 3 : 1) {
        p.opt.nthreads = 1 + k % 4;
        convert(&p, steps[k]);
        check_step(&p, true); /* known content ids are carried over */
        drop_step(&p, p.nsteps - 1);
    }
    verify_step(&p);
    fixture_free(&p);
}

/* ---- casts ---- */

static void cast_model(struct model *m, enum fsdpck_dtype to)
{
    for (size_t i = 0; i < m->ntensors; i++) {
        struct model_tensor *t = &m->tensors[i];
        uint64_t item = fsdpck_dtype_info(to)->nbytes;
        uint8_t *data = malloc(t->nelem * item + 1);
        assert_non_null(data);
        if (fsdpck_dtype_cast(t->dtype, t->data, to, data, t->nelem)) {
            free(t->data);
            t->data = data;
            t->dtype = to;
            t->item = item;
            t->nbytes = t->nelem * item;
        } else {
            free(data);
        }
    }
}

static void test_casts(void **state)
{
    (void)state;
    static const enum fsdpck_dtype to[] = { FSDPCK_BFLOAT16, FSDPCK_FLOAT32, FSDPCK_FLOAT16 };
    for (int k = 0; k < (SANITIZED ? 1 : 3); k++)
        for (int by_columns = k == 2; by_columns < 1 + (k != 1); by_columns++) {
            uint64_t rng = 4;
            struct fixture p = { 0 };
            struct fsdpck_convert_request req = { .mesh = { .ndim = 2, .names = { "dp", "tp" }, .sizes = { 1, 3 } },
                                                  .rules = by_columns ? &columns : NULL,
                                                  .nrules = (size_t)by_columns,
                                                  .select = { .cast = true, .dtype = to[k] } };
            fixture_begin(&p);
            add_large(&p.model, &rng);
            write_model(&p);
            convert(&p, req);
            cast_model(&p.model, to[k]);
            check_step(&p, true); /* the content id is that of the written data */
            fixture_free(&p);
        }
}

/* ---- memory ---- */

static void test_too_little_memory(void **state)
{
    (void)state;
    uint64_t rng = 5;
    struct fixture p = { 0 };
    fixture_begin(&p);
    model_add(&p.model, &rng, FSDPCK_INT8, 1, (uint64_t[]){ 10 });
    write_model(&p);
    struct fsdpck_source *src = open_step(&p, 0);
    char *out = path_of(&p, 1), *before = tree_dump(p.root);
    struct fsdpck_convert_request req = { .out = out, .mesh = { .ndim = 1, .names = { "shard" }, .sizes = { 2 } } };
    struct fsdpck_error err = { 0 };
    p.opt.memory_nbytes = SMALL_MEMORY - 1;
    assert_int_equal(fsdpck_convert(src, &req, &p.opt, NULL, &err), FSDPCK_ERR_USAGE);
    assert_non_null(strstr(err.message, "8388607"));
    char *after = tree_dump(p.root);
    assert_string_equal(before, after);
    free(before);
    free(after);
    free(out);
    fsdpck_source_close(src);
    fixture_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_chains),     cmocka_unit_test(test_small_tensors),
        cmocka_unit_test(test_large_tensors),     cmocka_unit_test(test_casts),
        cmocka_unit_test(test_too_little_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
