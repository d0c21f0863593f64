/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3-128 in canonical (big-endian) bytes, content ids, little-endian integers, CRC-32. */
#ifndef CKPT_HASH_H
#define CKPT_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define FSDPCK_BLOCK_NBYTES 65536u /* payload is hashed in blocks of this size; its last block may be shorter */

struct fsdpck_hash128 {
    uint8_t bytes[16]; /* canonical: high 64 bits first, big-endian, as xxh128sum prints them */
};

void fsdpck_hash(const void *data, size_t nbytes, struct fsdpck_hash128 *out);
bool fsdpck_hash_equal(const struct fsdpck_hash128 *a, const struct fsdpck_hash128 *b);

/* Streaming. */
struct fsdpck_hasher;
struct fsdpck_hasher *fsdpck_hasher_new(void); /* NULL if out of memory */
void fsdpck_hasher_add(struct fsdpck_hasher *h, const void *data, size_t nbytes);
void fsdpck_hasher_finish(struct fsdpck_hasher *h, struct fsdpck_hash128 *out); /* also resets the hasher */
void fsdpck_hasher_free(struct fsdpck_hasher *h);
struct fsdpck_content;
/* One row in pieces: row_begin resets with seed r; then add; row_end adds the row to c and resets. */
void fsdpck_hasher_row_begin(struct fsdpck_hasher *h, uint64_t r);
void fsdpck_hasher_row_end(struct fsdpck_hasher *h, struct fsdpck_content *c);

/* Content id (FORMAT.md): sum modulo 2^128, over dim-0 rows r, of XXH3-128(row bytes, seed r). Little-endian 16 bytes.
 */
struct fsdpck_content {
    uint64_t low, high;
};
void fsdpck_content_add_row(struct fsdpck_content *c, const void *row, size_t nbytes, uint64_t r);
void fsdpck_content_add(struct fsdpck_content *c, const struct fsdpck_content *more);
void fsdpck_content_store(const struct fsdpck_content *c, uint8_t out[16]);
void fsdpck_content_load(struct fsdpck_content *c, const uint8_t in[16]);

uint32_t fsdpck_crc32(uint32_t crc, const void *data, size_t nbytes);             /* as in zip; start with 0 */
uint32_t fsdpck_crc32_combine(uint32_t crc_a, uint32_t crc_b, uint64_t nbytes_b); /* CRC-32 of a followed by b */

/* Turns 16 random bytes into a version-4 UUID: sets its version and variant bits. */
void fsdpck_uuid_from_random(uint8_t uuid[16]);
/* Converts to text (37 bytes with NUL), lower case, and back. */
void fsdpck_uuid_format(const uint8_t uuid[16], char text[37]);
bool fsdpck_uuid_parse(const char *text, uint8_t uuid[16]);

static inline uint16_t fsdpck_le16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}
static inline uint32_t fsdpck_le32(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static inline uint64_t fsdpck_le64(const uint8_t *p)
{
    return fsdpck_le32(p) | (uint64_t)fsdpck_le32(p + 4) << 32;
}
static inline void fsdpck_put16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}
static inline void fsdpck_put32(uint8_t *p, uint32_t v)
{
    fsdpck_put16(p, (uint16_t)v);
    fsdpck_put16(p + 2, (uint16_t)(v >> 16));
}
static inline void fsdpck_put64(uint8_t *p, uint64_t v)
{
    fsdpck_put32(p, (uint32_t)v);
    fsdpck_put32(p + 4, (uint32_t)(v >> 32));
}

#endif
