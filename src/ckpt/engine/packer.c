/* SPDX-License-Identifier: Apache-2.0 */
/* Compresses blocks and writes many at a time, with their records. Knows nothing of shards. */
#include "engine/packer.h"

#include <stdlib.h>
#include <string.h>

#include "engine/decode.h"
#include "engine/turns.h"
#include "base/buffer.h"

#define RECORDS_AT_ONCE 64u

int fsdpck_packer_init(struct fsdpck_packer *p, uint64_t max_blocks, struct fsdpck_error *err)
{
    p->max_blocks = max_blocks;
    p->encoder = fsdpck_encoder_new();
    p->packed = fsdpck_buffer_new(max_blocks * FSDPCK_BLOCK_NBYTES + FSDPCK_PAGE_NBYTES);
    p->records = calloc(max_blocks, sizeof *p->records);
    return p->encoder && p->packed && p->records ? 0 : fsdpck_error_nomem(err, max_blocks * FSDPCK_BLOCK_NBYTES);
}

void fsdpck_packer_free(struct fsdpck_packer *p)
{
    fsdpck_encoder_free(p->encoder);
    free(p->packed);
    free(p->records);
    *p = (struct fsdpck_packer){ 0 };
}

void fsdpck_packer_begin(struct fsdpck_packer *p, struct fsdpck_turns *turns, size_t lane)
{
    p->turns = turns;
    p->lane = lane;
    p->my_turn = false;
    p->fill = p->count = 0;
}

static int write_records(const struct fsdpck_packer *p, const struct fsdpck_packing *to, struct fsdpck_error *err)
{
    uint8_t bytes[RECORDS_AT_ONCE * FSDPCK_RECORD_NBYTES];
    int rc = 0;
    for (uint64_t i = 0; !rc && i < p->count; i += RECORDS_AT_ONCE) {
        uint64_t n = p->count - i < RECORDS_AT_ONCE ? p->count - i : RECORDS_AT_ONCE;
        for (uint64_t k = 0; k < n; k++)
            fsdpck_record_store(&p->records[i + k], bytes + k * FSDPCK_RECORD_NBYTES);
        rc = fsdpck_out_files_write(to->out, to->file, bytes, n * FSDPCK_RECORD_NBYTES,
                                    to->records + (p->first + i) * FSDPCK_RECORD_NBYTES, err);
    }
    return rc;
}

/* In turn, bytes are written to their final offset: shifted to the same offset in a page as in the file, so that whole
 * pages bypass the page cache. Other bytes are moved soon, and the move reads them through the page cache, so they are
 * written through it: never at the same offset in a page. */
static const uint8_t *shift(struct fsdpck_packer *p, uint64_t file_offset)
{
    uint64_t lead = (file_offset + (p->turns ? 0 : 1)) % FSDPCK_PAGE_NBYTES;
    if (lead)
        memmove(p->packed + lead, p->packed, p->fill);
    return p->packed + lead;
}

/* Writes the gathered blocks at this file offset. */
static int flush(struct fsdpck_packer *p, const struct fsdpck_packing *to, uint64_t file_offset,
                 struct fsdpck_error *err)
{
    for (uint64_t i = 0; i < p->count; i++)
        p->records[i].begin += file_offset;
    int rc = fsdpck_out_files_write(to->out, to->file, shift(p, file_offset), p->fill, file_offset, err);
    if (!rc)
        rc = write_records(p, to, err);
    p->fill = p->count = 0;
    return rc;
}

static int flush_in_turn(struct fsdpck_packer *p, const struct fsdpck_packing *to, struct fsdpck_error *err)
{
    int rc = p->my_turn ? 0 : fsdpck_turns_wait(p->turns, p->lane, &p->at, err);
    uint64_t file_offset = p->at;
    if (rc)
        return rc;
    p->my_turn = true;
    p->at += p->fill;
    return flush(p, to, file_offset, err);
}

static void pack(struct fsdpck_packer *p, const struct fsdpck_packing *to, uint64_t number, const uint8_t *data,
                 uint32_t nbytes)
{
    struct fsdpck_record *r = &p->records[p->count];
    if (p->count++ == 0)
        p->first = number;
    *r = (struct fsdpck_record){ .begin = p->fill };
    r->nbytes = fsdpck_block_encode(p->encoder, &to->planes, data, nbytes, p->packed + p->fill);
    fsdpck_hash(p->packed + p->fill, r->nbytes, &r->hash);
    p->fill += r->nbytes;
}

int fsdpck_packer_write(struct fsdpck_packer *p, const struct fsdpck_packing *to, uint64_t first, uint64_t file_offset,
                        const uint8_t *data, uint64_t nbytes, struct fsdpck_error *err)
{
    uint64_t begun = 0; /* bytes of data before packed[0] */
    int rc = 0;
    for (uint64_t at = 0; !rc && at < nbytes; at += FSDPCK_BLOCK_NBYTES) {
        uint64_t left = nbytes - at;
        pack(p, to, first + at / FSDPCK_BLOCK_NBYTES, data + at,
             left < FSDPCK_BLOCK_NBYTES ? (uint32_t)left : FSDPCK_BLOCK_NBYTES);
        bool is_full = p->count == p->max_blocks, is_last = left <= FSDPCK_BLOCK_NBYTES;
        if (p->turns && is_full)
            rc = flush_in_turn(p, to, err);
        if (!p->turns && (is_full || is_last)) {
            rc = flush(p, to, file_offset + begun, err);
            begun = at + FSDPCK_BLOCK_NBYTES;
        }
    }
    return rc;
}

int fsdpck_packer_end(struct fsdpck_packer *p, const struct fsdpck_packing *to, struct fsdpck_error *err)
{
    int rc = p->turns ? flush_in_turn(p, to, err) : 0;
    if (p->turns && !rc)
        fsdpck_turns_end(p->turns, p->lane, p->at);
    return rc;
}
