/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the envelopes, table and trailer of a shard file. The envelopes depend only on shapes and CRC-32s, so they are
 * made at the end, in file order, and hashed while they are written. Memory holds only counts. */
#include "format/shard_finish.h"

#include <stdlib.h>
#include <string.h>

#include "format/shard_compact.h"

/* A writer of consecutive bytes of the file: hashes and writes them in pieces. */
struct writer {
    struct fsdpck_out_files *out;
    uint32_t file;
    uint64_t at; /* file offset of buf[0] */
    size_t fill;
    struct fsdpck_hasher *hasher;
    struct fsdpck_error *err;
    uint8_t buf[64u << 10];
};

static int flush(struct writer *w)
{
    int rc = w->fill ? fsdpck_out_files_write(w->out, w->file, w->buf, w->fill, w->at, w->err) : 0;
    w->at += w->fill;
    w->fill = 0;
    return rc;
}

/* Reserves nbytes at the end of buf. */
static uint8_t *room(struct writer *w, size_t nbytes)
{
    return w->fill + nbytes > sizeof w->buf && flush(w) != 0 ? NULL : w->buf + w->fill;
}

static void filled(struct writer *w, size_t nbytes)
{
    fsdpck_hasher_add(w->hasher, w->buf + w->fill, nbytes);
    w->fill += nbytes;
}

/* Skips bytes that are already in the file and are not hashed. */
static int skip(struct writer *w, uint64_t nbytes)
{
    int rc = flush(w);
    w->at += nbytes;
    return rc;
}

static int write_envelope(struct writer *w, const struct fsdpck_shard_entry *e)
{
    uint8_t tail[FSDPCK_ITEM_TAIL_MAX];
    if (e->layout.head_nbytes == 0)
        return skip(w, e->layout.payload_nbytes);
    uint8_t *head = room(w, e->layout.head_nbytes);
    if (!head)
        return w->err->code;
    fsdpck_item_write(e->dtype, e->ndim, e->size, &e->layout, e->crc32, head, tail);
    filled(w, e->layout.head_nbytes);
    int rc = skip(w, e->layout.payload_nbytes);
    if (rc)
        return rc;
    memcpy(w->buf + w->fill, tail, e->layout.tail_nbytes);
    filled(w, e->layout.tail_nbytes);
    return 0;
}

static int write_envelopes(struct fsdpck_shard *s, struct writer *w, struct fsdpck_hash128 *envelope)
{
    for (size_t i = 0; i < s->entries.count; i++) {
        int rc = write_envelope(w, &shard_entries(s)[i]);
        if (rc)
            return rc;
    }
    uint8_t *gap = room(w, s->table - s->end);
    if (!gap)
        return w->err->code;
    memset(gap, 0, s->table - s->end);
    filled(w, s->table - s->end);
    fsdpck_hasher_finish(w->hasher, envelope);
    return flush(w);
}

static void describe(const struct fsdpck_shard *s, const struct fsdpck_shard_entry *e, uint64_t dims,
                     struct fsdpck_table_entry *out)
{
    const struct fsdpck_item_layout *l = &e->layout;
    *out = (struct fsdpck_table_entry){ .ordinal = e->ordinal,
                                        .kind = e->is_item ? FSDPCK_CHUNK_ITEM : FSDPCK_CHUNK_TENSOR,
                                        .ndim = (uint8_t)e->ndim,
                                        .has_content = e->has_content,
                                        .payload = fsdpck_shard_payload(e),
                                        .nbytes = l->payload_nbytes,
                                        .first_hash = e->first_hash,
                                        .dims = dims,
                                        .item = l->begin,
                                        .item_nbytes = l->head_nbytes + l->payload_nbytes + l->tail_nbytes,
                                        .crc32 = e->crc32 };
    if (s->compressed && !e->is_item) {
        out->codec = FSDPCK_CODEC_PLANES;
        out->decoded = e->decoded_nbytes;
    }
    if (e->has_content)
        fsdpck_content_store(&e->content, out->content);
}

