/* SPDX-License-Identifier: Apache-2.0 */
/* The zip directory reader, on one of our items and one of torch's: truncated at every length, every byte changed,
 * every header field falsified. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/ioutil.h"
#include "torch/zip/item.h"
#include "torch/zip/zip.h"

struct bytes {
    uint8_t *data;
    uint64_t nbytes;
};

static int64_t bytes_pread(void *ctx, int fd, void *buf, uint64_t nbytes, uint64_t offset)
{
    const struct bytes *b = ctx;
    (void)fd;
    if (offset >= b->nbytes)
        return 0;
    uint64_t n = nbytes < b->nbytes - offset ? nbytes : b->nbytes - offset;
    memcpy(buf, b->data + offset, n);
    return (int64_t)n;
}

static int bytes_fstat(void *ctx, int fd, struct fsdpck_stat *out)
{
    (void)fd;
    *out = (struct fsdpck_stat){ .type = FSDPCK_FILE_REGULAR, .nbytes = ((const struct bytes *)ctx)->nbytes };
    return 0;
}

static int open_at(struct bytes *b, uint64_t offset, uint64_t nbytes, struct fsdpck_zip *zip, struct fsdpck_error *err)
{
    struct fsdpck_io io = { .ctx = b, .pread = bytes_pread, .fstat = bytes_fstat };
    return fsdpck_zip_open(&io, 0, "f", offset, nbytes, zip, err);
}

/* One of our items with 5 other bytes before it, so that no offset is right by accident. */
static struct bytes our_item(uint64_t nelem)
{
    struct fsdpck_item_layout at;
    fsdpck_item_lay_out(FSDPCK_UINT8, 1, &nelem, 5, &at);
    struct bytes b = { NULL, at.begin + at.head_nbytes + at.payload_nbytes + at.tail_nbytes };
    b.data = calloc(b.nbytes, 1);
    uint8_t *payload = b.data + at.begin + at.head_nbytes;
    memset(payload, 7, nelem);
    fsdpck_item_write(FSDPCK_UINT8, 1, &nelem, &at, fsdpck_crc32(0, payload, nelem), b.data + at.begin,
                      payload + nelem);
    return b;
}

/* The first item of a file from torch 2.15: data descriptors, empty local headers, zip64 end record. */
static struct bytes torch_item(void)
{
    struct bytes b;
    struct fsdpck_error err = { 0 };
    char path[1024], *data;
    const char *root = getenv("FSDPCK_FIXTURES");
    snprintf(path, sizeof path, "%s/dcp/torch-2.15/ckpt/__0_0.distcp", root ? root : "fixtures");
    if (fsdpck_read_file(&fsdpck_io_posix, path, 1 << 20, &data, &b.nbytes, &err))
        fail_msg("%s: %s", path, err.message);
    b.data = malloc(5 + 1577);
    memcpy(b.data + 5, data, 1577);
    b.nbytes = 5 + 1577;
    free(data);
    return b;
}

static bool same_records(const struct fsdpck_zip *a, const struct fsdpck_zip *b)
{
    if (a->nrecords != b->nrecords)
        return false;
    for (size_t i = 0; i < a->nrecords; i++)
        if (strcmp(a->records[i].name, b->records[i].name) || a->records[i].offset != b->records[i].offset ||
            a->records[i].nbytes != b->records[i].nbytes)
            return false;
    return true;
}

