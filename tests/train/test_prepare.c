/* SPDX-License-Identifier: Apache-2.0 */
/* Embeddings and latents of a run on pictures: ranks share them, a stop or a failure ends all of them, and what was
 * done is not done again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm_local.h"
#include "image/encode.h"
#include "image/prepare.h"
#include "tree.h"

enum { PATH = 512, RANKS = 3 };

struct fixture {
    char folder[PATH], model[PATH];
    struct train_config config;
};

static void must(int rc, const struct fsdpck_error *err)
{
    char line[2048];
    if (rc)
        fail_msg("%s", fsdpck_error_format(err, line, sizeof line));
}

static void open_fixture(struct fixture *f)
{
    struct fsdpck_error err = { 0 };
    char data[PATH];
    snprintf(f->folder, sizeof f->folder, "/tmp/fsdptrain-prepare-XXXXXX");
    assert_non_null(mkdtemp(f->folder));
    snprintf(f->model, sizeof f->model, "%s/tiny-flux2", getenv("FSDPCK_FIXTURES"));
    snprintf(data, sizeof data, "%s/pictures", getenv("FSDPCK_FIXTURES"));
    json_t *root = json_pack("{s:s, s:s, s:{s:s}, s:{s:i, s:i}, s:{s:[s]}}", "model", f->model, "output_dir", f->folder,
                             "data", "train", data, "image", "resolution", 64, "max_sequence_length", 16, "lora",
                             "target_modules", "to_q");
    must(train_config_take("test", root, &f->config, &err), &err);
    must(train_config_set_model(&f->config, f->model, &err), &err);
}

static void close_fixture(struct fixture *f)
{
    train_config_free(&f->config);
    tree_remove(f->folder);
}

static bool is_cached(const struct fixture *f, uint64_t name)
{
    char path[PATH + 64];
    snprintf(path, sizeof path, "%s/cache/picture-%016llx.bin", f->folder, (unsigned long long)name);
    return access(path, F_OK) == 0;
}

/* A rank, which is a thread here, with tables of its own as a process has them. */
struct one {
    const struct fixture *f;
    const char *pictures;
    struct comm_world *world;
    const struct job *job;
    struct job_status *job_status;
    uint32_t rank;
    uint64_t stop_at;     /* entries done; 0: no stop */
    uint64_t done, total; /* of rank 0, as reported last */
    size_t nmissing;
    struct picture_set set;
    struct encoding *encoding;
    struct text_encoder encoder;
    int rc;
    struct fsdpck_error err;
    pthread_t thread;
};

static void count(void *ctx, uint64_t done, uint64_t total)
{
    struct one *o = ctx;
    o->done = done;
    o->total = total;
    if (o->stop_at && done >= o->stop_at)
        job_status_stop(o->job_status);
}

static int open_one(struct one *o)
{
    const struct prepare p = { .pictures = o->pictures };
    const struct sampler_options opt = { .dtype = "bf16", .nthreads = 1 };
    int rc = encoding_new(&o->f->config, &opt.fs, true, &o->encoding, &o->err);
    if (!rc)
        rc = image_prepare(&p, o->encoding, &o->set, &o->err);
    if (!rc)
        rc = encoding_settle(o->encoding, &o->err);
    return rc ? rc
              : text_encoder_describe(&o->encoding->pipeline, &opt, o->encoding->ntext, o->job, &o->encoder, &o->err);
}

static void *run_rank(void *ctx)
{
    struct one *o = ctx;
    struct comm *comm;
    const struct encode work = {
        .encoding = o->encoding, .options = { .dtype = "bf16", .nthreads = 1 }, .progress = count, .ctx = o
    };
    o->rc = comm_world_join(o->world, o->rank, &comm, &o->err);
    if (o->rc)
        return NULL;
    o->rc = encoding_find(o->encoding, comm, &o->err);
    o->nmissing = o->encoding->texts.nmissing + o->encoding->pictures.nmissing;
    if (!o->rc)
        o->rc = encode_texts(&work, &o->encoder, comm, &o->err);
    if (!o->rc)
        o->rc = encode_pictures(&work, comm, &o->err);
    if (o->rc)
        job_status_fail(o->job_status, &o->err);
    comm->ops->free(comm);
    return NULL;
}

