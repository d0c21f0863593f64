/* SPDX-License-Identifier: Apache-2.0 */
/* Direct I/O on a strict file system: every offset, length and address must be a multiple of the page size, and
 * transfers may be short. The file system is simulated, so that the test does not depend on the machine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <fsdpck/check.h>
#include <fsdpck/convert.h>

#include "model.h"
#include "tree.h"

enum { PAGE = 4096, MAX_FD = 1024 };

/* The ways in which a direct transfer is short. */
enum shortness { WHOLE, SOME_BYTES, SOME_PAGES, A_SECTOR, NOTHING, REFUSED, INTERRUPTED, NSHORTNESS };

struct strict {
    struct fsdpck_io io;
    enum shortness shortness;
    bool direct[MAX_FD];
    unsigned nreads, nwrites, ncrooked, nshort;
};

static int s_open(void *ctx, const char *path, int flags, unsigned mode)
{
    struct strict *s = ctx;
    int fd = fsdpck_io_posix.open(NULL, path, flags & ~FSDPCK_OPEN_DIRECT, mode);
    if (fd >= MAX_FD)
        abort();
    if (fd >= 0)
        s->direct[fd] = (flags & FSDPCK_OPEN_DIRECT) != 0;
    return fd;
}

/* Decides a direct transfer of nbytes: returns the bytes transferred, or an error. */
static int64_t allowed(struct strict *s, const void *buf, uint64_t nbytes, uint64_t offset)
{
    uint64_t n = nbytes;
    if (((uintptr_t)buf | nbytes | offset) % PAGE != 0) {
        s->ncrooked++;
        return -EINVAL;
    }
    switch (s->shortness) {
    case SOME_BYTES: n = 9 * PAGE + 1000; break;
    case SOME_PAGES: n = 3 * PAGE; break;
    case A_SECTOR: n = 512; break;
    case NOTHING: n = 0; break;
    case REFUSED: return -EINVAL;
    case INTERRUPTED: return s->nshort++ % 2 ? (int64_t)nbytes : -EINTR;
    default: break;
    }
    s->nshort += n < nbytes;
    if (s->nshort > 10000)
        abort(); /* the caller repeats the request for ever */
    return (int64_t)(n < nbytes ? n : nbytes);
}

static int64_t s_pread(void *ctx, int fd, void *buf, uint64_t nbytes, uint64_t offset)
{
    struct strict *s = ctx;
    int64_t n = (int64_t)nbytes;
    if (s->direct[fd]) {
        s->nreads++;
        n = allowed(s, buf, nbytes, offset);
    }
    return n < 0 ? n : fsdpck_io_posix.pread(NULL, fd, buf, (uint64_t)n, offset);
}

static int64_t s_pread_cached(void *ctx, int fd, void *buf, uint64_t nbytes, uint64_t offset)
{
    (void)ctx, (void)fd, (void)buf, (void)nbytes, (void)offset;
    return -EAGAIN;
}

static int64_t s_pwrite(void *ctx, int fd, const void *buf, uint64_t nbytes, uint64_t offset)
{
    struct strict *s = ctx;
    int64_t n = (int64_t)nbytes;
    if (s->direct[fd]) {
        s->nwrites++;
        n = allowed(s, buf, nbytes, offset);
    }
    return n < 0 ? n : fsdpck_io_posix.pwrite(NULL, fd, buf, (uint64_t)n, offset);
}

static void strict_begin(struct strict *s, enum shortness shortness)
{
    memset(s, 0, sizeof *s);
    s->io = model_fast_io();
    s->io.ctx = s;
    s->io.open = s_open;
    s->io.pread = s_pread;
    s->io.pread_cached = s_pread_cached;
    s->io.pwrite = s_pwrite;
    s->shortness = shortness;
}

static void convert(const char *from, const char *out, const struct fsdpck_options *opt)
{
    struct fsdpck_error err = { 0 };
    struct fsdpck_source *src = NULL;
    const struct fsdpck_convert_request req = { .out = out,
                                                .mesh = { .ndim = 1, .names = { "shard" }, .sizes = { 1 } } };
    if (fsdpck_source_open(from, NULL, opt, &src, &err) != 0 || fsdpck_convert(src, &req, opt, NULL, &err) != 0)
        fail_msg("%s: %s", err.file, err.message);
    fsdpck_source_close(src);
}

static void fail_on_problem(void *ctx, const struct fsdpck_problem *p)
{
    (void)ctx;
    fail_msg("%s@%llu: %s", p->file, (unsigned long long)p->offset, p->what);
}

/* Converts safetensors (whose payload begins at any offset) to a checkpoint, and this to another. Both must be
 * complete. */
static void try(const struct model *m, const char *root, enum shortness shortness)
{
    static struct strict s;
    struct fsdpck_error err = { 0 };
    struct fsdpck_verify_result verified;
    struct fsdpck_source *src = NULL;
    char *file = tree_path(root, "m.safetensors"), *a = tree_path(root, "a"), *b = tree_path(root, "b");
    strict_begin(&s, shortness);
    const struct fsdpck_options opt = { .io = &s.io, .nthreads = 1, .memory_nbytes = 16 << 20 };
    convert(file, a, &opt);
    convert(a, b, &opt);
    assert_int_equal(s.ncrooked, 0);
    assert_true(s.nreads > 0 && s.nwrites > 0);
    assert_true(shortness == WHOLE || shortness == REFUSED || s.nshort > 0);
    assert_int_equal(fsdpck_verify(b, NULL, false, NULL, fail_on_problem, NULL, &verified, &err), 0);
    assert_int_equal(fsdpck_source_open(b, NULL, NULL, &src, &err), 0);
    assert_null(model_differs(m, src, &err));
    fsdpck_source_close(src);
    tree_remove(a);
    tree_remove(b);
    free(a);
    free(b);
    free(file);
}

static void test_short_direct_transfers(void **state)
{
    (void)state;
    struct model m = { 0 };
    uint64_t seed = 5;
    char *root = tree_new(), *file = tree_path(root, "m.safetensors");
    model_add(&m, &seed, FSDPCK_FLOAT32, 2, (uint64_t[]){ 3, 5 }); /* shifts the next tensor off the page boundary */
    model_add(&m, &seed, FSDPCK_FLOAT32, 2, (uint64_t[]){ 217, 1024 });
    model_add(&m, &seed, FSDPCK_BFLOAT16, 2, (uint64_t[]){ 333, 1001 });
    model_write_safetensors(&m, file);
    for (enum shortness s = WHOLE; s < NSHORTNESS; s++)
        try(&m, root, s);
    tree_remove(root);
    free(file);
    free(root);
    model_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_short_direct_transfers) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