static void hurt(struct bytes b)
{
    struct fsdpck_zip zip, other;
    struct fsdpck_error err = { 0 };
    if (open_at(&b, 5, b.nbytes - 5, &zip, &err))
        fail_msg("%s", err.message);
    assert_non_null(fsdpck_zip_find(&zip, "data/0"));
    assert_null(fsdpck_zip_find(&zip, "data/1"));
    for (uint64_t n = 0; n < b.nbytes - 5; n++) {
        err = (struct fsdpck_error){ 0 };
        assert_int_equal(open_at(&b, 5, n, &other, &err), FSDPCK_ERR_FORMAT); /* a truncated item */
        struct bytes cut = { b.data, 5 + n };
        err = (struct fsdpck_error){ 0 };
        assert_int_equal(open_at(&cut, 5, b.nbytes - 5, &other, &err), FSDPCK_ERR_MISSING); /* a truncated file */
        assert_null(other.records);
    }
    for (uint64_t at = 5; at < b.nbytes; at++)
        for (int bit = 0; bit < 8; bit++) {
            b.data[at] = (uint8_t)(b.data[at] ^ 1 << bit);
            if (!open_at(&b, 5, b.nbytes - 5, &other, NULL) && !same_records(&zip, &other))
                fail_msg("byte %llu, bit %d: other records are believed", (unsigned long long)at - 5, bit);
            b.data[at] = (uint8_t)(b.data[at] ^ 1 << bit);
            fsdpck_zip_free(&other);
        }
    fsdpck_zip_free(&zip);
    free(b.data);
}

static void test_hurt_ours(void **state)
{
    (void)state;
    hurt(our_item(300));
}

static void test_hurt_torch(void **state)
{
    (void)state;
    hurt(torch_item());
}

/* Offset of the n-th (from 0) header with this signature. */
static uint64_t find_header(const struct bytes *b, const char *signature, int n)
{
    for (uint64_t at = 5; at + 4 <= b->nbytes; at++)
        if (!memcmp(b->data + at, signature, 4) && n-- == 0)
            return at;
    fail_msg("no such header");
    return 0;
}

#define LOCAL   "PK\3\4"
#define ENTRY   "PK\1\2"
#define END     "PK\5\6"
#define END64   "PK\6\6"
#define LOCATOR "PK\6\7"

