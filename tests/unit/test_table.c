/* SPDX-License-Identifier: Apache-2.0 */
/* Chunk tables: written tables read back; truncated or changed ones are refused; changed ones with a correct hash are
 * refused or still consistent. */
#include "format/table.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model.h"

enum { MAX_ENTRIES = 70, MAX_NBYTES = 1 << 16, PAYLOAD_NBYTES = 5 * 65536 };

struct image { /* a shard file: PAYLOAD_NBYTES that are never read, then table and trailer */
    uint8_t bytes[MAX_NBYTES];
    uint64_t nbytes; /* of table and trailer */
    uint64_t ndims, nhashes;
    struct fsdpck_table_entry entries[MAX_ENTRIES];
    uint64_t dims[MAX_ENTRIES * 8];
    uint64_t nentries;
};

/* Reads the end of the file from memory; a read beyond it is the end of the file. */
static int64_t read_image(void *ctx, int fd, void *buf, uint64_t nbytes, uint64_t offset)
{
    const struct image *m = ctx;
    (void)fd;
    if (offset < PAYLOAD_NBYTES)
        return -EIO; /* a table must not be read from there */
    offset -= PAYLOAD_NBYTES;
    uint64_t left = offset < m->nbytes ? m->nbytes - offset : 0, n = nbytes < left ? nbytes : left;
    memcpy(buf, m->bytes + offset, n);
    return (int64_t)n;
}

static int read_table(struct image *m, struct fsdpck_table *t, struct fsdpck_error *err)
{
    struct fsdpck_io io = { .ctx = m, .pread = read_image };
    struct fsdpck_trailer trailer;
    memset(err, 0, sizeof *err);
    memset(t, 0, sizeof *t);
    int r = fsdpck_trailer_read(&io, 3, "f", PAYLOAD_NBYTES + m->nbytes, &trailer, err);
    return r == 0 ? fsdpck_table_read(&io, 3, "f", &trailer, t, err) : r;
}

static const uint8_t save_id[16] = { 1, 2, 3, 4, 5, 6, 0x47, 8, 0x89, 10, 11, 12, 13, 14, 15, 16 };

static void add_entry(struct image *m, uint64_t *rng, uint64_t *end)
{
    struct fsdpck_table_entry *e = &m->entries[m->nentries];
    const struct fsdpck_table_entry *last = m->nentries ? e - 1 : NULL;
    bool same = last && last->kind == FSDPCK_CHUNK_TENSOR && model_below(rng, 3) == 0;
    *e = (struct fsdpck_table_entry){ .ordinal = same   ? last->ordinal
                                                 : last ? last->ordinal + 1 + (uint32_t)model_below(rng, 3)
                                                        : 0,
                                      .dims = m->ndims,
                                      .ndim = same ? last->ndim : (uint8_t)model_below(rng, 5),
                                      .first_hash = m->nhashes,
                                      .crc32 = (uint32_t)model_random(rng) };
    if (same && e->ndim == 0)
        e->ordinal++;
    e->kind = last ? last->kind : FSDPCK_CHUNK_TENSOR;
    if (e->kind == FSDPCK_CHUNK_TENSOR && m->nentries > 5 && model_below(rng, 6) == 0)
        e->kind = FSDPCK_CHUNK_ITEM, e->ordinal = 0;
    if (e->kind == FSDPCK_CHUNK_ITEM)
        e->ndim = 0;
    e->nbytes = model_below(rng, 8) ? 1 + model_below(rng, 900) : 65000 + model_below(rng, 2000);
    if (*end + e->nbytes + 32 > PAYLOAD_NBYTES)
        e->nbytes = 1;
    if (e->kind == FSDPCK_CHUNK_TENSOR && model_below(rng, 4) == 0) {
        e->codec = FSDPCK_CODEC_PLANES;
        e->decoded = e->nbytes + (e->nbytes > 1 ? model_below(rng, 200) : 0); /* never more blocks than bytes */
    }
    e->item = *end;
    e->payload = *end + 16;
    e->item_nbytes = e->nbytes + 32;
    *end += e->item_nbytes;
    if ((e->has_content = (uint8_t)model_below(rng, 2)))
        memcpy(e->content, &(uint64_t[2]){ model_random(rng), model_random(rng) }, 16);
    for (uint32_t d = 0; d < 2u * e->ndim; d++)
        m->dims[m->ndims + d] = d || !same ? model_random(rng) : last->ndim ? m->dims[last->dims] + 1 : 0;
    m->ndims += 2u * e->ndim;
    m->nhashes += fsdpck_nslots(e->codec, e->codec ? e->decoded : e->nbytes);
    m->nentries++;
}

