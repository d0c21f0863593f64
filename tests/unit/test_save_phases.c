/* SPDX-License-Identifier: Apache-2.0 */
/* Saves in phases, items and compression: ranks that know only their own parts make the checkpoint of the whole. */
#include <fsdpck/fsdpck.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model.h"
#include "tree.h"

enum { NRANKS = 3, NTENSORS = 5, NITEMS = 2 };

static const uint8_t item_bytes[NITEMS][70001] = { { 1, 2, 3 }, { 4, [70000] = 5 } };
static const uint64_t item_nbytes[NITEMS] = { 3, 70001 };
static const uint32_t item_rank[NITEMS] = { 2, 0 };

struct job {
    char *root, *out;
    struct model model;
    bool compress, force;
    /* Each tensor is cut by rows: the part of rank r begins at row r * rows / NRANKS. */
    uint64_t offsets[NRANKS][NTENSORS][MODEL_MAX_DIMS], sizes[NRANKS][NTENSORS][MODEL_MAX_DIMS];
    struct fsdpck_save_box boxes[NRANKS][NTENSORS];
    struct fsdpck_save_tensor parts[NRANKS][NTENSORS], whole[NTENSORS];
    uint32_t ordinals[NRANKS][NTENSORS];
    size_t nparts[NRANKS];
    struct fsdpck_save_item items[NITEMS], none[NITEMS];
};

static void cut(struct job *j, uint32_t rank, uint32_t i)
{
    const struct model_tensor *t = &j->model.tensors[i];
    uint64_t *offset = j->offsets[rank][i], *size = j->sizes[rank][i];
    memcpy(size, t->shape, sizeof t->shape);
    offset[0] = t->shape[0] * rank / NRANKS;
    size[0] = t->shape[0] * (rank + 1) / NRANKS - offset[0];
    if (size[0] == 0)
        return;
    size_t n = j->nparts[rank]++;
    j->boxes[rank][n] = (struct fsdpck_save_box){ .offset = offset,
                                                  .size = size,
                                                  .data = t->data + offset[0] * (t->nbytes / t->shape[0]) };
    j->parts[rank][n] = j->whole[i];
    j->parts[rank][n].boxes = &j->boxes[rank][n];
    j->parts[rank][n].nboxes = 1;
    j->ordinals[rank][n] = i;
}

static struct job *job_new(void)
{
    static const uint64_t shapes[NTENSORS][2] = { { 7, 5 }, { 1, 9 }, { 1731, 1733 }, { 2, 40000 }, { 0, 3 } };
    struct job *j = calloc(1, sizeof *j);
    uint64_t rng = 5;
    assert_non_null(j);
    j->root = tree_new();
    j->out = tree_path(j->root, "out");
    for (size_t i = 0; i < NTENSORS; i++)
        model_add(&j->model, &rng, i % 2 ? FSDPCK_BFLOAT16 : FSDPCK_FLOAT32, 2, shapes[i]);
    model_calm(&j->model);
    for (uint32_t i = 0; i < NTENSORS; i++) {
        const struct model_tensor *t = &j->model.tensors[i];
        j->whole[i] =
            (struct fsdpck_save_tensor){ .name = t->name, .dtype = t->dtype, .ndim = t->ndim, .shape = t->shape };
        for (uint32_t rank = 0; rank < NRANKS; rank++)
            cut(j, rank, i);
    }
    static const struct fsdpck_key path[] = { { .str = "extra" }, { .position = 4 } };
    for (size_t i = 0; i < NITEMS; i++) {
        j->none[i] =
            (struct fsdpck_save_item){ .name = i ? "extra.4" : "step", .path = i ? path : NULL, .npath = i ? 2 : 0 };
        j->items[i] = j->none[i];
        j->items[i].data = item_bytes[i];
        j->items[i].nbytes = item_nbytes[i];
    }
    return j;
}

static void job_free(struct job *j)
{
    tree_remove(j->root);
    model_free(&j->model);
    free(j->root);
    free(j->out);
    free(j);
}

static struct fsdpck_save_request request(const struct job *j, uint32_t rank)
{
    return (struct fsdpck_save_request){
        .out = j->out, .rank = rank, .nranks = NRANKS, .force = j->force, .compress = j->compress
    };
}

static int write_part(struct job *j, uint32_t rank, struct fsdpck_error *err)
{
    struct fsdpck_save_request req = request(j, rank);
    uint32_t ordinal = NITEMS;
    req.tensors = j->parts[rank];
    req.ntensors = j->nparts[rank];
    for (uint32_t i = 0; i < NITEMS; i++)
        if (item_rank[i] == rank)
            ordinal = i;
    req.items = j->items + ordinal;
    req.nitems = ordinal < NITEMS;
    return fsdpck_save_part(&req, j->ordinals[rank], &ordinal, NULL, NULL, err);
}