static void test_lies(void **state)
{
    (void)state;
    static const struct {
        bool torch;
        const char *header;
        int n, field, nbytes;
        uint64_t value;
        int code;
        const char *words;
    } lies[] = {
        { false, LOCAL, 0, 0, 4, 0, FSDPCK_ERR_FORMAT, "no local header" },
        { false, LOCAL, 0, 6, 2, 0, FSDPCK_ERR_FORMAT, "disagree" },
        { false, LOCAL, 0, 8, 2, 8, FSDPCK_ERR_FORMAT, "disagree" },
        { false, LOCAL, 3, 14, 4, 1, FSDPCK_ERR_FORMAT, "disagree" },
        { false, LOCAL, 3, 18, 4, 299, FSDPCK_ERR_FORMAT, "disagree" },
        { false, LOCAL, 3, 22, 4, 301, FSDPCK_ERR_FORMAT, "disagree" },
        { false, LOCAL, 3, 22, 4, 0xffffffff, FSDPCK_ERR_FORMAT, "disagree" },
        { false, LOCAL, 1, 26, 2, 16, FSDPCK_ERR_FORMAT, "disagree" },
        { false, LOCAL, 1, 26, 2, 65535, FSDPCK_ERR_FORMAT, "beyond the directory" },
        { false, LOCAL, 1, 28, 2, 65535, FSDPCK_ERR_FORMAT, "beyond the directory" },
        { false, LOCAL, 1, 28, 2, 40, FSDPCK_ERR_FORMAT, "disagree" },
        { true, LOCAL, 0, 28, 2, 1, FSDPCK_ERR_FORMAT, "not followed by its data descriptor" },
        { true, "PK\7\10", 0, 4, 4, 1, FSDPCK_ERR_FORMAT, "not followed by its data descriptor" },
        { true, "PK\7\10", 0, 8, 4, 1, FSDPCK_ERR_FORMAT, "not followed by its data descriptor" },
        { false, LOCAL, 1, 30, 1, 'A', FSDPCK_ERR_FORMAT, "'archive/byteorder': local header and directory disagree" },
        { false, ENTRY, 3, 0, 4, 0, FSDPCK_ERR_FORMAT, "fewer records" },
        { false, ENTRY, 3, 8, 2, 0x0801, FSDPCK_ERR_UNSUPPORTED, "encrypted" },
        { false, ENTRY, 3, 10, 2, 8, FSDPCK_ERR_UNSUPPORTED, "compressed (method 8)" },
        { false, ENTRY, 3, 16, 4, 1, FSDPCK_ERR_FORMAT, "disagree" },
        { false, ENTRY, 3, 20, 4, 299, FSDPCK_ERR_UNSUPPORTED, "compressed" },
        { false, ENTRY, 3, 24, 4, 0xffffffff, FSDPCK_ERR_FORMAT, "zip64 field is missing" },
        { false, ENTRY, 3, 28, 2, 0, FSDPCK_ERR_FORMAT, "no usable name" },
        { false, ENTRY, 3, 28, 2, 13, FSDPCK_ERR_FORMAT, "disagree" },
        { false, ENTRY, 3, 30, 2, 1, FSDPCK_ERR_FORMAT, "no usable name" },
        { false, ENTRY, 1, 32, 2, 1, FSDPCK_ERR_FORMAT, "fewer records" },
        { false, ENTRY, 3, 34, 2, 1, FSDPCK_ERR_FORMAT, "another disk" },
        { false, ENTRY, 3, 42, 4, 0, FSDPCK_ERR_FORMAT, "disagree" },
        { false, ENTRY, 3, 42, 4, 0xfffffff0, FSDPCK_ERR_FORMAT, "the directory begins at" },
        { false, ENTRY, 3, 46, 1, 0, FSDPCK_ERR_FORMAT, "no usable name" },
        { false, END, 0, 0, 4, 0, FSDPCK_ERR_FORMAT, "no zip end record" },
        { false, END, 0, 4, 2, 1, FSDPCK_ERR_FORMAT, "several disks" },
        { false, END, 0, 8, 2, 3, FSDPCK_ERR_FORMAT, "several disks" },
        { false, END, 0, 8, 4, 0x00030003, FSDPCK_ERR_FORMAT, "more records" },
        { false, END, 0, 8, 4, 0x00050005, FSDPCK_ERR_FORMAT, "fewer records" },
        { false, END, 0, 8, 4, 0xffffffff, FSDPCK_ERR_FORMAT, "cannot list 65535 records" },
        { false, END, 0, 12, 4, 1, FSDPCK_ERR_FORMAT, "it must end at" },
        { false, END, 0, 16, 4, 0, FSDPCK_ERR_FORMAT, "it must end at" },
        { false, END, 0, 16, 4, 0xffffffff, FSDPCK_ERR_FORMAT, "it must end at" },
        { false, END, 0, 20, 2, 1, FSDPCK_ERR_FORMAT, "no zip end record" },
        { true, LOCATOR, 0, 8, 8, 0, FSDPCK_ERR_FORMAT, "the zip64 locator points at 0" },
        { true, LOCATOR, 0, 16, 4, 2, FSDPCK_ERR_FORMAT, "the zip64 locator" },
        { true, LOCATOR, 0, 0, 4, 0, FSDPCK_ERR_FORMAT, "it must end at" },
        { true, END64, 0, 0, 4, 0, FSDPCK_ERR_FORMAT, "no zip64 end record" },
        { true, END64, 0, 4, 8, 45, FSDPCK_ERR_FORMAT, "no zip64 end record" },
        { true, END64, 0, 24, 8, 6, FSDPCK_ERR_FORMAT, "disagree" },
        { true, END64, 0, 32, 8, 8, FSDPCK_ERR_FORMAT, "disagree" },
        { true, END64, 0, 40, 8, UINT64_MAX, FSDPCK_ERR_FORMAT, "disagree" },
        { true, END64, 0, 48, 8, UINT64_MAX, FSDPCK_ERR_FORMAT, "disagree" },
        { true, END64, 0, 16, 4, 1, FSDPCK_ERR_FORMAT, "disagree" },
        { true, END64, 0, 20, 4, 1, FSDPCK_ERR_FORMAT, "disagree" },
        { true, END, 0, 8, 4, 0x00010001, FSDPCK_ERR_FORMAT, "disagree" },
        { true, END, 0, 12, 4, 1, FSDPCK_ERR_FORMAT, "disagree" },
        { true, END, 0, 16, 4, 1, FSDPCK_ERR_FORMAT, "disagree" },
        { true, LOCAL, 0, 22, 4, 1, FSDPCK_ERR_FORMAT, "disagree" },
        { true, ENTRY, 0, 20, 8, 0x1000000010, FSDPCK_ERR_FORMAT, "'archive/data.pkl'" },
    };
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        struct bytes b = lies[i].torch ? torch_item() : our_item(300);
        struct fsdpck_error err = { 0 };
        struct fsdpck_zip zip;
        uint8_t value[8];
        fsdpck_put64(value, lies[i].value);
        memcpy(b.data + find_header(&b, lies[i].header, lies[i].n) + lies[i].field, value, (size_t)lies[i].nbytes);
        int r = open_at(&b, 5, b.nbytes - 5, &zip, &err);
        if (r != lies[i].code || !strstr(err.message, lies[i].words))
            fail_msg("lie %zu: %d, '%s', want %d, '%s'", i, r, err.message, lies[i].code, lies[i].words);
        free(b.data);
    }
}

