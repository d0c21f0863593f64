/* SPDX-License-Identifier: Apache-2.0 */
/* Converts chunk tables and trailers to and from bytes. Checks everything it reads against the file's size and for
 * consistency; a caller with the index checks shapes, dtypes and placements. */
#include "format/table.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/ioutil.h"

static const char table_magic[8] = "fsdpcktb", trailer_magic[8] = "FSDPCKT1";

bool fsdpck_table_nbytes(uint64_t nentries, uint64_t ndims, uint64_t nhashes, uint64_t *nbytes)
{
    uint64_t e, d, h;
    return checked_mul(nentries, FSDPCK_TABLE_ENTRY_NBYTES, &e) && checked_mul(ndims, 8, &d) &&
           checked_mul(nhashes, 16, &h) && checked_add(FSDPCK_TABLE_HEADER_NBYTES, e, nbytes) &&
           checked_add(*nbytes, d, nbytes) && checked_add(*nbytes, h, nbytes);
}

/* ---- trailer ---- */

/* First 8 bytes of the hash: there is no room for more, and they suffice for 56 bytes. */
static bool short_hash_matches(const uint8_t *trailer)
{
    struct fsdpck_hash128 h;
    fsdpck_hash(trailer, 56, &h);
    return memcmp(trailer + 56, h.bytes, 8) == 0;
}

int fsdpck_trailer_read(const struct fsdpck_io *io, int fd, const char *file, uint64_t file_nbytes,
                        struct fsdpck_trailer *out, struct fsdpck_error *err)
{
    uint8_t b[FSDPCK_TRAILER_NBYTES];
    if (file_nbytes < FSDPCK_TABLE_HEADER_NBYTES + FSDPCK_TRAILER_NBYTES)
        return fsdpck_error_set(err, FSDPCK_ERR_MISSING, file, "%" PRIu64 " bytes are too few for a shard file",
                                file_nbytes);
    uint64_t at = file_nbytes - FSDPCK_TRAILER_NBYTES;
    int rc = fsdpck_read_full(io, fd, file, b, sizeof b, at, err);
    if (rc)
        return rc;
    if (memcmp(b, trailer_magic, 8) != 0)
        return fsdpck_error_at(err, FSDPCK_ERR_DAMAGED, file, at,
                               "no trailer: the file is cut, or is no shard file of fsdpck");
    if (!short_hash_matches(b))
        return fsdpck_error_at(err, FSDPCK_ERR_DAMAGED, file, at, "the trailer's hash does not match");
    memcpy(out->save_id, b + 8, 16);
    out->table = fsdpck_le64(b + 24);
    out->table_nbytes = fsdpck_le64(b + 32);
    memcpy(out->table_hash.bytes, b + 40, 16);
    if (out->table > at || out->table_nbytes != at - out->table)
        return fsdpck_error_at(err, FSDPCK_ERR_FORMAT, file, at,
                               "the chunk table is said to be bytes %" PRIu64 "+%" PRIu64 ", it must end at %" PRIu64,
                               out->table, out->table_nbytes, at);
    return 0;
}

bool fsdpck_shard_is(const struct fsdpck_io *io, const char *path, char save_id[37])
{
    struct fsdpck_trailer t;
    struct fsdpck_stat st;
    uint8_t magic[8];
    save_id[0] = '\0';
    int fd = io->open(io->ctx, path, FSDPCK_OPEN_READ, 0);
    bool is = fd >= 0 && io->fstat(io->ctx, fd, &st) == 0 && st.nbytes >= FSDPCK_TRAILER_NBYTES &&
              fsdpck_read_full(io, fd, path, magic, sizeof magic, st.nbytes - FSDPCK_TRAILER_NBYTES, NULL) == 0 &&
              memcmp(magic, trailer_magic, sizeof magic) == 0;
    if (is && fsdpck_trailer_read(io, fd, path, st.nbytes, &t, NULL) == 0)
        fsdpck_uuid_format(t.save_id, save_id);
    if (fd >= 0)
        io->close(io->ctx, fd);
    return is;
}

void fsdpck_trailer_write(const struct fsdpck_trailer *t, uint8_t out[FSDPCK_TRAILER_NBYTES])
{
    memcpy(out, trailer_magic, 8);
    memcpy(out + 8, t->save_id, 16);
    fsdpck_put64(out + 24, t->table);
    fsdpck_put64(out + 32, t->table_nbytes);
    memcpy(out + 40, t->table_hash.bytes, 16);
    struct fsdpck_hash128 h;
    fsdpck_hash(out, 56, &h);
    memcpy(out + 56, h.bytes, 8);
}

/* ---- table: bytes to structs ---- */

