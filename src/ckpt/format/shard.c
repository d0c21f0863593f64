/* SPDX-License-Identifier: Apache-2.0 */
/* Layout of a shard file: the offsets of each payload, the table and the trailer. Knows nothing of sources or
 * directories. */
#include "format/shard.h"

#include <string.h>

#define TABLE_ALIGN 64u

void fsdpck_shard_begin(struct fsdpck_shard *s, uint32_t rank)
{
    memset(s, 0, sizeof *s);
    s->rank = rank;
    s->entries.item_nbytes = sizeof(struct fsdpck_shard_entry);
}

static void count(struct fsdpck_shard *s, struct fsdpck_shard_entry *e)
{
    e->first_hash = s->nhashes;
    s->nhashes += fsdpck_nslots(s->compressed && !e->is_item, e->layout.payload_nbytes);
    s->ndims += 2 * (uint64_t)e->ndim;
    s->end = e->layout.begin + e->layout.head_nbytes + e->layout.payload_nbytes + e->layout.tail_nbytes;
}

int fsdpck_shard_add_chunk(struct fsdpck_shard *s, uint32_t ordinal, enum fsdpck_dtype dtype, uint32_t ndim,
                           const uint64_t *offset, const uint64_t *size, struct fsdpck_error *err)
{
    struct fsdpck_shard_entry *e = fsdpck_vec_push(&s->entries, err);
    if (!e)
        return FSDPCK_ERR_NOMEM;
    *e =
        (struct fsdpck_shard_entry){ .ordinal = ordinal, .dtype = dtype, .ndim = ndim, .offset = offset, .size = size };
    fsdpck_item_lay_out(dtype, ndim, size, s->end, &e->layout);
    e->decoded_nbytes = e->layout.payload_nbytes;
    if (s->compressed)
        e->layout = (struct fsdpck_item_layout){ .begin = s->end, .payload_nbytes = e->decoded_nbytes };
    count(s, e);
    return 0;
}

int fsdpck_shard_add_item(struct fsdpck_shard *s, uint32_t ordinal, uint64_t nbytes, struct fsdpck_error *err)
{
    struct fsdpck_shard_entry *e = fsdpck_vec_push(&s->entries, err);
    if (!e)
        return FSDPCK_ERR_NOMEM;
    *e = (struct fsdpck_shard_entry){ .ordinal = ordinal,
                                      .is_item = true,
                                      .layout = { .begin = s->end, .payload_nbytes = nbytes } };
    count(s, e);
    return 0;
}

void fsdpck_shard_close(struct fsdpck_shard *s)
{
    s->table = (s->end + TABLE_ALIGN - 1) / TABLE_ALIGN * TABLE_ALIGN;
    fsdpck_table_nbytes(s->entries.count, s->ndims, s->nhashes,
                        &s->table_nbytes); /* counts of objects in memory: cannot overflow */
    s->nbytes = s->table + s->table_nbytes + FSDPCK_TRAILER_NBYTES;
}

void fsdpck_shard_free(struct fsdpck_shard *s)
{
    fsdpck_vec_free(&s->entries);
}
