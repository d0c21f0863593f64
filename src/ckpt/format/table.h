/* SPDX-License-Identifier: Apache-2.0 */
/* The chunk table and trailer of a shard file (FORMAT.md sections 3.2 and 3.3): converts bytes to structs and back, and
 * checks everything. */
#ifndef CKPT_TABLE_H
#define CKPT_TABLE_H

#include <fsdpck/io.h>
#include <fsdpck/tensor.h>

#include "base/hash.h"

#define FSDPCK_TABLE_HEADER_NBYTES 96u
#define FSDPCK_TABLE_ENTRY_NBYTES  96u
#define FSDPCK_TRAILER_NBYTES      64u

enum fsdpck_chunk_kind { FSDPCK_CHUNK_TENSOR = 0, FSDPCK_CHUNK_ITEM = 1 };
enum fsdpck_chunk_codec { FSDPCK_CODEC_STORED = 0, FSDPCK_CODEC_PLANES = 1 }; /* FORMAT.md section 8 */
#define FSDPCK_FEATURE_COMPRESSION "block-compression"                        /* in index.json's `requires` */

struct fsdpck_table_entry {
    uint32_t ordinal;
    uint8_t kind, codec, ndim, has_content;
    uint64_t payload, nbytes; /* in the file */
    uint64_t decoded;         /* bytes after decoding; with codec 0 it equals nbytes, and the writer ignores it */
    uint64_t first_hash;      /* index in the hashes */
    uint64_t dims;            /* index in the dimension pool: ndim offsets, then ndim sizes */
    uint64_t item, item_nbytes;
    uint32_t crc32;
    uint8_t content[16];
};

struct fsdpck_table {
    uint32_t rank;
    uint8_t save_id[16];
    struct fsdpck_table_entry *entries;
    uint64_t nentries;
    uint64_t *dims;
    uint64_t ndims;
    uint64_t nhashes;
    uint64_t hashes; /* file offset of hash 0 */
    struct fsdpck_hash128 envelope;
};

struct fsdpck_trailer {
    uint8_t save_id[16];
    uint64_t table, table_nbytes;
    struct fsdpck_hash128 table_hash;
};

/* Computes the size of a table with these counts; false on overflow. */
bool fsdpck_table_nbytes(uint64_t nentries, uint64_t ndims, uint64_t nhashes, uint64_t *nbytes);

/* Reads and checks the trailer of a file of file_nbytes bytes. */
int fsdpck_trailer_read(const struct fsdpck_io *io, int fd, const char *file, uint64_t file_nbytes,
                        struct fsdpck_trailer *out, struct fsdpck_error *err);
/* Returns whether the file ends like a shard file of fsdpck; save_id: its text if the trailer is intact, else "". Also
 * false if the file cannot be read. */
bool fsdpck_shard_is(const struct fsdpck_io *io, const char *path, char save_id[37]);
void fsdpck_trailer_write(const struct fsdpck_trailer *t, uint8_t out[FSDPCK_TRAILER_NBYTES]);

/* Reads the table that the trailer locates; checks its hash and every field that can be checked without the index.
 * Block hashes remain in the file. Memory: 96 bytes per entry and 8 per dimension. */
int fsdpck_table_read(const struct fsdpck_io *io, int fd, const char *file, const struct fsdpck_trailer *trailer,
                      struct fsdpck_table *out, struct fsdpck_error *err);
void fsdpck_table_free(struct fsdpck_table *t);
/* Returns the first entry of an ordinal; *count: number of its entries. */
uint64_t fsdpck_table_find(const struct fsdpck_table *t, enum fsdpck_chunk_kind kind, uint32_t ordinal,
                           uint64_t *count);

/* Convert header and entries to bytes. */
void fsdpck_table_write_header(const struct fsdpck_table *t, uint8_t out[FSDPCK_TABLE_HEADER_NBYTES]);
void fsdpck_table_write_entry(const struct fsdpck_table_entry *e, uint8_t out[FSDPCK_TABLE_ENTRY_NBYTES]);

static inline uint64_t fsdpck_nblocks(uint64_t nbytes)
{
    return nbytes / FSDPCK_BLOCK_NBYTES + (nbytes % FSDPCK_BLOCK_NBYTES != 0);
}
/* Returns the number of 16-byte slots in the pool of block hashes for a payload of so many decoded bytes: a compressed
 * block also stores its position. */
static inline uint64_t fsdpck_nslots(bool compressed, uint64_t decoded)
{
    return fsdpck_nblocks(decoded) * (compressed ? 2 : 1);
}

#endif
