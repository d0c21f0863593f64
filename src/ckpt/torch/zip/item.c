/* SPDX-License-Identifier: Apache-2.0 */
/* The envelope around a payload: a zip like torch.save's, with the payload as its last record. Knows bytes and offsets;
 * no files. */
#include "torch/zip/item.h"

#include <assert.h>
#include <string.h>

#include "base/hash.h"
#include "torch/pickle/write.h"

enum {
    LOCAL_NBYTES = 30,
    ENTRY_NBYTES = 46,
    END_NBYTES = 22,
    END64_NBYTES = 56,
    LOCATOR_NBYTES = 20,
    EXTRA_HEAD_NBYTES = 4,
    ZIP64_NBYTES = 20,
    NRECORDS = 4,
    PICKLE_MAX = 2048
};
#define LARGE_NBYTES 65536u
#define DOS_DATE     0x0021u /* 1980-01-01: the earliest zip date. A fixed date keeps equal checkpoints equal */

/* A buffer to write to, or only a measurement. */
struct sink {
    uint8_t *out; /* NULL: only measure */
    size_t nbytes;
};

struct record {
    const char *name;
    const void *data; /* NULL: the payload, which other code writes */
    uint64_t nbytes, header;
    uint32_t crc32;
};

static void put(struct sink *s, const void *bytes, size_t nbytes)
{
    if (s->out && nbytes)
        memcpy(s->out + s->nbytes, bytes, nbytes);
    s->nbytes += nbytes;
}

static void put_text(struct sink *s, const char *text)
{
    put(s, text, strlen(text));
}

/* Writes fields of 2, 4 or 8 bytes, one after another. */
static void put_le(struct sink *s, unsigned width, uint64_t value)
{
    uint8_t b[8];
    fsdpck_put64(b, value);
    put(s, b, width);
}

/* ---- data.pkl ---- */

static void put_int(struct sink *s, uint64_t value)
{
    uint8_t b[FSDPCK_PICKLE_INT_MAX];
    put(s, b, fsdpck_pickle_put_int(b, value));
}

static void put_string(struct sink *s, const char *text)
{
    put_text(s, "X");
    put_le(s, 4, strlen(text));
    put_text(s, text);
}

static void put_tuple(struct sink *s, const uint64_t *values, uint32_t count)
{
    put_text(s, "(");
    for (uint32_t d = 0; d < count; d++)
        put_int(s, values[d]);
    put_text(s, "t");
}

/* Strides of a dense tensor as torch computes them: a dimension of size 0 counts as 1. */
static void dense_strides(uint32_t ndim, const uint64_t *size, uint64_t *strides)
{
    uint64_t step = 1;
    for (uint32_t d = ndim; d-- > 0;) {
        strides[d] = step;
        step *= size[d] ? size[d] : 1;
    }
}

static uint64_t count_elements(uint32_t ndim, const uint64_t *size)
{
    uint64_t n = 1;
    for (uint32_t d = 0; d < ndim; d++)
        n *= size[d];
    return n;
}

/* _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks), or _v3(…, dtype) over untyped storage, whose
 * size is in bytes. */
static void put_pickle(struct sink *s, enum fsdpck_dtype dtype, uint32_t ndim, const uint64_t *size)
{
    const struct fsdpck_dtype_info *info = fsdpck_dtype_info(dtype);
    bool typed = info->torch_storage;
    uint64_t strides[FSDPCK_MAX_DIMS];
    dense_strides(ndim, size, strides);
    put(s, "\x80\x02", 2);
    put_text(s, typed ? "ctorch._utils\n_rebuild_tensor_v2\n((" : "ctorch._utils\n_rebuild_tensor_v3\n((");
    put_string(s, "storage");
    put_text(s, typed ? "ctorch\n" : "ctorch.storage\n");
    put_text(s, typed ? info->torch_storage : "UntypedStorage");
    put_text(s, "\n");
    put_string(s, "0");
    put_string(s, "cpu");
    put_int(s, count_elements(ndim, size) * (typed ? 1 : info->nbytes));
    put_text(s, "tQ");
    put_int(s, 0);
    put_tuple(s, size, ndim);
    put_tuple(s, strides, ndim);
    put_text(s, "\x89"
                "ccollections\nOrderedDict\n)R");
    if (!typed) {
        put_text(s, "ctorch\n");
        put_text(s, info->name);
        put_text(s, "\n");
    }
    put_text(s, "tR.");
}