static int write_table(struct fsdpck_shard *s, struct writer *w, const struct fsdpck_table *header)
{
    uint64_t dims = 0;
    uint8_t *p = room(w, FSDPCK_TABLE_HEADER_NBYTES);
    if (!p)
        return w->err->code;
    fsdpck_table_write_header(header, p);
    filled(w, FSDPCK_TABLE_HEADER_NBYTES);
    for (size_t i = 0; i < s->entries.count; i++) {
        struct fsdpck_table_entry e;
        if (!(p = room(w, FSDPCK_TABLE_ENTRY_NBYTES)))
            return w->err->code;
        describe(s, &shard_entries(s)[i], dims, &e);
        dims += 2 * (uint64_t)e.ndim;
        fsdpck_table_write_entry(&e, p);
        filled(w, FSDPCK_TABLE_ENTRY_NBYTES);
    }
    for (size_t i = 0; i < s->entries.count; i++) {
        const struct fsdpck_shard_entry *e = &shard_entries(s)[i];
        if (!(p = room(w, 16 * (size_t)e->ndim)))
            return w->err->code;
        for (uint32_t d = 0; d < e->ndim; d++) {
            fsdpck_put64(p + 8 * d, e->offset[d]);
            fsdpck_put64(p + 8 * (e->ndim + d), e->size[d]);
        }
        filled(w, 16 * (size_t)e->ndim);
    }
    return flush(w);
}

/* The transfer wrote the block hashes to the file: reads them back to complete the table's hash. */
static int hash_hashes(const struct fsdpck_shard *s, struct writer *w)
{
    for (uint64_t left = 16 * s->nhashes, at = w->at; left;) {
        uint64_t n = left < sizeof w->buf ? left : sizeof w->buf;
        int rc = fsdpck_out_files_read(w->out, w->file, w->buf, n, at, w->err);
        if (rc)
            return rc;
        fsdpck_hasher_add(w->hasher, w->buf, n);
        at += n;
        left -= n;
    }
    return 0;
}

static int write_all(struct fsdpck_shard *s, struct writer *w, const uint8_t save_id[16])
{
    struct fsdpck_table header = {
        .rank = s->rank, .nentries = s->entries.count, .ndims = s->ndims, .nhashes = s->nhashes
    };
    struct fsdpck_trailer trailer = { .table = s->table, .table_nbytes = s->table_nbytes };
    uint8_t bytes[FSDPCK_TRAILER_NBYTES];
    memcpy(header.save_id, save_id, 16);
    memcpy(trailer.save_id, save_id, 16);
    int rc = write_envelopes(s, w, &header.envelope);
    if (!rc)
        rc = write_table(s, w, &header);
    if (!rc)
        rc = hash_hashes(s, w);
    if (rc)
        return rc;
    fsdpck_hasher_finish(w->hasher, &s->table_hash);
    trailer.table_hash = s->table_hash;
    fsdpck_trailer_write(&trailer, bytes);
    rc = fsdpck_out_files_write(w->out, w->file, bytes, sizeof bytes, s->table + s->table_nbytes, w->err);
    return !rc ? fsdpck_out_files_sync(w->out, w->file, w->err) : rc;
}

int fsdpck_shard_finish(struct fsdpck_shard *s, struct fsdpck_out_files *out, uint32_t file, const uint8_t save_id[16],
                        struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    struct writer *w = calloc(1, sizeof *w);
    if (!w)
        return fsdpck_error_nomem(err, sizeof *w);
    w->out = out;
    w->file = file;
    w->err = err ? err : &own;
    w->hasher = fsdpck_hasher_new();
    int rc = w->hasher ? 0 : fsdpck_error_nomem(err, 0);
    if (!rc && s->compressed)
        rc = fsdpck_shard_compact(s, out, file, w->err);
    if (!rc)
        rc = write_all(s, w, save_id);
    fsdpck_hasher_free(w->hasher);
    free(w);
    return rc;
}