/* Recomputes the hashes of table and trailer. */
static void seal(struct image *m)
{
    struct fsdpck_trailer t = { .table = PAYLOAD_NBYTES, .table_nbytes = m->nbytes - FSDPCK_TRAILER_NBYTES };
    memcpy(t.save_id, save_id, 16);
    fsdpck_hash(m->bytes, t.table_nbytes, &t.table_hash);
    fsdpck_trailer_write(&t, m->bytes + t.table_nbytes);
}

static struct image *make_image(uint64_t *rng, uint64_t nentries)
{
    struct image *m = calloc(1, sizeof *m);
    uint64_t end = 0, at = FSDPCK_TABLE_HEADER_NBYTES;
    assert_non_null(m);
    while (m->nentries < nentries)
        add_entry(m, rng, &end);
    struct fsdpck_table header = { .rank = 7, .nentries = nentries, .ndims = m->ndims, .nhashes = m->nhashes };
    memcpy(header.save_id, save_id, 16);
    memset(header.envelope.bytes, 0xee, 16);
    fsdpck_table_write_header(&header, m->bytes);
    for (uint64_t i = 0; i < nentries; i++, at += FSDPCK_TABLE_ENTRY_NBYTES)
        fsdpck_table_write_entry(&m->entries[i], m->bytes + at);
    for (uint64_t i = 0; i < m->ndims; i++, at += 8)
        fsdpck_put64(m->bytes + at, m->dims[i]);
    for (uint64_t i = 0; i < 2 * m->nhashes; i++, at += 8)
        fsdpck_put64(m->bytes + at, model_random(rng));
    m->nbytes = at + FSDPCK_TRAILER_NBYTES;
    assert_true(m->nbytes <= MAX_NBYTES);
    uint64_t want;
    assert_true(fsdpck_table_nbytes(nentries, m->ndims, m->nhashes, &want));
    assert_int_equal(want, at);
    seal(m);
    return m;
}

static void check_same(const struct image *m, const struct fsdpck_table *t)
{
    assert_int_equal(t->rank, 7);
    assert_memory_equal(t->save_id, save_id, 16);
    assert_int_equal(t->nentries, m->nentries);
    assert_int_equal(t->ndims, m->ndims);
    assert_int_equal(t->nhashes, m->nhashes);
    assert_int_equal(t->hashes, PAYLOAD_NBYTES + m->nbytes - FSDPCK_TRAILER_NBYTES - 16 * m->nhashes);
    assert_int_equal(t->envelope.bytes[0], 0xee);
    if (m->ndims)
        assert_memory_equal(t->dims, m->dims, m->ndims * 8);
    for (uint64_t i = 0; i < m->nentries; i++) {
        const struct fsdpck_table_entry *a = &m->entries[i], *b = &t->entries[i];
        assert_true(a->ordinal == b->ordinal && a->kind == b->kind && a->codec == b->codec && a->ndim == b->ndim &&
                    a->has_content == b->has_content);
        assert_true(a->payload == b->payload && a->nbytes == b->nbytes && (!a->codec || a->decoded == b->decoded) &&
                    a->first_hash == b->first_hash && a->dims == b->dims);
        assert_true(a->item == b->item && a->item_nbytes == b->item_nbytes && a->crc32 == b->crc32);
        assert_memory_equal(a->content, b->content, 16);
    }
}

