/* SPDX-License-Identifier: Apache-2.0 */
/* Saves by several processes of which one fails: all of them get the error, and nothing is left over. */
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
#include "tree.h"

/* Three ranks, two tensors of the same shape, and one sharded by rows and columns. */
static struct save_job small_job(void)
{
    uint64_t rng = 500;
    struct save_job job = save_job_new(500, 3);
    for (int i = 0; i < 2; i++) {
        model_add(&job.model, &rng, FSDPCK_FLOAT32, 2, (uint64_t[]){ 7, 5 });
        job.spreads[i] = (struct save_spread){ .placements = { { .kind = FSDPCK_SHARD } } };
    }
    model_add(&job.model, &rng, FSDPCK_BFLOAT16, 2, (uint64_t[]){ 4, 6 });
    job.spreads[2] = (struct save_spread){ .mesh = -1,
                                           .nboxes = 3,
                                           .offset = { { 0, 0 }, { 0, 4 }, { 3, 0 } },
                                           .size = { { 3, 4 }, { 4, 2 }, { 1, 4 } },
                                           .rank = { 0, 1, 2 } };
    return job;
}

static void expect_spoilt(save_spoil_fn spoil, uint32_t rank, int code, const char *what)
{
    struct save_job job = small_job();
    job.spoil = spoil;
    struct fsdpck_error err = save_job_fails(&job, rank);
    if (err.code != code || !strstr(err.message, what))
        fail_msg("wanted %d '%s', have %d: %s: %s", code, what, err.code, err.file, err.message);
    job.spoil = NULL; /* the next save succeeds */
    save_job_succeeds(&job);
    save_job_free(&job);
}

static void other_shape(struct save_job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t,
                        struct fsdpck_io *io)
{
    static const uint64_t shape[2] = { 6, 5 };
    static const uint64_t size[2] = { 2, 5 }, offset[2] = { 2, 0 };
    static struct fsdpck_save_box box;
    (void)job, (void)io;
    if (req->rank != 1)
        return;
    box = (struct fsdpck_save_box){ .offset = offset, .size = size, .data = t[0].boxes[0].data };
    t[0].shape = shape;
    t[0].boxes = &box;
}

static void other_dtype(struct save_job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t,
                        struct fsdpck_io *io)
{
    (void)job, (void)io;
    if (req->rank == 1)
        t[0].dtype = FSDPCK_INT32;
}

static void other_order(struct save_job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t,
                        struct fsdpck_io *io)
{
    struct fsdpck_save_tensor first = t[0];
    (void)job, (void)io;
    if (req->rank == 2) {
        t[0] = t[1];
        t[1] = first;
    }
}

static void one_tensor_less(struct save_job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t,
                            struct fsdpck_io *io)
{
    (void)job, (void)t, (void)io;
    req->ntensors -= req->rank == 2;
}

static void one_tensor_less_on_rank_0(struct save_job *job, struct fsdpck_save_request *req,
                                      struct fsdpck_save_tensor *t, struct fsdpck_io *io)
{
    (void)job, (void)t, (void)io;
    req->ntensors -= req->rank == 0;
}

static void other_nranks(struct save_job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t,
                         struct fsdpck_io *io)
{
    (void)job, (void)t, (void)io;
    req->nranks += req->rank == 2;
}

static void test_other_lists(void **state)
{
    (void)state;
    expect_spoilt(other_shape, 1, FSDPCK_ERR_USAGE, "list of tensors");
    expect_spoilt(other_dtype, 1, FSDPCK_ERR_USAGE, "list of tensors");
    expect_spoilt(other_order, 2, FSDPCK_ERR_USAGE, "list of tensors");
    expect_spoilt(one_tensor_less, 2, FSDPCK_ERR_USAGE, "list of tensors");
    expect_spoilt(one_tensor_less_on_rank_0, 1, FSDPCK_ERR_USAGE, "list of tensors");
    expect_spoilt(other_nranks, 2, FSDPCK_ERR_USAGE, "list of tensors");
}

static void same_name(struct save_job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t,
                      struct fsdpck_io *io)
{
    (void)job, (void)req, (void)io;
    t[1].name = t[0].name;
}

static void alias_of_nothing(struct save_job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t,
                             struct fsdpck_io *io)
{
    (void)job, (void)io;
    t[req->ntensors++] = (struct fsdpck_save_tensor){ .name = "tied", .alias_of = "untied" };
}

static void state_is_a_list(struct save_job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t,
                            struct fsdpck_io *io)
{
    (void)job, (void)t, (void)io;
    req->state = "[1]";
}

static void no_such_rank(struct save_job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t,
                         struct fsdpck_io *io)
{
    static const uint32_t ranks[] = { 0, 1, 3 };
    (void)req, (void)t, (void)io;
    job->meshes[0].ranks = ranks;
    t[0].nboxes = t[0].nboxes && req->rank < 2 ? 1 : 0;
    t[1].nboxes = t[0].nboxes;
}

