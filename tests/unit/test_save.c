/* SPDX-License-Identifier: Apache-2.0 */
/* Saves by several processes: the data read back are those saved, whatever their layout in memory. */
#include <fsdpck/fsdpck.h>

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "save_job.h"
#include "sanitized.h"
#include "tree.h"

/* The same model, written by one process with another number of ranks, has the same content ids wherever both are
 * known. */
static void check_contents(const struct save_job *job)
{
    struct fsdpck_source *a = NULL, *b = NULL, *file = NULL;
    char *path = tree_path(job->root, "model.safetensors"), *out = tree_path(job->root, "converted");
    struct fsdpck_convert_request req = { .out = out,
                                          .mesh = { .ndim = 1, .names = { "shard" }, .sizes = { job->nranks + 1 } } };
    struct fsdpck_error err = { 0 };
    model_write_safetensors(&job->model, path);
    assert_int_equal(fsdpck_source_open(path, NULL, NULL, &file, &err), 0);
    assert_int_equal(fsdpck_convert(file, &req, NULL, NULL, &err), 0);
    assert_int_equal(fsdpck_source_open(job->out, NULL, NULL, &a, &err), 0);
    assert_int_equal(fsdpck_source_open(out, NULL, NULL, &b, &err), 0);
    for (size_t i = 0; i < job->model.ntensors; i++) {
        const struct fsdpck_tensor *x = fsdpck_source_tensor(a, i), *y = fsdpck_source_find(b, x->name);
        assert_true(y && y->has_content);
        if (x->has_content)
            assert_memory_equal(x->content, y->content, 16);
    }
    fsdpck_source_close(a);
    fsdpck_source_close(b);
    fsdpck_source_close(file);
    tree_remove(out);
    tree_remove(path);
    free(out);
    free(path);
}

static void test_random_saves(void **state)
{
    (void)state;
    static const uint32_t nranks[] = { 1, 2, 3, 5, 8 };
    for (uint64_t seed = 1; seed <= (SANITIZED ? 13 : 40); seed++) {
        struct save_job job = save_job_new(seed, nranks[seed % 5]);
        save_job_add_tensors(&job, 1 + seed % MAX_TENSORS, seed % 4 ? 3000 : 400000);
        job.alias = seed % 3 == 0;
        job.state = seed % 2 ? "{\"step\": 7, \"nested\": {\"a\": [1, 2.5, \"x\"]}}" : NULL;
        save_job_succeeds(&job);
        save_job_check(&job);
        save_job_check_tidy(&job);
        check_contents(&job);
        save_job_free(&job);
    }
}

/* More than one 4 MiB band of a box, transposed and backwards in some cases. */
static void test_large_boxes(void **state)
{
    (void)state;
    for (uint64_t seed = 101; seed <= 103; seed++) {
        struct save_job job = save_job_new(seed, 2);
        model_add(&job.model, &(uint64_t){ seed }, FSDPCK_FLOAT32, 2, (uint64_t[]){ 1731, 1733 });
        model_add(&job.model, &(uint64_t){ seed + 1 }, FSDPCK_INT8, 3, (uint64_t[]){ 3, 5, 700001 });
        job.spreads[0] = (struct save_spread){ .placements = { { .kind = FSDPCK_SHARD, .dim = seed == 103 } },
                                               .has_content = seed != 103 };
        job.spreads[1] = (struct save_spread){ .placements = { { .kind = FSDPCK_REPLICATE } }, .has_content = true };
        save_job_succeeds(&job);
        save_job_check(&job);
        save_job_free(&job);
    }
}

static void test_assets(void **state)
{
    (void)state;
    struct save_job job = save_job_new(200, 2);
    save_job_add_tensors(&job, 3, 1000);
    tree_file(job.root, "folder/config.json", "{\"model_type\": \"tiny\"}");
    tree_file(job.root, "folder/sub/words.txt", "one two");
    job.assets = tree_path(job.root, "folder");
    save_job_succeeds(&job);
    save_job_check(&job);
    char *config = tree_path(job.out, "assets"), *dump = tree_dump(config);
    assert_string_equal(dump, "config.json={\"model_type\": \"tiny\"}\nsub/\nsub/words.txt=one two\n");
    free(dump);
    free(config);
    free((char *)job.assets);
    save_job_free(&job);
}

/* Every rank refuses an existing output and leaves it unchanged; force replaces it. */
static void test_existing_output(void **state)
{
    (void)state;
    for (uint32_t nranks = 1; nranks <= 3; nranks++) {
        struct save_job job = save_job_new(300 + nranks, nranks), other = save_job_new(400 + nranks, 1 + nranks % 3);
        save_job_add_tensors(&job, 4, 2000);
        save_job_add_tensors(&other, 5, 2000);
        save_job_succeeds(&job);
        struct fsdpck_error err = save_job_fails(&job, 0);
        assert_int_equal(err.code, FSDPCK_ERR_EXISTS);
        if (nranks > 1) /* the others did not fail themselves */
            assert_int_equal(save_job_fails(&job, 1).code, FSDPCK_ERR_PEER);
        save_job_check(&job);
        char *root = other.root, *out = other.out;
        other.root = job.root, other.out = job.out, other.force = true, other.state = "{\"again\":true}";
        save_job_succeeds(&other);
        save_job_check(&other);
        save_job_check_tidy(&other);
        other.root = root, other.out = out;
        save_job_free(&job);
        save_job_free(&other);
    }
}

static void ask_to_stop(void *ctx, uint64_t done_nbytes, uint64_t total_nbytes)
{
    (void)total_nbytes;
    *(volatile int *)ctx = done_nbytes != 0;
}

/* One that asks while the last box is reported can still keep the save from being committed. */
static void test_stop_at_the_end(void **state)
{
    (void)state;
    static const float data[4];
    static const uint64_t shape[1] = { 4 }, offset[1] = { 0 };
    volatile int stop = 0;
    const struct fsdpck_save_box box = { .offset = offset, .size = shape, .data = data };
    const struct fsdpck_save_tensor tensor = {
        .name = "t", .dtype = FSDPCK_FLOAT32, .ndim = 1, .shape = shape, .boxes = &box, .nboxes = 1
    };
    struct save_job job = save_job_new(700, 1);
    const struct fsdpck_save_request req = { .out = job.out, .nranks = 1, .tensors = &tensor, .ntensors = 1 };
    const struct fsdpck_options opt = { .progress = ask_to_stop, .ctx = (void *)&stop, .stop = &stop };
    struct fsdpck_error err = { 0 };
    assert_int_equal(fsdpck_save(&req, &opt, NULL, &err), FSDPCK_ERR_STOPPED);
    assert_true(stop);
    assert_false(tree_exists(job.root, "out"));
    stop = 0;
    assert_int_equal(fsdpck_save(&req, NULL, NULL, NULL), 0);
    save_job_free(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_saves),    cmocka_unit_test(test_large_boxes),     cmocka_unit_test(test_assets),
        cmocka_unit_test(test_existing_output), cmocka_unit_test(test_stop_at_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
