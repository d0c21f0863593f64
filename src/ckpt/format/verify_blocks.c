/* SPDX-License-Identifier: Apache-2.0 */
/* Checks payload blocks against their hashes. */
#include "format/verify_bytes_impl.h"

#include "engine/decode.h"
#include "engine/file_read.h"
#include "engine/files.h"

#define WINDOW_BLOCKS (FSDPCK_VERIFY_WINDOW_NBYTES / FSDPCK_BLOCK_NBYTES)

/* Reports that decoded bytes [begin, end) of a payload are damaged; `place`: file offset of their nbytes stored
 * bytes. */
static void damaged_block(const struct verify_job *w, const struct fsdpck_table_entry *e, uint64_t begin, uint64_t end,
                          uint64_t place, uint64_t nbytes, const char *what)
{
    const struct fsdpck_source *src = w->rd->v->src;
    struct fsdpck_problem problem = {
        .file = source_files(src)[w->rank].pub.name, .offset = place, .nbytes = nbytes, .rank = w->rank, .what = what
    };
    if (e->kind == FSDPCK_CHUNK_ITEM && e->ordinal < src->items.count) {
        problem.tensor = source_items(src)[e->ordinal].pub.name;
    } else if (e->kind == FSDPCK_CHUNK_TENSOR && e->ordinal < src->tensors.count) {
        const uint64_t *offset = w->t->dims + e->dims, *size = offset + e->ndim;
        uint64_t row = e->ndim && size[0] ? e->decoded / size[0] : 0;
        problem.tensor = source_tensors(src)[e->ordinal].name;
        fsdpck_verify_contents_suspect(w->rd->v->contents, e->ordinal);
        problem.row_begin = row ? offset[0] + begin / row : 0;
        problem.row_end = row ? offset[0] + (end + row - 1) / row : 0;
    }
    fsdpck_verifier_report(w->rd->v, &problem);
}

int fsdpck_verify_blocks(const struct verify_job *w, const struct fsdpck_verify_span *s, const uint8_t *data,
                         struct fsdpck_error *err)
{
    const struct fsdpck_table_entry *e = verify_job_entry(w, s);
    struct fsdpck_hash128 want[WINDOW_BLOCKS], got;
    uint64_t first = e->first_hash + s->begin / FSDPCK_BLOCK_NBYTES, n = fsdpck_nblocks(s->end - s->begin);
    int rc =
        fsdpck_files_read(w->rd->v->src, w->rank, want, n * sizeof *want, w->t->hashes + first * sizeof *want, err);
    for (uint64_t i = 0; !rc && i < n; i++) {
        uint64_t at = s->begin + i * FSDPCK_BLOCK_NBYTES,
                 stop = at + FSDPCK_BLOCK_NBYTES < s->end ? at + FSDPCK_BLOCK_NBYTES : s->end;
        fsdpck_hash(data + (at - s->begin), stop - at, &got);
        if (!fsdpck_hash_equal(&got, &want[i]))
            damaged_block(w, e, at, stop, e->payload + at, stop - at, "block hash differs");
    }
    if (!rc && e->kind == FSDPCK_CHUNK_TENSOR)
        fsdpck_verify_contents_add(w->rd->v->contents, w->rank, w->t, e, s->begin, s->end, data);
    return rc;
}

/* A block whose hash matches but which does not decode was forged. */
static void check_record(const struct verify_job *w, const struct fsdpck_table_entry *e, uint64_t number,
                         const struct fsdpck_extent *x, const struct fsdpck_record *record, const uint8_t *stored)
{
    const struct fsdpck_source *src = w->rd->v->src;
    uint64_t at = number * FSDPCK_BLOCK_NBYTES;
    uint32_t n = fsdpck_block_decoded(x, number);
    const char *what = NULL;
    struct fsdpck_hash128 got;
    fsdpck_hash(stored, record->nbytes, &got);
    if (!fsdpck_hash_equal(&got, &record->hash))
        what = "block hash differs";
    else if (e->ordinal < src->tensors.count) {
        struct fsdpck_planes planes = fsdpck_planes_of(source_tensors(src)[e->ordinal].dtype);
        if (!fsdpck_block_decode(w->w->decoder, &planes, stored, record->nbytes, w->w->block, n))
            what = "a compressed block does not decode";
    }
    if (what)
        damaged_block(w, e, at, at + n, e->payload + record->begin, record->nbytes, what);
    else if (e->ordinal < src->tensors.count)
        fsdpck_verify_contents_add(w->rd->v->contents, w->rank, w->t, e, at, at + n, w->w->block);
}

int fsdpck_verify_compressed(const struct verify_job *w, struct fsdpck_error *err)
{
    const struct fsdpck_table_entry *e = verify_job_entry(w, w->spans);
    const struct fsdpck_extent x = { .file = w->rank,
                                     .payload = e->payload,
                                     .payload_nbytes = e->decoded,
                                     .stored_nbytes = e->nbytes,
                                     .hashes = w->t->hashes + 16 * e->first_hash };
    struct fsdpck_record records[WINDOW_BLOCKS];
    uint64_t first = w->spans->begin / FSDPCK_BLOCK_NBYTES, n = fsdpck_nblocks(w->spans->end - w->spans->begin);
    uint8_t *data;
    int rc = fsdpck_records_read(w->rd->v->src, &x, first, n, records, err);
    if (!rc)
        rc =
            fsdpck_file_read(w->rd->v->src, w->rank, e->payload + records[0].begin,
                             records[n - 1].begin + records[n - 1].nbytes - records[0].begin, w->w->buffer, &data, err);
    for (uint64_t i = 0; !rc && i < n; i++)
        check_record(w, e, first + i, &x, &records[i], data + (records[i].begin - records[0].begin));
    if (!rc)
        __atomic_fetch_add(&w->rd->read_nbytes, records[n - 1].begin + records[n - 1].nbytes - records[0].begin,
                           __ATOMIC_RELAXED);
    return rc;
}