static struct fsdpck_save_request whole(const struct job *j)
{
    struct fsdpck_save_request req = request(j, 0);
    req.tensors = j->whole;
    req.ntensors = NTENSORS;
    req.items = j->none;
    req.nitems = NITEMS;
    req.state = "{\"step\":3}";
    return req;
}

static struct fsdpck_save_begun *begin(const struct job *j)
{
    struct fsdpck_save_begun *begun = NULL;
    struct fsdpck_save_request req = request(j, 0);
    assert_int_equal(fsdpck_save_begin(&req, NULL, &begun, NULL), 0);
    return begun;
}

static void save(struct job *j)
{
    struct fsdpck_error err = { 0 };
    struct fsdpck_save_request req = whole(j);
    struct fsdpck_save_begun *begun = begin(j);
    for (uint32_t rank = NRANKS; rank-- > 0;)
        assert_int_equal(write_part(j, rank, &err), 0);
    if (fsdpck_save_commit(begun, &req, NULL, &err) != 0)
        fail_msg("%s: %s: %s", err.file, err.tensor, err.message);
}

static void count_problem(void *ctx, const struct fsdpck_problem *p)
{
    (void)p;
    ++*(unsigned *)ctx;
}

static unsigned count_problems(const struct job *j)
{
    unsigned n = 0;
    struct fsdpck_verify_result result;
    assert_int_equal(fsdpck_verify(j->out, "fsdpck", false, NULL, count_problem, &n, &result, NULL), 0);
    assert_true(result.hashed);
    return n;
}

static void check(struct job *j)
{
    struct fsdpck_source *src = NULL;
    struct fsdpck_error err = { 0 };
    uint8_t *data = malloc(item_nbytes[1]);
    assert_int_equal(fsdpck_source_open(j->out, "fsdpck", NULL, &src, &err), 0);
    assert_null(model_differs(&j->model, src, &err));
    assert_int_equal(fsdpck_source_nitems(src), NITEMS);
    for (size_t i = 0; i < NITEMS; i++) {
        const struct fsdpck_item *item = fsdpck_source_item(src, i);
        assert_string_equal(item->name, j->items[i].name);
        assert_int_equal(item->npath, i ? 2 : 1);
        assert_int_equal(item->nbytes, item_nbytes[i]);
        assert_int_equal(fsdpck_source_read_item(src, i, data, &err), 0);
        assert_memory_equal(data, item_bytes[i], item_nbytes[i]);
    }
    fsdpck_source_close(src);
    free(data);
    assert_int_equal(count_problems(j), 0);
    assert_int_equal(tree_exists(j->out, ".metadata"), !j->compress);
}

/* Whole saves, the second one over the first. */
static void test_phases(void **state)
{
    (void)state;
    struct job *j = job_new();
    for (int compress = 0; compress < 2; compress++) {
        j->compress = compress;
        save(j);
        check(j);
        j->force = true;
    }
    job_free(j);
}

/* The same by fsdpck_save(), on one rank. */
static void test_items_and_compression(void **state)
{
    (void)state;
    struct job *j = job_new();
    for (size_t i = 0; i < NTENSORS; i++) {
        static const uint64_t zero[2];
        const struct model_tensor *t = &j->model.tensors[i];
        j->boxes[0][i] = (struct fsdpck_save_box){ .offset = zero, .size = t->shape, .data = t->data };
        j->whole[i].boxes = &j->boxes[0][i];
        j->whole[i].nboxes = t->nelem > 0;
    }
    for (int compress = 0; compress < 2; compress++) {
        struct fsdpck_save_request req = whole(j);
        struct fsdpck_error err = { 0 };
        req.nranks = 1;
        req.compress = j->compress = compress;
        req.force = compress;
        req.items = j->items;
        assert_int_equal(fsdpck_save(&req, NULL, NULL, &err), 0);
        check(j);
        req.dcp = FSDPCK_DCP_ALWAYS;
        assert_int_equal(fsdpck_save(&req, NULL, NULL, &err), compress ? FSDPCK_ERR_USAGE : FSDPCK_ERR_EXISTS);
    }
    job_free(j);
}

/* ---- what is refused, with nothing changed ---- */

/* Changes the request of the commit, or the parts. */
typedef void (*spoil_fn)(struct job *j, struct fsdpck_save_request *commit);

static void commit_fewer_ranks(struct job *j, struct fsdpck_save_request *commit)
{
    (void)j;
    commit->nranks--;
}

static void commit_fewer_tensors(struct job *j, struct fsdpck_save_request *commit)
{
    (void)j;
    commit->ntensors = 3;
}

static void commit_fewer_items(struct job *j, struct fsdpck_save_request *commit)
{
    (void)j;
    commit->nitems--;
}

static void commit_other_dtype(struct job *j, struct fsdpck_save_request *commit)
{
    (void)commit;
    j->whole[0].dtype = FSDPCK_FLOAT64;
}