/* Ranks that share nothing but the communicator's memory. all: (RANKS) the caller closes them. */
static void encode_together(const struct fixture *f, const char *pictures, uint32_t nranks, uint64_t stop_at,
                            struct one *all)
{
    const struct train_options opt = { .nranks = nranks, .nthreads = 1, .copy_gathers = true };
    const struct job job = { .config = &f->config, .opt = &opt, .nranks = nranks, .nlocal = nranks, .nthreads = 1 };
    struct fsdpck_error err = { 0 };
    struct job_status *job_status;
    struct comm_world *world;
    must(job_status_new(0, nranks, nranks, 60, &job_status, &err), &err);
    for (uint32_t r = 0; r < nranks; r++) {
        all[r] = (struct one){ .f = f, .pictures = pictures, .job = &job, .job_status = job_status, .rank = r };
        all[r].stop_at = r ? 0 : stop_at;
        must(open_one(&all[r]), &all[r].err);
    }
    must(comm_world_new(nranks, job_comm_sizes(&all[0].encoder.whole.job), job_status, &world, &err), &err);
    for (uint32_t r = 0; r < nranks; r++) {
        all[r].world = world;
        assert_int_equal(pthread_create(&all[r].thread, NULL, run_rank, &all[r]), 0);
    }
    for (uint32_t r = 0; r < nranks; r++)
        pthread_join(all[r].thread, NULL);
    comm_world_free(world);
    job_status_free(job_status);
}

static void close_all(struct one *all, uint32_t nranks)
{
    for (uint32_t r = 0; r < nranks; r++) {
        picture_set_free(&all[r].set);
        encoding_free(all[r].encoding);
        text_encoder_close(&all[r].encoder);
    }
}

static size_t count_cached(const struct one *o)
{
    size_t n = is_cached(o->f, o->set.no_text);
    for (size_t i = 0; i < o->set.n; i++) {
        n += o->set.entries[i].text != o->set.no_text && is_cached(o->f, o->set.entries[i].text);
        n += is_cached(o->f, o->set.entries[i].latents);
    }
    return n;
}

/* Stopped after the first waves, ranks have done these and no more; others, fewer, go on with the rest. */
static void test_stopped_and_gone_on(void **state)
{
    struct fixture f;
    struct one all[RANKS];
    (void)state;
    open_fixture(&f);
    encode_together(&f, f.config.data.train, RANKS, 1, all);
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(all[r].rc, FSDPCK_ERR_STOPPED);
        assert_int_equal(all[r].nmissing, 8); /* of four pictures one has no caption, as a text that is left out */
    }
    assert_int_equal(count_cached(&all[0]), RANKS);
    close_all(all, RANKS);
    encode_together(&f, f.config.data.train, 2, 0, all);
    for (uint32_t r = 0; r < 2; r++) {
        must(all[r].rc, &all[r].err);
        assert_int_equal(all[r].nmissing, 8 - RANKS);
    }
    assert_int_equal(all[0].done, 8 - RANKS);
    assert_int_equal(all[0].total, 8 - RANKS);
    assert_int_equal(count_cached(&all[0]), 8);
    close_all(all, 2);
    close_fixture(&f);
}

static void copy_part(const char *from, const char *to, size_t nbytes)
{
    char data[500];
    FILE *in = fopen(from, "r"), *out = fopen(to, "w");
    assert_true(in && out && nbytes <= sizeof data && fread(data, 1, nbytes, in) == nbytes);
    assert_true(fwrite(data, 1, nbytes, out) == nbytes && fclose(in) == 0 && fclose(out) == 0);
}

/* A list of a whole picture and of one that is cut behind its header. */
static void list_broken(const struct fixture *f, char path[2 * PATH])
{
    char whole[2 * PATH], cut[2 * PATH];
    snprintf(whole, sizeof whole, "%s/wide.png", f->config.data.train);
    snprintf(cut, sizeof cut, "%s/cut.png", f->folder);
    snprintf(path, 2 * PATH, "%s/broken.jsonl", f->folder);
    copy_part(whole, cut, 500);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    fprintf(out, "{\"image\": \"cut.png\"}\n{\"image\": \"%s\"}\n", whole);
    assert_int_equal(fclose(out), 0);
}

/* A picture that one rank cannot read ends all of them; the others know that the failure is not theirs. */
static void test_one_fails(void **state)
{
    struct fixture f;
    struct one all[RANKS];
    char path[2 * PATH], line[2048];
    size_t npeers = 0;
    (void)state;
    open_fixture(&f);
    list_broken(&f, path);
    encode_together(&f, path, RANKS, 0, all);
    for (uint32_t r = 0; r < RANKS; r++) {
        npeers += all[r].rc == FSDPCK_ERR_PEER;
        if (all[r].rc != FSDPCK_ERR_PEER)
            assert_non_null(strstr(fsdpck_error_format(&all[r].err, line, sizeof line), "cut.png"));
    }
    assert_int_equal(npeers, RANKS - 1);
    close_all(all, RANKS);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_stopped_and_gone_on), cmocka_unit_test(test_one_fails) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
