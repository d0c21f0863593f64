/* SPDX-License-Identifier: Apache-2.0 */
/* Reads of damaged checkpoints, on a system with short transfers, of files that shrink, and reads that are stopped. */
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
#include "engine/source_impl.h"
#include "read_case.h"

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
    struct read_case p = { 0 };
    model_add(&p.model, &rng, FSDPCK_INT32, 2, (uint64_t[]){ 1000, ROW / 4 });
    read_case_write(&p);
    read_case_convert(&p, &(struct fsdpck_mesh){ .ndim = 1, .names = { "shard" }, .sizes = { 3 } }, NULL, 0, false);
    uint8_t *dst = malloc(1000 * ROW);
    assert_non_null(dst);
    for (int i = 0; i < 30; i++) {
        struct fsdpck_source *src = read_case_open(&p, p.out);
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
    read_case_free(&p);
}

/* A stored hash is as relevant as the payload. */
static void test_damaged_hash(void **state)
{
    (void)state;
    uint64_t rng = 6;
    struct read_case p = { 0 };
    model_add(&p.model, &rng, FSDPCK_INT32, 2, (uint64_t[]){ 1000, 500 });
    read_case_write(&p);
    read_case_convert(&p, &(struct fsdpck_mesh){ .ndim = 1, .names = { "shard" }, .sizes = { 1 } }, NULL, 0, false);
    struct fsdpck_source *src = read_case_open(&p, p.out);
    uint8_t *dst = malloc(2000000);
    struct fsdpck_read read = { .tensor = fsdpck_source_tensor(src, 0), .dst = dst };
    struct fsdpck_error err = { 0 };
    flip(source_files(src)[0].path, source_files(src)[0].pub.nbytes - 64 - 16 * 3 + 5);
    assert_int_equal(fsdpck_source_read(src, &read, 1, &err), FSDPCK_ERR_DAMAGED);
    free(dst);
    fsdpck_source_close(src);
    read_case_free(&p);
}

/* ---- an unsteady system ---- */

struct unsteady_io {
    struct fsdpck_io io;
    _Atomic uint64_t rng;
    int kind; /* 0: short transfers and EINTR; 1: and nothing is cached; 2: and caching is unknown */
};

static uint64_t throw_dice(struct unsteady_io *m, uint64_t n)
{
    uint64_t rng = m->rng++;
    return model_below(&rng, n);
}

static int64_t unsteady_pread(void *ctx, int fd, void *buf, uint64_t nbytes, uint64_t offset)
{
    struct unsteady_io *m = ctx;
    uint64_t dice = throw_dice(m, 4);
    if (dice == 0)
        return -EINTR;
    bool direct = fcntl(fd, F_GETFL) & O_DIRECT;
    int64_t n = fsdpck_io_posix.pread(NULL, fd, buf, direct || dice > 1 ? nbytes : 1 + throw_dice(m, nbytes), offset);
    /* the bytes beyond the result are garbage */
    return n > 1 && direct && dice == 1 ? 1 + (int64_t)throw_dice(m, (uint64_t)n) : n;
}

static int64_t unsteady_pread_cached(void *ctx, int fd, void *buf, uint64_t nbytes, uint64_t offset)
{
    struct unsteady_io *m = ctx;
    uint64_t dice = throw_dice(m, 4);
    if (m->kind == 2)
        return -EOPNOTSUPP;
    if (m->kind == 1 || dice == 0)
        return -EAGAIN;
    return fsdpck_io_posix.pread(NULL, fd, buf, dice == 1 ? 1 + throw_dice(m, nbytes) : nbytes, offset);
}

static void test_unsteady_system(void **state)
{
    (void)state;
    uint64_t rng = 7;
    struct read_case p = { 0 };
    model_add(&p.model, &rng, FSDPCK_FLOAT32, 2, (uint64_t[]){ 900, 1301 });
    model_add(&p.model, &rng, FSDPCK_UINT8, 1, (uint64_t[]){ 700001 });
    read_case_write(&p);
    read_case_convert(&p, &(struct fsdpck_mesh){ .ndim = 1, .names = { "shard" }, .sizes = { 2 } }, NULL, 0, false);
    for (int i = 0; i < 9; i++) {
        struct unsteady_io m = { .io = p.io, .rng = rng, .kind = i % 3 };
        m.io.ctx = &m;
        m.io.pread = unsteady_pread;
        m.io.pread_cached = unsteady_pread_cached;
        p.opt = (struct fsdpck_options){ .io = &m.io, .nthreads = 1 };
        struct fsdpck_source *checkpoint = read_case_open(&p, p.out), *file = read_case_open(&p, p.file);
        for (int k = 0; k < 8; k++) {
            read_case_check(checkpoint, &p.model, &rng, 2);
            read_case_check(file, &p.model, &rng, 2);
        }
        fsdpck_source_close(checkpoint);
        fsdpck_source_close(file);
    }
    read_case_free(&p);
}

/* The file is truncated while it is open: an error, without delay. */
static void test_cut_while_open(void **state)
{
    (void)state;
    uint64_t rng = 8;
    struct read_case p = { 0 };
    model_add(&p.model, &rng, FSDPCK_UINT8, 1, (uint64_t[]){ 3000000 });
    read_case_write(&p);
    p.io.pread_cached = read_case_nothing_cached;
    struct fsdpck_source *src = read_case_open(&p, p.file);
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
    read_case_free(&p);
}

static void test_stop(void **state)
{
    (void)state;
    uint64_t rng = 9;
    volatile int stop = 1;
    struct read_case p = { 0 };
    model_add(&p.model, &rng, FSDPCK_UINT8, 1, (uint64_t[]){ 100 });
    read_case_write(&p);
    p.opt.stop = &stop;
    struct fsdpck_source *src = read_case_open(&p, p.file);
    uint8_t dst[100];
    struct fsdpck_read read = { .tensor = fsdpck_source_tensor(src, 0), .dst = dst };
    assert_int_equal(fsdpck_source_read(src, &read, 1, NULL), FSDPCK_ERR_STOPPED);
    fsdpck_source_close(src);
    read_case_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_damaged_hash),
        cmocka_unit_test(test_unsteady_system),
        cmocka_unit_test(test_cut_while_open),
        cmocka_unit_test(test_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