struct reader {
    const struct fsdpck_io *io;
    int fd;
    const char *file;
    const struct fsdpck_trailer *trailer;
    uint64_t at; /* file offset */
    struct fsdpck_hasher *hasher;
    struct fsdpck_error *err;
};

static int take(struct reader *r, void *buf, uint64_t nbytes)
{
    int c = fsdpck_read_full(r->io, r->fd, r->file, buf, nbytes, r->at, r->err);
    if (c == 0)
        fsdpck_hasher_add(r->hasher, buf, nbytes);
    r->at += nbytes;
    return c;
}

static bool is_zero(const uint8_t *b, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++)
        if (b[i])
            return false;
    return true;
}

static int read_header(struct reader *r, struct fsdpck_table *t)
{
    uint8_t b[FSDPCK_TABLE_HEADER_NBYTES];
    uint64_t nbytes;
    if (r->trailer->table_nbytes < sizeof b)
        return fsdpck_error_at(r->err, FSDPCK_ERR_FORMAT, r->file, r->at, "a chunk table of %" PRIu64 " bytes",
                               r->trailer->table_nbytes);
    int c = take(r, b, sizeof b);
    if (c != 0)
        return c;
    if (memcmp(b, table_magic, 8) != 0)
        return fsdpck_error_at(r->err, FSDPCK_ERR_DAMAGED, r->file, r->trailer->table, "no chunk table here");
    if (fsdpck_le32(b + 8) != 1)
        return fsdpck_error_at(r->err, FSDPCK_ERR_UNSUPPORTED, r->file, r->trailer->table,
                               "chunk table version %u; this program reads 1", fsdpck_le32(b + 8));
    t->rank = fsdpck_le32(b + 12);
    memcpy(t->save_id, b + 16, 16);
    t->nentries = fsdpck_le64(b + 32);
    t->ndims = fsdpck_le64(b + 40);
    t->nhashes = fsdpck_le64(b + 48);
    memcpy(t->envelope.bytes, b + 56, 16);
    if (!fsdpck_table_nbytes(t->nentries, t->ndims, t->nhashes, &nbytes) || nbytes != r->trailer->table_nbytes ||
        !is_zero(b + 72, 24))
        return fsdpck_error_at(r->err, FSDPCK_ERR_FORMAT, r->file, r->trailer->table,
                               "the counts of the chunk table do not give its %" PRIu64 " bytes",
                               r->trailer->table_nbytes);
    t->hashes = r->trailer->table + r->trailer->table_nbytes - 16 * t->nhashes;
    return 0;
}

/* A block never grows, and none is empty. */
static bool sizes_are_valid(const struct fsdpck_table_entry *e)
{
    if (e->codec == FSDPCK_CODEC_STORED)
        return e->nbytes == e->decoded;
    return e->kind == FSDPCK_CHUNK_TENSOR && e->nbytes <= e->decoded && e->nbytes >= fsdpck_nblocks(e->decoded);
}

static int decode_entry(struct reader *r, const uint8_t *b, struct fsdpck_table_entry *e)
{
    e->ordinal = fsdpck_le32(b);
    e->kind = b[4];
    e->codec = b[5];
    e->ndim = b[6];
    e->has_content = b[7] & 1;
    e->payload = fsdpck_le64(b + 8);
    e->nbytes = fsdpck_le64(b + 16);
    e->first_hash = fsdpck_le64(b + 32);
    e->dims = fsdpck_le64(b + 40);
    e->item = fsdpck_le64(b + 48);
    e->item_nbytes = fsdpck_le64(b + 56);
    e->crc32 = fsdpck_le32(b + 64);
    memcpy(e->content, b + 80, 16);
    e->decoded = fsdpck_le64(b + 24);
    if (e->codec > FSDPCK_CODEC_PLANES)
        return fsdpck_error_at(r->err, FSDPCK_ERR_UNSUPPORTED, r->file, r->at,
                               "codec %u; this program reads codecs 0 and 1", e->codec);
    /* No entry may have an empty payload: otherwise a sparse file of zeros would be a table with any number of
     * entries. */
    if (e->kind > FSDPCK_CHUNK_ITEM || e->ndim > FSDPCK_MAX_DIMS || (b[7] & ~1) || e->nbytes == 0 ||
        !is_zero(b + 68, 12) || !sizes_are_valid(e))
        return fsdpck_error_at(r->err, FSDPCK_ERR_FORMAT, r->file, r->at, "an entry of the chunk table makes no sense");
    return 0;
}

/* Checks the offsets of an entry against the file and the pools: hashes and dimensions are consecutive and fill their
 * pools. */