static void check_find(const struct image *m, const struct fsdpck_table *t)
{
    for (uint32_t kind = 0; kind < 2; kind++)
        for (uint32_t ordinal = 0; ordinal < 200; ordinal++) {
            uint64_t want = 0, first = 0, count;
            for (uint64_t i = m->nentries; i-- > 0;)
                if (m->entries[i].kind == kind && m->entries[i].ordinal == ordinal)
                    want++, first = i;
            uint64_t found = fsdpck_table_find(t, (enum fsdpck_chunk_kind)kind, ordinal, &count);
            assert_int_equal(count, want);
            if (want)
                assert_int_equal(found, first);
        }
}

static void test_round_trip(void **state)
{
    (void)state;
    uint64_t rng = 1;
    for (uint64_t n = 0; n < MAX_ENTRIES; n++) { /* more than one read */
        struct image *m = make_image(&rng, n);
        struct fsdpck_table t;
        struct fsdpck_error err;
        assert_int_equal(read_table(m, &t, &err), 0);
        check_same(m, &t);
        check_find(m, &t);
        fsdpck_table_free(&t);
        free(m);
    }
}

static void test_truncated(void **state)
{
    (void)state;
    uint64_t rng = 2;
    struct image *m = make_image(&rng, 9);
    struct fsdpck_table t;
    struct fsdpck_error err;
    for (uint64_t whole = m->nbytes; m->nbytes-- > 0;) {
        assert_true(read_table(m, &t, &err) < 0);
        assert_true(err.code == FSDPCK_ERR_DAMAGED || err.code == FSDPCK_ERR_MISSING || err.code == FSDPCK_ERR_IO);
        assert_null(t.entries);
        assert_true(m->nbytes < whole);
    }
    free(m);
}

static void test_cut_in_the_middle(void **state)
{
    (void)state;
    uint64_t rng = 3;
    struct fsdpck_table t;
    struct fsdpck_error err;
    struct image *good = make_image(&rng, 9), *m = malloc(sizeof *m);
    assert_non_null(m);
    for (uint64_t n = 1; n + FSDPCK_TRAILER_NBYTES <= good->nbytes;
         n++) { /* bytes before the trailer are removed, and the trailer moves up */
        *m = *good;
        memmove(m->bytes + m->nbytes - FSDPCK_TRAILER_NBYTES - n, m->bytes + m->nbytes - FSDPCK_TRAILER_NBYTES,
                FSDPCK_TRAILER_NBYTES);
        m->nbytes -= n;
        assert_true(read_table(m, &t, &err) < 0);
    }
    free(m);
    free(good);
}

static void test_flipped(void **state)
{
    (void)state;
    uint64_t rng = 4;
    struct image *m = make_image(&rng, 9);
    for (uint64_t i = 0; i < m->nbytes; i++)
        for (int bit = 0; bit < 8; bit++) {
            struct fsdpck_table t;
            struct fsdpck_error err;
            m->bytes[i] ^= (uint8_t)(1 << bit);
            assert_true(read_table(m, &t, &err) < 0);
            assert_string_equal(err.file, "f");
            assert_true(err.message[0] != 0);
            m->bytes[i] ^= (uint8_t)(1 << bit);
        }
    free(m);
}

/* Properties of every accepted table, without which its users read out of bounds. */
static void check_sane(const struct fsdpck_table *t)
{
    uint64_t hash = 0, dim = 0;
    for (uint64_t i = 0; i < t->nentries; i++) {
        const struct fsdpck_table_entry *e = &t->entries[i];
        assert_true(e->item <= e->payload && e->nbytes <= PAYLOAD_NBYTES &&
                    e->payload + e->nbytes <= e->item + e->item_nbytes);
        assert_true(e->item + e->item_nbytes <= PAYLOAD_NBYTES);
        assert_true(e->ndim <= FSDPCK_MAX_DIMS && e->kind <= FSDPCK_CHUNK_ITEM &&
                    e->codec <= (e->kind == FSDPCK_CHUNK_TENSOR));
        assert_true(e->nbytes > 0 && (e->codec ? e->nbytes <= e->decoded : e->nbytes == e->decoded));
        assert_true(e->first_hash == hash && e->dims == dim);
        hash += fsdpck_nslots(e->codec, e->decoded);
        dim += 2 * (uint64_t)e->ndim;
        for (uint64_t k = 0; k < i; k++)
            assert_true(t->entries[k].payload + t->entries[k].nbytes <= e->payload ||
                        e->payload + e->nbytes <= t->entries[k].payload);
        if (i) {
            const struct fsdpck_table_entry *p = e - 1;
            assert_true(p->kind < e->kind || (p->kind == e->kind && p->ordinal <= e->ordinal));
        }
    }
    assert_true(hash == t->nhashes && dim == t->ndims);
}