/* Two directory entries for one record. */
static void test_twice(void **state)
{
    (void)state;
    struct bytes b = our_item(300);
    struct fsdpck_error err = { 0 };
    struct fsdpck_zip zip;
    uint64_t first = find_header(&b, ENTRY, 0), second = find_header(&b, ENTRY, 1);
    uint64_t size = b.nbytes, end = find_header(&b, END, 0), entry_nbytes = second - first;
    b.data = realloc(b.data, size + entry_nbytes);
    b.nbytes = size + entry_nbytes;
    memmove(b.data + first + entry_nbytes, b.data + first, size - first);
    end += entry_nbytes;
    fsdpck_put16(b.data + end + 8, 5);
    fsdpck_put16(b.data + end + 10, 5);
    fsdpck_put32(b.data + end + 12, fsdpck_le32(b.data + end + 12) + (uint32_t)entry_nbytes);
    assert_int_equal(open_at(&b, 5, b.nbytes - 5, &zip, &err), FSDPCK_ERR_FORMAT);
    assert_non_null(strstr(err.message, "'archive/data.pkl' is listed twice"));
    free(b.data);
}

/* A record as long as both headers say, which extends into the next one. */
static void test_overlap(void **state)
{
    (void)state;
    struct bytes b = our_item(300);
    struct fsdpck_error err = { 0 };
    struct fsdpck_zip zip;
    for (int i = 0; i < 2; i++) {
        uint8_t *header = b.data + find_header(&b, i ? ENTRY : LOCAL, 1) + (i ? 20 : 18);
        fsdpck_put32(header, 7);
        fsdpck_put32(header + 4, 7);
    }
    assert_int_equal(open_at(&b, 5, b.nbytes - 5, &zip, &err), FSDPCK_ERR_FORMAT);
    assert_non_null(strstr(err.message, "overlap"));
    free(b.data);
}

/* A file of zeros except for its end record, which b holds. */
static int64_t sparse_pread(void *ctx, int fd, void *buf, uint64_t nbytes, uint64_t offset)
{
    const struct bytes *b = ctx;
    (void)fd;
    memset(buf, 0, nbytes);
    if (offset + nbytes == b->nbytes && nbytes >= 22)
        memcpy((char *)buf + nbytes - 22, b->data, 22);
    return (int64_t)nbytes;
}

/* A huge sparse file is not read into memory for the search. */
static void test_giant_directory(void **state)
{
    (void)state;
    uint8_t end[22] = END;
    struct bytes b = { end, (1ull << 30) + 1 + sizeof end };
    struct fsdpck_io io = { .ctx = &b, .pread = sparse_pread };
    struct fsdpck_error err = { 0 };
    struct fsdpck_zip zip;
    fsdpck_put32(end + 12, (1u << 30) + 1);
    assert_int_equal(fsdpck_zip_open(&io, 0, "f", 0, b.nbytes, &zip, &err), FSDPCK_ERR_LIMIT);
    assert_non_null(strstr(err.message, "a zip directory of 1073741825 bytes"));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_hurt_ours), cmocka_unit_test(test_hurt_torch),
                                        cmocka_unit_test(test_lies),      cmocka_unit_test(test_twice),
                                        cmocka_unit_test(test_overlap),   cmocka_unit_test(test_giant_directory) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
