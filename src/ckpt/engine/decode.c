/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes compressed blocks, or a stream, to elements. A block's record gives its offset, so a partial read of a
 * payload needs only the records of its blocks. Checks records before using them. Knows nothing of tables or sinks. */
#include "engine/decode.h"

#include <stdlib.h>
#include <string.h>

#include "base/block_codec.h"
#include "engine/checks.h"
#include "engine/file_read.h"
#include "engine/files.h"

void fsdpck_record_store(const struct fsdpck_record *r, uint8_t out[FSDPCK_RECORD_NBYTES])
{
    memcpy(out, r->hash.bytes, 16);
    fsdpck_put64(out + 16, r->begin);
    fsdpck_put32(out + 24, r->nbytes);
    fsdpck_put32(out + 28, 0);
}

bool fsdpck_record_load(struct fsdpck_record *r, const uint8_t in[FSDPCK_RECORD_NBYTES])
{
    memcpy(r->hash.bytes, in, 16);
    r->begin = fsdpck_le64(in + 16);
    r->nbytes = fsdpck_le32(in + 24);
    return fsdpck_le32(in + 28) == 0;
}

/* ---- records ---- */

static int bad_record(struct fsdpck_source *src, const struct fsdpck_extent *e, uint64_t number,
                      struct fsdpck_error *err)
{
    return fsdpck_error_at(err, FSDPCK_ERR_FORMAT, source_files(src)[e->file].path,
                           e->hashes + number * FSDPCK_RECORD_NBYTES,
                           "the record of a compressed block makes no sense");
}

static bool record_is_valid(const struct fsdpck_extent *e, uint64_t number, const struct fsdpck_record *r,
                            uint64_t begin)
{
    bool is_last = (number + 1) * FSDPCK_BLOCK_NBYTES >= e->payload_nbytes;
    return r->begin == begin && r->nbytes > 0 && r->nbytes <= fsdpck_block_decoded(e, number) &&
           r->begin <= e->stored_nbytes && r->nbytes <= e->stored_nbytes - r->begin &&
           (!is_last || r->begin + r->nbytes == e->stored_nbytes);
}

int fsdpck_records_read(struct fsdpck_source *src, const struct fsdpck_extent *e, uint64_t first, uint64_t count,
                        struct fsdpck_record *out, struct fsdpck_error *err)
{
    uint8_t bytes[(FSDPCK_FETCH_BLOCKS + 1) * FSDPCK_RECORD_NBYTES];
    struct fsdpck_record before = { .nbytes = 0 };
    uint64_t lead = first ? 1 : 0; /* the previous block tells where the first one begins */
    int rc = fsdpck_files_read(src, e->file, bytes, (lead + count) * FSDPCK_RECORD_NBYTES,
                               e->hashes + (first - lead) * FSDPCK_RECORD_NBYTES, err);
    if (rc)
        return rc;
    if (lead && !fsdpck_record_load(&before, bytes))
        return bad_record(src, e, first - 1, err);
    uint64_t begin;
    if (__builtin_add_overflow(before.begin, before.nbytes, &begin))
        return bad_record(src, e, first - 1, err);
    for (uint64_t i = 0; i < count; i++) {
        if (!fsdpck_record_load(&out[i], bytes + (lead + i) * FSDPCK_RECORD_NBYTES) ||
            !record_is_valid(e, first + i, &out[i], begin))
            return bad_record(src, e, first + i, err);
        begin += out[i].nbytes;
    }
    return 0;
}

/* ---- elements ---- */

struct window {
    struct fsdpck_fetch *f;
    const struct fsdpck_extent *e;
    size_t ordinal;
    struct fsdpck_planes planes;
    uint64_t begin, end; /* bytes of the elements */
    uint8_t *dst;
    struct fsdpck_error *err;
};

static int undecodable(const struct window *w, uint64_t number, const struct fsdpck_record *r)
{
    const struct fsdpck_fetch *f = w->f;
    fsdpck_error_at(w->err, FSDPCK_ERR_FORMAT, source_files(f->src)[w->e->file].path, w->e->payload + r->begin,
                    "block %llu of a compressed chunk does not decode to %u bytes", (unsigned long long)number,
                    fsdpck_block_decoded(w->e, number));
    fsdpck_error_tensor(w->err, source_tensors(f->src)[w->ordinal].name);
    return FSDPCK_ERR_FORMAT;
}

static bool is_sound(const uint8_t *stored, const struct fsdpck_record *r)
{
    struct fsdpck_hash128 got;
    fsdpck_hash(stored, r->nbytes, &got);
    return fsdpck_hash_equal(&got, &r->hash);
}