/* A table from an attacker who can hash. */
static void test_forged(void **state)
{
    (void)state;
    uint64_t rng = 5, naccepted = 0;
    static const uint64_t special[] = {
        0, 1, 2, 63, 64, 65, 0x7fffffff, 0xffffffff, 1ull << 32, 1ull << 48, 1ull << 63, UINT64_MAX, UINT64_MAX - 63
    };
    struct image *good = make_image(&rng, 12), *m = malloc(sizeof *m);
    assert_non_null(m);
    for (int i = 0; i < 30000; i++) {
        struct fsdpck_table t;
        struct fsdpck_error err;
        *m = *good;
        for (uint64_t k = 0; k < 1 + model_below(&rng, 2); k++) {
            uint64_t field = model_below(&rng, (m->nbytes - FSDPCK_TRAILER_NBYTES) / 8),
                     old = fsdpck_le64(m->bytes + 8 * field);
            uint64_t how = model_below(&rng, 4);
            fsdpck_put64(m->bytes + 8 * field, how == 0   ? special[model_below(&rng, sizeof special / sizeof *special)]
                                               : how == 1 ? old + 1
                                               : how == 2 ? old - 1
                                                          : old ^ 1ull << model_below(&rng, 64));
        }
        seal(m);
        if (read_table(m, &t, &err) == 0) {
            naccepted++;
            check_sane(&t);
            fsdpck_table_free(&t);
        } else {
            assert_null(t.entries);
        }
    }
    assert_true(naccepted > 100); /* hashes, CRCs and contents may be anything */
    free(m);
    free(good);
}

static void test_foreign(void **state)
{
    (void)state;
    uint64_t rng = 6;
    struct fsdpck_table t;
    struct fsdpck_error err;
    struct image *m = make_image(&rng, 3);
    fsdpck_put32(m->bytes + 8, 2);
    seal(m);
    assert_int_equal(read_table(m, &t, &err), FSDPCK_ERR_UNSUPPORTED);
    assert_string_equal(err.message, "chunk table version 2; this program reads 1");
    fsdpck_put32(m->bytes + 8, 1);
    uint8_t codec = m->bytes[FSDPCK_TABLE_HEADER_NBYTES + 5];
    m->bytes[FSDPCK_TABLE_HEADER_NBYTES + 5] = 9;
    seal(m);
    assert_int_equal(read_table(m, &t, &err), FSDPCK_ERR_UNSUPPORTED);
    assert_string_equal(err.message, "codec 9; this program reads codecs 0 and 1");
    m->bytes[FSDPCK_TABLE_HEADER_NBYTES + 5] = codec;
    m->bytes[16] ^= 1; /* save id of the table only */
    seal(m);
    assert_int_equal(read_table(m, &t, &err), FSDPCK_ERR_FORMAT);
    assert_string_equal(err.message, "table and trailer are of different saves");
    free(m);
}

static void test_sizes_overflow(void **state)
{
    (void)state;
    uint64_t n;
    assert_true(fsdpck_table_nbytes(2, 3, 4, &n));
    assert_int_equal(n, 96 + 2 * 96 + 3 * 8 + 4 * 16);
    assert_false(fsdpck_table_nbytes(UINT64_MAX / 96 + 1, 0, 0, &n));
    assert_false(fsdpck_table_nbytes(0, UINT64_MAX / 8 + 1, 0, &n));
    assert_false(fsdpck_table_nbytes(0, 0, UINT64_MAX / 16 + 1, &n));
    assert_false(fsdpck_table_nbytes(UINT64_MAX / 96, UINT64_MAX / 8, 0, &n));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_cut_in_the_middle),
        cmocka_unit_test(test_flipped),
        cmocka_unit_test(test_forged),
        cmocka_unit_test(test_foreign),
        cmocka_unit_test(test_sizes_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