static void rank_twice(struct save_job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t,
                       struct fsdpck_io *io)
{
    static const uint32_t ranks[] = { 0, 1, 1 };
    no_such_rank(job, req, t, io);
    job->meshes[0].ranks = ranks;
}

static void mesh_of_none(struct save_job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t,
                         struct fsdpck_io *io)
{
    (void)req, (void)io;
    job->meshes[0].sizes[0] = 0;
    t[0].nboxes = t[1].nboxes = 0;
}

static void test_senseless_requests(void **state)
{
    (void)state;
    expect_spoilt(same_name, 0, FSDPCK_ERR_USAGE, "twice");
    expect_spoilt(alias_of_nothing, 0, FSDPCK_ERR_USAGE, "is not a tensor listed before it");
    expect_spoilt(state_is_a_list, 0, FSDPCK_ERR_USAGE, "not a JSON object");
    expect_spoilt(no_such_rank, 0, FSDPCK_ERR_USAGE, "mesh");
    expect_spoilt(rank_twice, 0, FSDPCK_ERR_USAGE, "mesh");
    expect_spoilt(mesh_of_none, 0, FSDPCK_ERR_USAGE, "mesh");
}

static void wrong_box(struct save_job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t,
                      struct fsdpck_io *io)
{
    static const uint64_t offset[2] = { 4, 0 };
    (void)job, (void)io;
    if (req->rank == 1)
        ((struct fsdpck_save_box *)t[0].boxes)->offset = offset;
}

static void no_box(struct save_job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t,
                   struct fsdpck_io *io)
{
    (void)job, (void)io;
    if (req->rank == 2)
        t[1].nboxes = 0;
}

static void box_outside(struct save_job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t,
                        struct fsdpck_io *io)
{
    static const uint64_t offset[2] = { 1, UINT64_MAX };
    (void)job, (void)io;
    if (req->rank == 1)
        ((struct fsdpck_save_box *)t[2].boxes)->offset = offset;
}

static void overlap(struct save_job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t,
                    struct fsdpck_io *io)
{
    static const uint64_t offset[2] = { 0, 3 };
    (void)job, (void)io;
    if (req->rank == 1)
        ((struct fsdpck_save_box *)t[2].boxes)->offset = offset;
}

static void hole(struct save_job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t,
                 struct fsdpck_io *io)
{
    (void)job, (void)io;
    if (req->rank == 2)
        t[2].nboxes = 0;
}

static void test_wrong_boxes(void **state)
{
    (void)state;
    expect_spoilt(wrong_box, 1, FSDPCK_ERR_USAGE, "not those that mesh and placements give");
    expect_spoilt(no_box, 2, FSDPCK_ERR_USAGE, "not those that mesh and placements give");
    expect_spoilt(box_outside, 1, FSDPCK_ERR_USAGE, "leaves its shape");
    expect_spoilt(overlap, 0, FSDPCK_ERR_FORMAT, "overlap");
    expect_spoilt(hole, 0, FSDPCK_ERR_MISSING, "20 of its 24 elements");
}

/* ---- ranks that fail while they write ---- */

static int64_t full_disk(void *ctx, int fd, const void *buf, uint64_t nbytes, uint64_t offset)
{
    (void)ctx, (void)fd, (void)buf, (void)nbytes, (void)offset;
    return -ENOSPC;
}

static int failing_fsync(void *ctx, int fd)
{
    (void)ctx, (void)fd;
    return -EIO;
}

static void disk_is_full(struct save_job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t,
                         struct fsdpck_io *io)
{
    (void)job, (void)t;
    if (req->rank == 1)
        io->pwrite = full_disk;
}

/* The file looks complete, but the rank knows that it may not be durable. */
static void fsync_fails(struct save_job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t,
                        struct fsdpck_io *io)
{
    (void)job, (void)t;
    if (req->rank == 2)
        io->fsync = failing_fsync;
}

static void rank_0_fails(struct save_job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t,
                         struct fsdpck_io *io)
{
    (void)job, (void)t;
    if (req->rank == 0)
        io->fsync = failing_fsync;
}

static void test_failing_ranks(void **state)
{
    (void)state;
    expect_spoilt(disk_is_full, 1, FSDPCK_ERR_IO, "No space left");
    expect_spoilt(fsync_fails, 2, FSDPCK_ERR_IO, "fsync");
    expect_spoilt(rank_0_fails, 0, FSDPCK_ERR_IO, "");
}

/* OUT is the ranks' working directory, so it is written in place. */
static void work_inside(struct save_job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t,
                        struct fsdpck_io *io)
{
    (void)t, (void)io;
    if (chdir(job->out) != 0)
        abort();
    req->out = ".";
}

