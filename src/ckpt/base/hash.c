/* SPDX-License-Identifier: Apache-2.0 */
/* Hashes, content ids, CRC-32 and UUID text. Knows bytes, not their origin. */
#include "base/hash.h"

#include <stdlib.h>

#include <libdeflate.h>
#include <xxhash.h>

#include "base/json_write.h"

/* If libxxhash was built with dispatch, it selects AVX2 or AVX-512 at run time: 45 GB/s instead of 20 on blocks of 64
 * KiB. */
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
/* The library selects at the first call with more than 240 bytes, and not atomically: make that call while there is
 * only one thread. */
__attribute__((constructor)) static void choose_implementation(void)
{
    static const char bytes[256];
    (void)XXH3_128bits(bytes, sizeof bytes);
}
#endif

static void store_canonical(XXH128_hash_t h, struct fsdpck_hash128 *out)
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, h);
    memcpy(out->bytes, canonical.digest, sizeof out->bytes);
}

void fsdpck_hash(const void *data, size_t nbytes, struct fsdpck_hash128 *out)
{
    store_canonical(XXH3_128bits(data, nbytes), out);
}

bool fsdpck_hash_equal(const struct fsdpck_hash128 *a, const struct fsdpck_hash128 *b)
{
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

struct fsdpck_hasher {
    XXH3_state_t *state;
};

struct fsdpck_hasher *fsdpck_hasher_new(void)
{
    struct fsdpck_hasher *h = malloc(sizeof *h);
    if (!h)
        return NULL;
    h->state = XXH3_createState();
    if (!h->state) {
        free(h);
        return NULL;
    }
    XXH3_128bits_reset(h->state);
    return h;
}

void fsdpck_hasher_add(struct fsdpck_hasher *h, const void *data, size_t nbytes)
{
    if (nbytes > 0)
        XXH3_128bits_update(h->state, data, nbytes);
}

void fsdpck_hasher_finish(struct fsdpck_hasher *h, struct fsdpck_hash128 *out)
{
    store_canonical(XXH3_128bits_digest(h->state), out);
    XXH3_128bits_reset(h->state);
}

void fsdpck_hasher_free(struct fsdpck_hasher *h)
{
    if (h)
        XXH3_freeState(h->state);
    free(h);
}

void fsdpck_content_add(struct fsdpck_content *c, const struct fsdpck_content *more)
{
    c->high += more->high + __builtin_add_overflow(c->low, more->low, &c->low);
}

void fsdpck_hasher_row_begin(struct fsdpck_hasher *h, uint64_t r)
{
    XXH3_128bits_reset_withSeed(h->state, r);
}

void fsdpck_hasher_row_end(struct fsdpck_hasher *h, struct fsdpck_content *c)
{
    XXH128_hash_t row = XXH3_128bits_digest(h->state);
    fsdpck_content_add(c, &(struct fsdpck_content){ row.low64, row.high64 });
    XXH3_128bits_reset(h->state);
}

void fsdpck_content_add_row(struct fsdpck_content *c, const void *row, size_t nbytes, uint64_t r)
{
    XXH128_hash_t h = XXH3_128bits_withSeed(row, nbytes, r);
    fsdpck_content_add(c, &(struct fsdpck_content){ h.low64, h.high64 });
}

void fsdpck_content_store(const struct fsdpck_content *c, uint8_t out[16])
{
    fsdpck_put64(out, c->low);
    fsdpck_put64(out + 8, c->high);
}

void fsdpck_content_load(struct fsdpck_content *c, const uint8_t in[16])
{
    c->low = fsdpck_le64(in);
    c->high = fsdpck_le64(in + 8);
}

uint32_t fsdpck_crc32(uint32_t crc, const void *data, size_t nbytes)
{
    return nbytes == 0 ? crc : libdeflate_crc32(crc, data, nbytes); /* libdeflate takes NULL for "the initial value" */
}

/* CRC-32 is arithmetic on polynomials over GF(2) modulo this one; bit 31 is the coefficient of x^0. */
#define POLYNOMIAL 0xEDB88320u

static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (; a != 0; a <<= 1) {
        if (a >> 31)
            product ^= b;
        b = (b >> 1) ^ (b & 1 ? POLYNOMIAL : 0); /* b · x */
    }
    return product;
}

/* x^(2^k); x^(2^32) is x again. */
static const uint32_t power_of_x[32] = {
    0x40000000, 0x20000000, 0x08000000, 0x00800000, 0x00008000, 0xedb88320, 0xb1e6b092, 0xa06a2517,
    0xed627dae, 0x88d14467, 0xd7bbfe6a, 0xec447f11, 0x8e7ea170, 0x6427800e, 0x4d47bae0, 0x09fe548f,
    0x83852d0f, 0x30362f1a, 0x7b5a9cc3, 0x31fec169, 0x9fec022a, 0x6c8dedc4, 0x15d6874d, 0x5fde7a4e,
    0xbad90e37, 0x2e4e5eef, 0x4eaba214, 0xa8a472c0, 0x429a969e, 0x148d302a, 0xc40ba6d0, 0xc4e22c3c,
};

/* Appending n bytes to a message multiplies its CRC by x^(8n). */
uint32_t fsdpck_crc32_combine(uint32_t crc_a, uint32_t crc_b, uint64_t nbytes_b)
{
    for (unsigned k = 3; nbytes_b != 0; nbytes_b >>= 1, k++)
        if (nbytes_b & 1)
            crc_a = multiply(power_of_x[k % 32], crc_a);
    return crc_a ^ crc_b;
}

void fsdpck_uuid_from_random(uint8_t uuid[16])
{
    uuid[6] = (uint8_t)((uuid[6] & 0x0F) | 0x40);
    uuid[8] = (uint8_t)((uuid[8] & 0x3F) | 0x80);
}

static const struct {
    uint8_t first, nbytes, at; /* bytes of the UUID, position in the text */
} uuid_groups[5] = { { 0, 4, 0 }, { 4, 2, 9 }, { 6, 2, 14 }, { 8, 2, 19 }, { 10, 6, 24 } };

void fsdpck_uuid_format(const uint8_t uuid[16], char text[37])
{
    for (size_t g = 0; g < 5; g++) {
        char *end = fsdpck_hex_format(uuid + uuid_groups[g].first, uuid_groups[g].nbytes, text + uuid_groups[g].at);
        *end = g < 4 ? '-' : '\0';
    }
}

bool fsdpck_uuid_parse(const char *text, uint8_t uuid[16])
{
    if (strnlen(text, 37) != 36)
        return false;
    for (size_t g = 0; g < 5; g++) {
        const char *p = text + uuid_groups[g].at;
        if (!fsdpck_hex_parse(p, uuid + uuid_groups[g].first, uuid_groups[g].nbytes))
            return false;
        if (g < 4 && p[2 * uuid_groups[g].nbytes] != '-')
            return false;
    }
    return true;
}
