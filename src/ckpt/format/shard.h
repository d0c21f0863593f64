/* SPDX-License-Identifier: Apache-2.0 */
/* One rank's shard file under construction (FORMAT.md section 3): laid out before any byte is known, finished when all
 * payloads are written. */
#ifndef CKPT_SHARD_H
#define CKPT_SHARD_H

#include "torch/zip/item.h"
#include "base/out_files.h"
#include "format/table.h"
#include "base/vec.h"

struct fsdpck_shard_entry {
    struct fsdpck_item_layout layout;
    const uint64_t *offset, *size; /* (ndim), borrowed; NULL for an item */
    uint64_t first_hash;
    uint32_t ordinal;
    uint32_t ndim;
    enum fsdpck_dtype dtype;
    bool is_item, has_content;
    uint64_t decoded_nbytes; /* of a compressed chunk's elements */
    uint32_t crc32;          /* filled in by the code that moved the payload */
    struct fsdpck_content content;
};

struct fsdpck_shard {
    uint32_t rank;
    bool compressed;           /* set after begin: chunks have no zip, and fsdpck_shard_finish() moves them together */
    struct fsdpck_vec entries; /* struct fsdpck_shard_entry, in the order of the table */
    uint64_t nhashes, ndims;
    uint64_t end;                         /* end of the last item */
    uint64_t table, table_nbytes, nbytes; /* after fsdpck_shard_close() */
    struct fsdpck_hash128 table_hash;     /* after fsdpck_shard_finish() */
};

void fsdpck_shard_begin(struct fsdpck_shard *s, uint32_t rank);
/* Add tensors in the order of their ordinals and offsets, then items. Not for tensors or boxes without elements. */
int fsdpck_shard_add_chunk(struct fsdpck_shard *s, uint32_t ordinal, enum fsdpck_dtype dtype, uint32_t ndim,
                           const uint64_t *offset, const uint64_t *size, struct fsdpck_error *err);
int fsdpck_shard_add_item(struct fsdpck_shard *s, uint32_t ordinal, uint64_t nbytes, struct fsdpck_error *err);
/* Ends the list of entries: the offsets of table and trailer, and the size of the file, are then known. */
void fsdpck_shard_close(struct fsdpck_shard *s);
/* File offsets of an entry's payload and of its block hashes; hashes only after close. */
static inline uint64_t fsdpck_shard_payload(const struct fsdpck_shard_entry *e)
{
    return e->layout.begin + e->layout.head_nbytes;
}
static inline uint64_t fsdpck_shard_hashes(const struct fsdpck_shard *s, const struct fsdpck_shard_entry *e)
{
    return s->table + s->table_nbytes - 16 * (s->nhashes - e->first_hash);
}
void fsdpck_shard_free(struct fsdpck_shard *s);

static inline struct fsdpck_shard_entry *shard_entries(const struct fsdpck_shard *s)
{
    return s->entries.data;
}

#endif