/* ---- the zip ---- */

/* Returns whether a record's sizes do not fit in 32 bits (all ones is reserved: it refers to the zip64 field). */
static bool is_wide(const struct record *r)
{
    return r->nbytes >= UINT32_MAX;
}

static void put_sizes(struct sink *s, const struct record *r)
{
    put_le(s, 4, r->crc32);
    put_le(s, 4, is_wide(r) ? UINT32_MAX : r->nbytes);
    put_le(s, 4, is_wide(r) ? UINT32_MAX : r->nbytes);
}

static void put_zip64(struct sink *s, const struct record *r)
{
    if (!is_wide(r))
        return;
    put_le(s, 2, 1);
    put_le(s, 2, ZIP64_NBYTES - EXTRA_HEAD_NBYTES);
    put_le(s, 8, r->nbytes);
    put_le(s, 8, r->nbytes);
}

/* Version needed (4.5 has zip64), flags (UTF-8 names), method (stored), time, date. */
static void put_kind(struct sink *s, bool wide)
{
    put_le(s, 2, wide ? 45 : 20);
    put_le(s, 2, 0x0800);
    put_le(s, 2, 0);
    put_le(s, 2, 0);
    put_le(s, 2, DOS_DATE);
}

/* Returns the padding that aligns the payload, which would otherwise begin at `at`. */
static size_t padding(uint64_t at, uint64_t nbytes)
{
    uint64_t align = nbytes >= LARGE_NBYTES ? 4096 : 64;
    return (size_t)((align - at % align) % align);
}

/* Writes the header of the next record; s->nbytes is its offset in the item, which begins at file offset `begin`. */
static void put_local(struct sink *s, struct record *r, uint64_t begin)
{
    size_t name_nbytes = strlen(r->name), extra_nbytes = is_wide(r) ? ZIP64_NBYTES : 0, pad = 0;
    r->header = s->nbytes;
    if (!r->data) {
        extra_nbytes += EXTRA_HEAD_NBYTES;
        pad = padding(begin + s->nbytes + LOCAL_NBYTES + name_nbytes + extra_nbytes, r->nbytes);
    }
    put_text(s, "PK\x03\x04");
    put_kind(s, is_wide(r));
    put_sizes(s, r);
    put_le(s, 2, name_nbytes);
    put_le(s, 2, extra_nbytes + pad);
    put_text(s, r->name);
    put_zip64(s, r);
    if (r->data) {
        put(s, r->data, r->nbytes);
        return;
    }
    static const uint8_t zeros[4096];
    put_text(s, "FB");
    put_le(s, 2, pad);
    put(s, zeros, pad);
}

static void put_entry(struct sink *s, const struct record *r)
{
    put_text(s, "PK\x01\x02");
    put_le(s, 2, is_wide(r) ? 45 : 20);
    put_kind(s, is_wide(r));
    put_sizes(s, r);
    put_le(s, 2, strlen(r->name));
    put_le(s, 2, is_wide(r) ? ZIP64_NBYTES : 0);
    put_le(s, 2, 0); /* comment */
    put_le(s, 2, 0); /* disk */
    put_le(s, 2, 0); /* attributes */
    put_le(s, 4, 0);
    put_le(s, 4, r->header);
    put_text(s, r->name);
    put_zip64(s, r);
}

static void put_end64(struct sink *s, int nrecords, uint64_t directory, uint64_t directory_nbytes)
{
    put_text(s, "PK\x06\x06");
    put_le(s, 8, END64_NBYTES - 12);
    put_le(s, 2, 45);
    put_le(s, 2, 45);
    put_le(s, 8, 0); /* this disk, and the directory's */
    put_le(s, 8, (uint64_t)nrecords);
    put_le(s, 8, (uint64_t)nrecords);
    put_le(s, 8, directory_nbytes);
    put_le(s, 8, directory);
    put_text(s, "PK\x06\x07");
    put_le(s, 4, 0);
    put_le(s, 8, directory + directory_nbytes);
    put_le(s, 4, 1);
}