/* Decodes the requested part of one block: directly to its destination if that is the whole block. */
static int place_block(struct window *w, uint64_t number, const struct fsdpck_record *r, const uint8_t *stored)
{
    uint64_t at = number * FSDPCK_BLOCK_NBYTES, stop = at + fsdpck_block_decoded(w->e, number);
    if (!w->f->src->opt.no_verify && !is_sound(stored, r))
        return fsdpck_fetch_damaged(w->f, w->ordinal, w->e, at, stop, w->err);
    bool whole = at >= w->begin && stop <= w->end;
    uint8_t *out = whole ? w->dst + (at - w->begin) : w->f->block;
    if (!fsdpck_block_decode(w->f->decoder, &w->planes, stored, r->nbytes, out, (uint32_t)(stop - at)))
        return undecodable(w, number, r);
    uint64_t from = at > w->begin ? at : w->begin, to = stop < w->end ? stop : w->end;
    if (!whole)
        memcpy(w->dst + (from - w->begin), out + (from - at), to - from);
    return 0;
}

static int init_decoder(struct fsdpck_fetch *f, struct fsdpck_error *err)
{
    if (!f->decoder)
        f->decoder = fsdpck_decoder_new();
    if (!f->block)
        f->block = malloc(FSDPCK_BLOCK_NBYTES);
    return f->decoder && f->block ? 0 : fsdpck_error_nomem(err, FSDPCK_BLOCK_NBYTES);
}

/* Reads payload bytes [begin, end) from their zstd stream. A read that starts a stream is charged with all its
 * bytes. */
static int read_stream(struct fsdpck_fetch *f, size_t ordinal, const struct fsdpck_extent *e, uint64_t begin,
                       uint64_t end, uint8_t *dst, struct fsdpck_error *err)
{
    const struct fsdpck_zstream_range range = { .file = e->file, .offset = e->stream, .nbytes = e->stream_nbytes };
    bool same =
        f->dry_range.file == range.file && f->dry_range.offset == range.offset && f->dry_range.nbytes == range.nbytes;
    if (f->dry) {
        f->read_nbytes += same && f->dry_at <= begin ? 0 : range.nbytes;
        f->dry_range = range;
        f->dry_at = end;
        return 0;
    }
    if (!f->stream && !(f->stream = fsdpck_zstream_new(f->src, err)))
        return FSDPCK_ERR_NOMEM;
    f->read_nbytes += fsdpck_zstream_is_ahead(f->stream, &range, e->payload + begin) ? 0 : range.nbytes;
    int rc = fsdpck_zstream_read(f->stream, &range, e->payload + begin, dst, end - begin, err);
    if (!rc)
        rc = fsdpck_checks_bytes(f->src, ordinal, e, begin, dst, end - begin, err);
    if (rc)
        fsdpck_error_tensor(err, source_tensors(f->src)[ordinal].name);
    return rc;
}

static int decode_blocks(struct fsdpck_fetch *f, size_t ordinal, const struct fsdpck_extent *e, uint64_t begin,
                         uint64_t end, uint8_t *dst, struct fsdpck_error *err)
{
    struct fsdpck_record records[FSDPCK_FETCH_BLOCKS];
    struct window w = { .f = f,
                        .e = e,
                        .ordinal = ordinal,
                        .planes = fsdpck_planes_of(source_tensors(f->src)[ordinal].dtype),
                        .begin = begin,
                        .end = end,
                        .dst = dst,
                        .err = err };
    uint64_t first = begin / FSDPCK_BLOCK_NBYTES, count = (end + FSDPCK_BLOCK_NBYTES - 1) / FSDPCK_BLOCK_NBYTES - first;
    uint8_t *bytes;
    int rc = fsdpck_records_read(f->src, e, first, count, records, err);
    if (!rc) {
        uint64_t at = records[0].begin, nbytes = records[count - 1].begin + records[count - 1].nbytes - at;
        f->read_nbytes += nbytes;
        if (f->dry)
            return 0;
        rc = init_decoder(f, err);
        if (!rc)
            rc = fsdpck_file_read(f->src, e->file, e->payload + at, nbytes, f->scratch, &bytes, err);
    }
    for (uint64_t i = 0; !rc && i < count; i++)
        rc = place_block(&w, first + i, &records[i], bytes + (records[i].begin - records[0].begin));
    if (rc)
        fsdpck_error_tensor(err, source_tensors(f->src)[ordinal].name);
    return rc;
}

int fsdpck_decode_range(struct fsdpck_fetch *f, size_t ordinal, const struct fsdpck_extent *e, uint64_t begin,
                        uint64_t end, uint8_t *dst, struct fsdpck_error *err)
{
    return (e->streamed ? read_stream : decode_blocks)(f, ordinal, e, begin, end, dst, err);
}