static int check_entry(struct reader *r, const struct fsdpck_table *t, const struct fsdpck_table_entry *e,
                       uint64_t *hash, uint64_t *dim)
{
    uint64_t end, item_end, limit = r->trailer->table;
    if (!checked_add(e->payload, e->nbytes, &end) || end > limit || !checked_add(e->item, e->item_nbytes, &item_end) ||
        item_end > limit || e->payload < e->item || end > item_end)
        return fsdpck_error_at(r->err, FSDPCK_ERR_FORMAT, r->file, r->trailer->table,
                               "a chunk at %" PRIu64 "+%" PRIu64 " leaves its item or the file", e->payload, e->nbytes);
    if (e->first_hash != *hash || e->dims != *dim)
        return fsdpck_error_at(r->err, FSDPCK_ERR_FORMAT, r->file, r->trailer->table,
                               "hashes or dimensions of the chunks are not consecutive");
    *hash += fsdpck_nslots(e->codec == FSDPCK_CODEC_PLANES,
                           e->decoded); /* at most 2^49: no overflow before the check below */
    *dim += 2 * (uint64_t)e->ndim;
    if (*hash > t->nhashes || *dim > t->ndims)
        return fsdpck_error_at(r->err, FSDPCK_ERR_FORMAT, r->file, r->trailer->table,
                               "the chunks want more hashes or dimensions than the table has");
    return 0;
}

static int read_entries(struct reader *r, struct fsdpck_table *t)
{
    uint64_t hash = 0, dim = 0;
    uint8_t b[FSDPCK_TABLE_ENTRY_NBYTES * 64];
    /* The counts were checked against the file's size. */
    t->entries = calloc(t->nentries ? t->nentries : 1, sizeof *t->entries);
    if (!t->entries)
        return fsdpck_error_nomem(r->err, t->nentries * sizeof *t->entries);
    for (uint64_t i = 0; i < t->nentries; i++) {
        uint64_t in_buf = i % 64, left = t->nentries - i;
        int c = in_buf ? 0 : take(r, b, (left < 64 ? left : 64) * FSDPCK_TABLE_ENTRY_NBYTES);
        if (c == 0)
            c = decode_entry(r, b + in_buf * FSDPCK_TABLE_ENTRY_NBYTES, &t->entries[i]);
        if (c == 0)
            c = check_entry(r, t, &t->entries[i], &hash, &dim);
        if (c != 0)
            return c;
    }
    if (hash != t->nhashes || dim != t->ndims)
        return fsdpck_error_at(r->err, FSDPCK_ERR_FORMAT, r->file, r->trailer->table,
                               "the table has hashes or dimensions that no chunk uses");
    return 0;
}

static int read_dims(struct reader *r, struct fsdpck_table *t)
{
    t->dims = malloc(t->ndims ? t->ndims * 8 : 1);
    if (!t->dims)
        return fsdpck_error_nomem(r->err, t->ndims * 8);
    int c = take(r, t->dims, t->ndims * 8);
    for (uint64_t i = 0; c == 0 && i < t->ndims; i++)
        t->dims[i] = fsdpck_le64((const uint8_t *)&t->dims[i]);
    return c;
}

static int hash_rest(struct reader *r, const struct fsdpck_table *t)
{
    struct fsdpck_hash128 got;
    uint8_t *buf = malloc(FSDPCK_BLOCK_NBYTES);
    int c = buf ? 0 : fsdpck_error_nomem(r->err, FSDPCK_BLOCK_NBYTES);
    for (uint64_t left = 16 * t->nhashes; c == 0 && left;) {
        uint64_t n = left < FSDPCK_BLOCK_NBYTES ? left : FSDPCK_BLOCK_NBYTES;
        c = take(r, buf, n);
        left -= n;
    }
    free(buf);
    if (c != 0)
        return c;
    fsdpck_hasher_finish(r->hasher, &got);
    if (fsdpck_hash_equal(&got, &r->trailer->table_hash))
        return 0;
    return fsdpck_error_at(r->err, FSDPCK_ERR_DAMAGED, r->file, r->trailer->table,
                           "the chunk table's hash does not match");
}

/* Compares entries by the order of the table; needs the dims. */
static int compare(const struct fsdpck_table *t, const struct fsdpck_table_entry *a, const struct fsdpck_table_entry *b)
{
    if (a->kind != b->kind)
        return a->kind < b->kind ? -1 : 1;
    if (a->ordinal != b->ordinal)
        return a->ordinal < b->ordinal ? -1 : 1;
    for (uint32_t d = 0; d < a->ndim && d < b->ndim; d++)
        if (t->dims[a->dims + d] != t->dims[b->dims + d])
            return t->dims[a->dims + d] < t->dims[b->dims + d] ? -1 : 1;
    return 0;
}

static int by_payload(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return x[0] < y[0] ? -1 : x[0] > y[0];
}