static void commit_no_dims(struct job *j, struct fsdpck_save_request *commit)
{
    (void)commit;
    j->whole[0].ndim = FSDPCK_MAX_DIMS + 1;
}

static void commit_name_twice(struct job *j, struct fsdpck_save_request *commit)
{
    (void)commit;
    j->none[0].name = j->whole[0].name;
}

static void commit_bad_key(struct job *j, struct fsdpck_save_request *commit)
{
    static const struct fsdpck_key bad[] = { { .str = "\xff" } };
    (void)commit;
    j->none[0].path = bad;
    j->none[0].npath = 1;
}

static void commit_bad_state(struct job *j, struct fsdpck_save_request *commit)
{
    (void)j;
    commit->state = "[]";
}

static void commit_compressed(struct job *j, struct fsdpck_save_request *commit)
{
    (void)j;
    commit->compress = true;
}

static void part_overlaps(struct job *j, struct fsdpck_save_request *commit)
{
    (void)commit;
    j->offsets[2][0][0]--;
}

static void part_has_hole(struct job *j, struct fsdpck_save_request *commit)
{
    (void)commit;
    j->sizes[1][2][0]--;
}

static void part_has_other_number(struct job *j, struct fsdpck_save_request *commit)
{
    (void)commit;
    j->ordinals[2][j->nparts[2] - 1] = NTENSORS;
}

static void test_refused_commits(void **state)
{
    (void)state;
    static const spoil_fn spoils[] = { commit_fewer_ranks, commit_fewer_tensors, commit_fewer_items,
                                       commit_other_dtype, commit_no_dims,       commit_name_twice,
                                       commit_bad_key,     commit_bad_state,     commit_compressed,
                                       part_overlaps,      part_has_hole,        part_has_other_number };
    for (size_t i = 0; i < sizeof spoils / sizeof *spoils; i++) {
        struct job *j = job_new();
        save(j);
        j->force = true;
        char *before = tree_dump(j->root);
        struct fsdpck_error err = { 0 };
        struct fsdpck_save_begun *begun = begin(j);
        struct fsdpck_save_request req = whole(j);
        spoils[i](j, &req);
        for (uint32_t rank = 0; rank < NRANKS; rank++)
            assert_int_equal(write_part(j, rank, &err), 0);
        assert_int_not_equal(fsdpck_save_commit(begun, &req, NULL, &err), 0);
        assert_true(err.code != 0 && err.message[0]);
        char *after = tree_dump(j->root);
        assert_string_equal(before, after);
        free(before);
        free(after);
        job_free(j);
    }
}

static void test_refused_parts(void **state)
{
    (void)state;
    struct job *j = job_new();
    struct fsdpck_error err = { 0 };
    assert_int_equal(write_part(j, 0, &err), FSDPCK_ERR_PEER); /* nobody began */
    struct fsdpck_save_begun *begun = begin(j), *other = NULL;
    struct fsdpck_save_request req = request(j, 0);
    assert_int_equal(fsdpck_save_begin(&req, NULL, &other, NULL), FSDPCK_ERR_BUSY);
    assert_null(other);
    j->ordinals[0][1] = j->ordinals[0][0];
    assert_int_equal(write_part(j, 0, NULL), FSDPCK_ERR_USAGE);
    j->items[1].nbytes = 0;
    j->ordinals[0][1]++;
    assert_int_equal(write_part(j, 0, NULL), FSDPCK_ERR_USAGE);
    req = whole(j);
    assert_int_equal(fsdpck_save_commit(begun, &req, NULL, NULL), FSDPCK_ERR_PEER); /* no part at all */
    fsdpck_save_abandon(begin(j));
    fsdpck_save_abandon(NULL);
    char *names = tree_names(j->root);
    assert_string_equal(names, "");
    free(names);
    job_free(j);
}

/* A flipped byte of an item or a chunk is found. */
static void test_flipped_bytes(void **state)
{
    (void)state;
    for (int compress = 0; compress < 2; compress++) {
        struct job *j = job_new();
        j->compress = compress;
        save(j);
        char *path = tree_path(j->out, "__0_0.distcp");
        FILE *f = fopen(path, "r+b");
        assert_non_null(f);
        for (long at = 0; at < 8000000; at += 250007) {
            if (fseek(f, 0, SEEK_END) != 0 || at >= ftell(f))
                break;
            fseek(f, at, SEEK_SET);
            int c = fgetc(f);
            fseek(f, at, SEEK_SET);
            fputc(c ^ 1, f);
            fflush(f);
            assert_int_not_equal(count_problems(j), 0);
            fseek(f, at, SEEK_SET);
            fputc(c, f);
            fflush(f);
        }
        fclose(f);
        assert_int_equal(count_problems(j), 0);
        free(path);
        job_free(j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_phases),          cmocka_unit_test(test_items_and_compression),
        cmocka_unit_test(test_refused_commits), cmocka_unit_test(test_refused_parts),
        cmocka_unit_test(test_flipped_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
