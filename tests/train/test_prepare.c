/* SPDX-License-Identifier: Apache-2.0 */
/* Embeddings and latents before a run on pictures: processes that a launcher started share them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "image/prepare.h"
#include "tree.h"

enum { PATH = 512 };

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

static struct prepare work_of(const struct fixture *f)
{
    return (struct prepare){ .config = &f->config, .nthreads = 1, .pictures = f->config.data.train };
}

/* The names of all entries, without computing any. */
static void list(const struct fixture *f, struct picture_set *out)
{
    struct fsdpck_error err = { 0 };
    struct prepare p = work_of(f);
    p.on_paper = true;
    must(image_prepare(&p, out, &err), &err);
}

static bool is_cached(const struct fixture *f, uint64_t name)
{
    char path[PATH + 64];
    snprintf(path, sizeof path, "%s/cache/picture-%016llx.bin", f->folder, (unsigned long long)name);
    return access(path, F_OK) == 0;
}

struct stopper {
    uint64_t at; /* done */
    volatile int stop;
};

static void stop_at(void *ctx, uint64_t done, uint64_t total)
{
    struct stopper *s = ctx;
    (void)total;
    s->stop |= done == s->at;
}

/* Stopped after its own captions, a process has embedded these and no others. */
static void own_part_first(const struct picture_set *all, uint32_t share)
{
    struct fsdpck_error err = { 0 };
    struct fixture f;
    struct stopper s = { 0 };
    struct picture_set set;
    open_fixture(&f);
    for (size_t i = 0; i < all->n; i++)
        s.at += all->entries[i].text % 2 == share;
    struct prepare p = work_of(&f);
    p.share = share;
    p.nsharing = 2;
    p.progress = stop_at;
    p.stop = &s.stop;
    p.ctx = &s;
    assert_int_equal(image_prepare(&p, &set, &err), s.at ? FSDPCK_ERR_STOPPED : 0);
    picture_set_free(&set);
    for (size_t i = 0; i < all->n && s.at; i++) {
        assert_int_equal(is_cached(&f, all->entries[i].text), all->entries[i].text % 2 == share);
        assert_false(is_cached(&f, all->entries[i].latents));
    }
    close_fixture(&f);
}

static void test_own_part_first(void **state)
{
    struct fixture f;
    struct picture_set all;
    (void)state;
    open_fixture(&f);
    list(&f, &all);
    assert_int_equal(all.n, 4);
    own_part_first(&all, 0);
    own_part_first(&all, 1);
    picture_set_free(&all);
    close_fixture(&f);
}

/* One of several, alone, does what the others would have done. */
static void test_all_is_done(void **state)
{
    struct fsdpck_error err = { 0 };
    struct fixture f;
    struct picture_set set;
    (void)state;
    open_fixture(&f);
    struct prepare p = work_of(&f);
    p.share = 2;
    p.nsharing = 3;
    must(image_prepare(&p, &set, &err), &err);
    for (size_t i = 0; i < set.n; i++)
        assert_true(is_cached(&f, set.entries[i].text) && is_cached(&f, set.entries[i].latents));
    assert_true(is_cached(&f, set.no_text));
    picture_set_free(&set);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_own_part_first), cmocka_unit_test(test_all_is_done) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