static int check_order(struct reader *r, const struct fsdpck_table *t)
{
    uint64_t(*spans)[2] = malloc((t->nentries ? t->nentries : 1) * sizeof *spans);
    int c = spans ? 0 : fsdpck_error_nomem(r->err, t->nentries * sizeof *spans);
    for (uint64_t i = 0; c == 0 && i < t->nentries; i++) {
        spans[i][0] = t->entries[i].payload;
        spans[i][1] = t->entries[i].payload + t->entries[i].nbytes;
        if (i && compare(t, &t->entries[i - 1], &t->entries[i]) >= 0)
            c = fsdpck_error_at(r->err, FSDPCK_ERR_FORMAT, r->file, r->trailer->table,
                                "the chunks are out of order, or one is there twice");
    }
    if (c == 0)
        qsort(spans, t->nentries, sizeof *spans, by_payload);
    for (uint64_t i = 1; c == 0 && i < t->nentries; i++)
        if (spans[i][0] < spans[i - 1][1])
            c = fsdpck_error_at(r->err, FSDPCK_ERR_FORMAT, r->file, spans[i][0], "two chunks share these bytes");
    free(spans);
    return c;
}

int fsdpck_table_read(const struct fsdpck_io *io, int fd, const char *file, const struct fsdpck_trailer *trailer,
                      struct fsdpck_table *out, struct fsdpck_error *err)
{
    struct reader r = { .io = io, .fd = fd, .file = file, .trailer = trailer, .at = trailer->table, .err = err };
    memset(out, 0, sizeof *out);
    r.hasher = fsdpck_hasher_new();
    int c = r.hasher ? read_header(&r, out) : fsdpck_error_nomem(err, 0);
    if (c == 0)
        c = read_entries(&r, out);
    if (c == 0)
        c = read_dims(&r, out);
    if (c == 0)
        c = hash_rest(&r, out);
    if (c == 0)
        c = check_order(&r, out);
    if (c == 0 && memcmp(out->save_id, trailer->save_id, 16) != 0)
        c = fsdpck_error_at(err, FSDPCK_ERR_FORMAT, file, trailer->table, "table and trailer are of different saves");
    fsdpck_hasher_free(r.hasher);
    if (c != 0)
        fsdpck_table_free(out);
    return c;
}

void fsdpck_table_free(struct fsdpck_table *t)
{
    free(t->entries);
    free(t->dims);
    memset(t, 0, sizeof *t);
}

uint64_t fsdpck_table_find(const struct fsdpck_table *t, enum fsdpck_chunk_kind kind, uint32_t ordinal, uint64_t *count)
{
    uint64_t low = 0, high = t->nentries, want = (uint64_t)kind << 32 | ordinal;
    while (low < high) {
        uint64_t mid = low + (high - low) / 2;
        if (((uint64_t)t->entries[mid].kind << 32 | t->entries[mid].ordinal) < want)
            low = mid + 1;
        else
            high = mid;
    }
    for (*count = 0; low + *count < t->nentries; ++*count)
        if (t->entries[low + *count].kind != kind || t->entries[low + *count].ordinal != ordinal)
            break;
    return low;
}

/* ---- table: structs to bytes ---- */

void fsdpck_table_write_header(const struct fsdpck_table *t, uint8_t out[FSDPCK_TABLE_HEADER_NBYTES])
{
    memset(out, 0, FSDPCK_TABLE_HEADER_NBYTES);
    memcpy(out, table_magic, 8);
    fsdpck_put32(out + 8, 1);
    fsdpck_put32(out + 12, t->rank);
    memcpy(out + 16, t->save_id, 16);
    fsdpck_put64(out + 32, t->nentries);
    fsdpck_put64(out + 40, t->ndims);
    fsdpck_put64(out + 48, t->nhashes);
    memcpy(out + 56, t->envelope.bytes, 16);
}

void fsdpck_table_write_entry(const struct fsdpck_table_entry *e, uint8_t out[FSDPCK_TABLE_ENTRY_NBYTES])
{
    memset(out, 0, FSDPCK_TABLE_ENTRY_NBYTES);
    fsdpck_put32(out, e->ordinal);
    out[4] = e->kind;
    out[5] = e->codec;
    out[6] = e->ndim;
    out[7] = e->has_content;
    fsdpck_put64(out + 8, e->payload);
    fsdpck_put64(out + 16, e->nbytes);
    fsdpck_put64(out + 24, e->codec == FSDPCK_CODEC_STORED ? e->nbytes : e->decoded);
    fsdpck_put64(out + 32, e->first_hash);
    fsdpck_put64(out + 40, e->dims);
    fsdpck_put64(out + 48, e->item);
    fsdpck_put64(out + 56, e->item_nbytes);
    fsdpck_put32(out + 64, e->crc32);
    memcpy(out + 80, e->content, 16);
}
