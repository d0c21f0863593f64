/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters in a file: gathers find what the owners wrote, of rows at any offset, and name bytes that are others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/value_file.h"
#include "disk_folder.h"

enum { NPIECES = 6, NRANKS = 3, NBYTES = 23 << 20 };

static struct {
    int flip, fail, count; /* number of the read that changes a byte, or that fails; -1: none. Reads so far */
} disk;

static int64_t disk_pread(void *ctx, int fd, void *buf, uint64_t nbytes, uint64_t offset)
{
    const int read = disk.count++;
    if (read == disk.fail)
        return -EIO;
    int64_t n = fsdpck_io_posix.pread(ctx, fd, buf, nbytes > 100000 ? nbytes / 2 : nbytes, offset);
    if (read == disk.flip)
        ((char *)buf)[n / 2] ^= 1;
    return n;
}

static int disk_open(void *ctx, const char *path, int flags, unsigned mode)
{
    return flags & FSDPCK_OPEN_DIRECT ? -EINVAL : fsdpck_io_posix.open(ctx, path, flags, mode);
}

static int new_file(const struct fsdpck_io *io, size_t nbytes, struct value_file **out, struct fsdpck_error *err)
{
    const struct value_file_request req = {
        .io = io, .folder = folder, .nbytes = nbytes, .npieces = NPIECES, .nranks = NRANKS
    };
    return value_file_new(&req, out, err);
}

/* Of odd sizes: larger than a window, smaller than a block, with an empty chunk of the last rank, empty. */
static void make_pieces(struct comm_piece pieces[NPIECES])
{
    static const size_t nbytes[NPIECES] = { 9000002, 6, 4096, 5000005, 0, 70000 },
                        chunk[NPIECES] = { 3000001, 3, 1366, 1666669, 0, 23334 };
    size_t at = 64;
    for (uint32_t i = 0; i < NPIECES; i++) {
        pieces[i] =
            (struct comm_piece){ .number = i, .at = at, .into = at - 64, .nbytes = nbytes[i], .chunk = chunk[i] };
        at += (nbytes[i] / 64 + 2) * 64;
    }
    assert_true(at < NBYTES);
}

static char value_of(size_t at, int round)
{
    return (char)(at * 2654435761u >> 16 ^ (size_t)round);
}

/* Every rank writes its chunks of the pieces. */
static void publish(struct value_file *f, const struct comm_piece *pieces, size_t npieces, int round)
{
    struct fsdpck_error err = { 0 };
    for (uint32_t rank = 0; rank < NRANKS; rank++) {
        for (size_t i = 0; i < npieces; i++) {
            size_t begin, nbytes = comm_piece_chunk(&pieces[i], rank, &begin);
            for (size_t at = pieces[i].at + begin; nbytes-- > 0; at++)
                value_file_map(f)[at] = (unsigned char)value_of(at, round);
        }
        assert_int_equal(value_file_publish(f, rank, pieces, npieces, &err), 0);
    }
    for (uint32_t rank = 0; rank < NRANKS; rank++)
        assert_int_equal(value_file_release(f, rank, pieces, npieces, &err), 0);
}

static void compare(const struct comm_piece *p, const char *gathered, int round)
{
    for (size_t i = 0; i < p->nbytes; i++)
        if (gathered[p->into + i] != value_of(p->at + i, round))
            fail_msg("piece %u, byte %zu of round %d", p->number, i, round);
}

static void same_bytes(void **state)
{
    const bool direct = *state == NULL;
    struct fsdpck_io io = fsdpck_io_posix;
    struct comm_piece pieces[NPIECES];
    struct value_window window = { 0 };
    struct fsdpck_error err = { 0 };
    struct value_file *f;
    char *into = calloc(NBYTES, 1);
    if (!direct)
        io.open = disk_open;
    make_pieces(pieces);
    assert_int_equal(new_file(&io, NBYTES, &f, &err), 0);
    publish(f, pieces, NPIECES, 0);
    for (int round = 1; round < 4; round++) {
        publish(f, pieces + 2, NPIECES - 2, round); /* the others are frozen */
        memset(into, 0x55, NBYTES);
        assert_int_equal(value_file_gather(f, &window, 1, NULL, pieces, NPIECES, into, &err), 0);
        for (size_t i = 0; i < NPIECES; i++)
            compare(&pieces[i], into, i < 2 ? 0 : round);
    }
    value_window_free(&window);
    value_file_free(f);
    free(into);
}