/* directory: offset in the item. */
static void put_tail(struct sink *s, const struct record *records, int nrecords, uint64_t directory)
{
    uint64_t before = s->nbytes;
    for (int i = 0; i < nrecords; i++)
        put_entry(s, &records[i]);
    uint64_t directory_nbytes = s->nbytes - before;
    bool wide = directory >= UINT32_MAX;
    if (wide)
        put_end64(s, nrecords, directory, directory_nbytes);
    put_text(s, "PK\x05\x06");
    put_le(s, 4, 0);
    put_le(s, 2, (uint64_t)nrecords);
    put_le(s, 2, (uint64_t)nrecords);
    put_le(s, 4, directory_nbytes);
    put_le(s, 4, wide ? UINT32_MAX : directory);
    put_le(s, 2, 0);
}

/* Builds the item around a payload; a sink without a buffer measures head or tail. */
static void build(enum fsdpck_dtype dtype, uint32_t ndim, const uint64_t *size, uint64_t begin, uint32_t crc32,
                  struct sink *head, struct sink *tail)
{
    uint8_t pickle[PICKLE_MAX];
    struct sink p = { .out = pickle };
    assert(ndim <= FSDPCK_MAX_DIMS);
    put_pickle(&p, dtype, ndim, size);
    uint64_t payload_nbytes = count_elements(ndim, size) * fsdpck_dtype_info(dtype)->nbytes;
    struct record records[NRECORDS] = {
        { .name = "archive/data.pkl", .data = pickle, .nbytes = p.nbytes },
        { .name = "archive/byteorder", .data = "little", .nbytes = 6 },
        { .name = "archive/version", .data = "3\n", .nbytes = 2 },
        { .name = "archive/data/0", .nbytes = payload_nbytes, .crc32 = crc32 },
    };
    for (int i = 0; i < NRECORDS; i++) {
        if (records[i].data)
            records[i].crc32 = fsdpck_crc32(0, records[i].data, records[i].nbytes);
        put_local(head, &records[i], begin);
    }
    put_tail(tail, records, NRECORDS, head->nbytes + payload_nbytes);
}

void fsdpck_item_lay_out(enum fsdpck_dtype dtype, uint32_t ndim, const uint64_t *size, uint64_t begin,
                         struct fsdpck_item_layout *out)
{
    struct sink head = { 0 }, tail = { 0 };
    build(dtype, ndim, size, begin, 0, &head, &tail);
    *out =
        (struct fsdpck_item_layout){ .begin = begin,
                                     .head_nbytes = head.nbytes,
                                     .tail_nbytes = tail.nbytes,
                                     .payload_nbytes = count_elements(ndim, size) * fsdpck_dtype_info(dtype)->nbytes };
}

void fsdpck_item_write(enum fsdpck_dtype dtype, uint32_t ndim, const uint64_t *size,
                       const struct fsdpck_item_layout *layout, uint32_t crc32, uint8_t *head, uint8_t *tail)
{
    struct sink h = { .out = head }, t = { .out = tail };
    build(dtype, ndim, size, layout->begin, crc32, &h, &t);
    assert(h.nbytes == layout->head_nbytes && t.nbytes == layout->tail_nbytes);
}

uint64_t fsdpck_item_value(const void *pickle, uint64_t nbytes, uint8_t *out)
{
    struct sink s = { .out = out };
    struct record records[] = {
        { .name = "archive/data.pkl", .data = pickle, .nbytes = nbytes },
        { .name = "archive/byteorder", .data = "little", .nbytes = 6 },
        { .name = "archive/version", .data = "3\n", .nbytes = 2 },
    };
    int count = sizeof records / sizeof *records;
    for (int i = 0; i < count; i++) {
        records[i].crc32 = fsdpck_crc32(0, records[i].data, records[i].nbytes);
        put_local(&s, &records[i], 0);
    }
    put_tail(&s, records, count, s.nbytes);
    return s.nbytes;
}
