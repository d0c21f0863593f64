/* SPDX-License-Identifier: Apache-2.0 */
/* Closes the gaps of a compressed shard file. During writing, each chunk has room for its uncompressed size, so that
 * threads can write chunks in any order. This pass runs in file order and moves bytes only to lower offsets, so it has
 * read every byte that it overwrites. */
#include "format/shard_compact.h"

#include <stdlib.h>

#include "engine/decode.h"

#define PIECE_NBYTES (1u << 20)
#define RECORDS      256u

struct mover {
    struct fsdpck_out_files *out;
    uint32_t file;
    uint8_t *buf; /* one piece */
    struct fsdpck_error *err;
};

static int move(const struct mover *m, uint64_t from, uint64_t to, uint64_t nbytes)
{
    int rc = 0;
    for (uint64_t at = 0; !rc && from != to && at < nbytes; at += PIECE_NBYTES) {
        uint64_t n = nbytes - at < PIECE_NBYTES ? nbytes - at : PIECE_NBYTES;
        rc = fsdpck_out_files_read(m->out, m->file, m->buf, n, from + at, m->err);
        if (!rc)
            rc = fsdpck_out_files_write(m->out, m->file, m->buf, n, to + at, m->err);
    }
    return rc;
}

/* Moves blocks that are contiguous in the file together. to: offset of the payload; *nbytes: payload bytes so far. */
static int move_blocks(const struct mover *m, uint8_t *bytes, uint64_t count, uint64_t to, uint64_t *nbytes)
{
    struct fsdpck_record record;
    for (uint64_t i = 0; i < count;) {
        uint64_t from = 0, run = 0;
        for (; i < count; i++) {
            fsdpck_record_load(&record, bytes + i * FSDPCK_RECORD_NBYTES);
            if (run && record.begin != from + run)
                break;
            from = run ? from : record.begin;
            record.begin = *nbytes + run;
            run += record.nbytes;
            fsdpck_record_store(&record, bytes + i * FSDPCK_RECORD_NBYTES);
        }
        int rc = move(m, from, to + *nbytes, run);
        if (rc)
            return rc;
        *nbytes += run;
    }
    return 0;
}

static int compact_chunk(const struct mover *m, const struct fsdpck_shard *s, struct fsdpck_shard_entry *e, uint64_t to)
{
    uint8_t bytes[RECORDS * FSDPCK_RECORD_NBYTES];
    uint64_t records = fsdpck_shard_hashes(s, e), count = fsdpck_nblocks(e->decoded_nbytes), nbytes = 0;
    for (uint64_t at = 0; at < count; at += RECORDS) {
        uint64_t n = count - at < RECORDS ? count - at : RECORDS, place = records + at * FSDPCK_RECORD_NBYTES;
        int rc = fsdpck_out_files_read(m->out, m->file, bytes, n * FSDPCK_RECORD_NBYTES, place, m->err);
        if (!rc)
            rc = move_blocks(m, bytes, n, to, &nbytes);
        if (!rc)
            rc = fsdpck_out_files_write(m->out, m->file, bytes, n * FSDPCK_RECORD_NBYTES, place, m->err);
        if (rc)
            return rc;
    }
    e->layout.begin = to;
    e->layout.payload_nbytes = nbytes;
    return 0;
}

static int compact(const struct mover *m, struct fsdpck_shard *s)
{
    uint64_t to = 0, slots = s->table + s->table_nbytes - 16 * s->nhashes;
    for (size_t i = 0; i < s->entries.count; i++) {
        struct fsdpck_shard_entry *e = &shard_entries(s)[i];
        int rc = e->is_item ? move(m, e->layout.begin, to, e->layout.payload_nbytes) : compact_chunk(m, s, e, to);
        if (rc)
            return rc;
        e->layout.begin = to;
        to += e->layout.payload_nbytes;
    }
    s->end = to;
    fsdpck_shard_close(s);
    int rc = move(m, slots, s->table + s->table_nbytes - 16 * s->nhashes, 16 * s->nhashes);
    return !rc ? fsdpck_out_files_truncate(m->out, m->file, s->nbytes, m->err) : rc;
}

int fsdpck_shard_compact(struct fsdpck_shard *s, struct fsdpck_out_files *out, uint32_t file, struct fsdpck_error *err)
{
    struct mover m = { .out = out, .file = file, .buf = malloc(PIECE_NBYTES), .err = err };
    int rc = m.buf ? compact(&m, s) : fsdpck_error_nomem(err, PIECE_NBYTES);
    free(m.buf);
    return rc;
}