/* A read that fails, and one that gives other bytes, are errors of the gather; the next one is whole again. */
static void failing_disk(void **state)
{
    struct fsdpck_io io = fsdpck_io_posix;
    struct comm_piece pieces[NPIECES];
    struct value_window window = { 0 };
    struct fsdpck_error err = { 0 };
    struct value_file *f;
    char *into = calloc(NBYTES, 1);
    (void)state;
    io.pread = disk_pread;
    make_pieces(pieces);
    assert_int_equal(new_file(&io, NBYTES, &f, &err), 0);
    publish(f, pieces, NPIECES, 0);
    for (int which = 0; which < 6; which++) {
        for (int flips = 0; flips < 2; flips++) {
            disk.flip = flips ? which : -1;
            disk.fail = flips ? -1 : which;
            disk.count = 0;
            err = (struct fsdpck_error){ 0 };
            assert_int_equal(value_file_gather(f, &window, 2, NULL, pieces, NPIECES, into, &err), FSDPCK_ERR_IO);
            assert_non_null(
                strstr(err.message, "rank 2: the parameters in a file of this folder (fsdp.offload_params)"));
            assert_non_null(strstr(err.message, flips ? "the bytes are not those that were" : "Input/output error"));
            disk.flip = disk.fail = -1;
            assert_int_equal(value_file_gather(f, &window, 2, NULL, pieces, NPIECES, into, &err), 0);
        }
    }
    value_window_free(&window);
    value_file_free(f);
    free(into);
}

/* Another process opens the file of the first one, with the hashes of both, and reads the chunks that it wants. */
static void joined_file(void **state)
{
    static uint64_t hashes[NPIECES * NRANKS];
    static const bool wanted[NRANKS] = { true, false, true };
    struct comm_piece pieces[NPIECES];
    struct value_window window = { 0 };
    struct fsdpck_error err = { 0 };
    struct value_file *f, *other;
    struct value_file_request req = {
        .folder = folder, .nbytes = NBYTES, .npieces = NPIECES, .nranks = NRANKS, .hashes = hashes
    };
    char *into = calloc(NBYTES, 1), path[64];
    (void)state;
    make_pieces(pieces);
    assert_int_equal(value_file_new(&req, &f, &err), 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", value_file_fd(f));
    req.path = path;
    assert_int_equal(value_file_new(&req, &other, &err), 0);
    publish(f, pieces, NPIECES, 7);
    assert_int_equal(value_file_gather(other, &window, 1, wanted, pieces, NPIECES, into, &err), 0);
    for (size_t i = 0; i < NPIECES; i++) {
        for (uint32_t rank = 0; rank < NRANKS; rank++) {
            size_t begin, nbytes = comm_piece_chunk(&pieces[i], rank, &begin);
            for (size_t at = begin; at < begin + nbytes; at++)
                assert_int_equal(into[pieces[i].into + at], wanted[rank] ? value_of(pieces[i].at + at, 7) : 0);
        }
    }
    value_window_free(&window);
    value_file_free(other);
    value_file_free(f);
    free(into);
}

static void full_disk(void **state)
{
    struct fsdpck_error err = { 0 };
    struct value_file *f;
    (void)state;
    assert_int_equal(new_file(NULL, (size_t)1 << 56, &f, &err), FSDPCK_ERR_IO);
    assert_non_null(strstr(err.message, "all ranks: no room for the parameters, "));
    assert_null(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bytes),   { "same_bytes, through the page cache", same_bytes, NULL, NULL, &disk },
        cmocka_unit_test(failing_disk), cmocka_unit_test(joined_file),
        cmocka_unit_test(full_disk),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