static void fail_inside(struct save_job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t,
                        struct fsdpck_io *io)
{
    work_inside(job, req, t, io);
    fsync_fails(job, req, t, io);
}

static void test_in_place(void **state)
{
    (void)state;
    struct save_job job = small_job();
    tree_dir(job.root, "out");
    job.in_place = true;
    job.spoil = fail_inside;
    save_job_fails(&job, 0);
    job.spoil = work_inside;
    save_job_succeeds(&job);
    save_job_check(&job);
    struct fsdpck_error err = save_job_fails(&job, 0);
    assert_int_equal(err.code, FSDPCK_ERR_EXISTS);
    job.force = true;
    job.spoil = fail_inside;
    save_job_fails(&job, 0);
    save_job_check(&job);
    job.spoil = work_inside;
    job.state = "{\"second\":2}";
    save_job_succeeds(&job);
    save_job_check(&job);
    save_job_check_tidy(&job);
    save_job_free(&job);
}

static void test_failing_barrier(void **state)
{
    (void)state;
    for (unsigned call = 1; call <= 2; call++)
        for (uint32_t from = 0; from < 2; from++) { /* for all ranks; for rank 0 only */
            struct save_job job = small_job();
            job.fail_at = call;
            job.fail_to = from ? 0 : MAX_RANKS;
            struct fsdpck_error err = save_job_fails(&job, 0);
            assert_int_equal(err.code, FSDPCK_ERR_PEER);
            assert_non_null(strstr(err.message, "the barrier failed (-77)"));
            job.fail_at = 0;
            save_job_succeeds(&job);
            save_job_free(&job);
        }
}

/* After rank 0 has committed, the checkpoint exists and is not given up. Ranks that can see it report so. */
static void test_barrier_fails_after_the_commit(void **state)
{
    (void)state;
    struct save_job job = small_job();
    job.fail_at = 3;
    save_job_succeeds(&job);
    save_job_check(&job);
    save_job_free(&job);
}

/* Two jobs save the same tensors with other values to one place at the same time. The result is entirely from one of
 * them, and no rank is told otherwise. */
static void test_two_jobs_at_once(void **state)
{
    (void)state;
    for (int round = 0; round < 30; round++) {
        struct save_job jobs[2] = { small_job(), small_job() };
        struct save_run runs[2];
        unsigned nsaved = 0;
        char *own = jobs[1].out;
        jobs[1].out = jobs[0].out;
        for (uint64_t i = 0; i < jobs[1].model.tensors[0].nbytes; i++)
            jobs[1].model.tensors[0].data[i] ^= 0xff;
        for (int k = 0; k < 2; k++)
            runs[k] = save_job_start(&jobs[k]);
        for (int k = 0; k < 2; k++) {
            struct save_shared *s = save_job_finish(&runs[k], jobs[k].nranks);
            for (uint32_t r = 0; r < jobs[k].nranks; r++)
                assert_int_equal(s->code[r] == 0, s->code[0] == 0);
            if (s->code[0] == 0)
                save_job_check(&jobs[k]);
            nsaved += s->code[0] == 0;
            munmap(s, sizeof *s);
        }
        assert_true(nsaved <= 1);
        assert_int_equal(tree_exists(jobs[0].root, "out"), nsaved == 1);
        jobs[1].out = own;
        save_job_free(&jobs[0]);
        save_job_free(&jobs[1]);
    }
}

static void test_one_rank_needs_no_barrier(void **state)
{
    (void)state;
    struct save_job job = small_job();
    struct fsdpck_save_request req = { .out = job.out, .nranks = 1 };
    struct fsdpck_error err = { 0 };
    assert_int_equal(fsdpck_save(&req, NULL, NULL, &err), 0); /* no tensors either */
    save_job_check_tidy(&job);
    req = (struct fsdpck_save_request){ .out = job.out, .nranks = 2, .force = true };
    assert_int_equal(fsdpck_save(&req, NULL, NULL, &err), FSDPCK_ERR_USAGE);
    req = (struct fsdpck_save_request){ .out = job.out, .rank = 1, .nranks = 1, .force = true };
    assert_int_equal(fsdpck_save(&req, NULL, NULL, NULL), FSDPCK_ERR_USAGE);
    req.nranks = 0;
    assert_int_equal(fsdpck_save(&req, NULL, NULL, NULL), FSDPCK_ERR_USAGE);
    save_job_free(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_other_lists),
        cmocka_unit_test(test_senseless_requests),
        cmocka_unit_test(test_wrong_boxes),
        cmocka_unit_test(test_failing_ranks),
        cmocka_unit_test(test_in_place),
        cmocka_unit_test(test_failing_barrier),
        cmocka_unit_test(test_barrier_fails_after_the_commit),
        cmocka_unit_test(test_two_jobs_at_once),
        cmocka_unit_test(test_one_rank_needs_no_barrier),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
