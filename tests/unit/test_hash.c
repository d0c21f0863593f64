/* SPDX-License-Identifier: Apache-2.0 */
/* Hashes against the header-only reference of xxHash, CRC-32 combination against direct computation, content ids,
 * UUIDs. */
#define XXH_INLINE_ALL
#include <fsdpck/tensor.h>
#include <xxhash.h>

#include "base/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "draw.h"

enum { NBYTES = 300000 };

static int make_bytes(void **state)
{
    uint8_t *bytes = malloc(NBYTES);
    for (size_t i = 0; bytes != NULL && i < NBYTES; i++)
        bytes[i] = (uint8_t)draw(256);
    *state = bytes;
    return bytes == NULL;
}

static int free_bytes(void **state)
{
    free(*state);
    return 0;
}

static void assert_hash(const struct fsdpck_hash128 *h, const char *hex)
{
    char text[33];
    for (size_t i = 0; i < 16; i++)
        snprintf(text + 2 * i, 3, "%02x", h->bytes[i]);
    assert_string_equal(text, hex);
}

static void known_vectors(void **state)
{
    (void)state;
    struct fsdpck_hash128 h;
    fsdpck_hash("", 0, &h);
    assert_hash(&h, "99aa06d3014798d86001c324468d497f");
    fsdpck_hash("a", 1, &h);
    assert_hash(&h, "a96faf705af16834e6c632b61e964e1f");
    fsdpck_hash("abc", 3, &h);
    assert_hash(&h, "06b05ab6733a618578af5f94892f3950");
}

static size_t random_nbytes(void)
{
    static const size_t below[] = { 20, 260, 2000, NBYTES - 64 };
    return (size_t)draw(below[draw(4)]);
}

static void equals_the_reference(void **state)
{
    const uint8_t *bytes = *state;
    for (int i = 0; i < 2000; i++) {
        const uint8_t *p = bytes + draw(64);
        size_t nbytes = random_nbytes();
        XXH128_canonical_t want;
        struct fsdpck_hash128 got;
        XXH128_canonicalFromHash(&want, XXH3_128bits(p, nbytes));
        fsdpck_hash(p, nbytes, &got);
        assert_memory_equal(got.bytes, want.digest, 16);

        uint64_t r = draw(4) == 0 ? draw(3) : draw(UINT64_MAX);
        XXH128_hash_t row = XXH3_128bits_withSeed(p, nbytes, r);
        struct fsdpck_content c = { 0 };
        fsdpck_content_add_row(&c, p, nbytes, r);
        assert_true(c.low == row.low64 && c.high == row.high64);
    }
}

static void streaming_equals_one_call(void **state)
{
    const uint8_t *bytes = *state;
    struct fsdpck_hasher *h = fsdpck_hasher_new();
    assert_non_null(h);
    for (int i = 0; i < 200; i++) {
        struct fsdpck_hash128 want, got;
        size_t nbytes = random_nbytes();
        for (size_t done = 0; done < nbytes;) {
            size_t n = (size_t)draw(nbytes - done) + 1;
            fsdpck_hasher_add(h, bytes + done, n);
            done += n;
        }
        fsdpck_hasher_add(h, NULL, 0);
        fsdpck_hasher_finish(h, &got);
        fsdpck_hash(bytes, nbytes, &want);
        assert_true(fsdpck_hash_equal(&got, &want));
        got.bytes[15] ^= 1;
        assert_false(fsdpck_hash_equal(&got, &want));
    }
    fsdpck_hasher_free(h);
    fsdpck_hasher_free(NULL);
}

/* Content id of rows [begin, end), width bytes each. */
static struct fsdpck_content rows(const uint8_t *bytes, size_t width, size_t begin, size_t end)
{
    struct fsdpck_content c;
    uint8_t id[16];
    fsdpck_content_of_rows(bytes + begin * width, width, begin, end - begin, id);
    fsdpck_content_load(&c, id);
    return c;
}

static void content_is_the_same_under_any_split(void **state)
{
    const uint8_t *bytes = *state;
    for (int i = 0; i < 100; i++) {
        size_t width = (size_t)draw(300) + 1, nrows = (size_t)draw(200) + 1;
        struct fsdpck_content whole = { 0 }, parts = { 0 };
        for (size_t r = 0; r < nrows; r++)
            fsdpck_content_add_row(&whole, bytes + r * width, width, r);
        for (size_t r = 0; r < nrows;) {
            size_t n = (size_t)draw(nrows - r) + 1;
            struct fsdpck_content part = rows(bytes, width, r, r + n), loaded;
            uint8_t stored[16];
            fsdpck_content_store(&part, stored);
            fsdpck_content_load(&loaded, stored);
            fsdpck_content_add(&parts, &loaded);
            r += n;
        }
        assert_true(whole.low == parts.low && whole.high == parts.high);
        struct fsdpck_content moved = { 0 }; /* the same rows in other places have another content id */
        for (size_t r = 0; r < nrows; r++)
            fsdpck_content_add_row(&moved, bytes + r * width, width, r + 1);
        assert_false(whole.low == moved.low && whole.high == moved.high);
    }
}

static void content_carries_and_is_little_endian(void **state)
{
    (void)state;
    struct fsdpck_content a = { UINT64_MAX, 1 }, b = { 2, UINT64_MAX };
    fsdpck_content_add(&a, &b);
    assert_true(a.low == 1 && a.high == 1);
    struct fsdpck_content c = { 0x0807060504030201, 0x100f0e0d0c0b0a09 };
    uint8_t stored[16];
    fsdpck_content_store(&c, stored);
    for (size_t i = 0; i < 16; i++)
        assert_int_equal(stored[i], i + 1);
}

static void crc32_is_that_of_zip(void **state)
{
    (void)state;
    assert_int_equal(fsdpck_crc32(0, "123456789", 9), 0xCBF43926);
    assert_int_equal(fsdpck_crc32(fsdpck_crc32(0, "1234", 4), "56789", 5), 0xCBF43926);
    assert_int_equal(fsdpck_crc32(0, NULL, 0), 0);
    assert_int_equal(fsdpck_crc32(0x1234, NULL, 0), 0x1234);
}

static void crc32_of_parts_is_that_of_the_whole(void **state)
{
    const uint8_t *bytes = *state;
    for (int i = 0; i < 1000; i++) {
        size_t nbytes = random_nbytes(), first = (size_t)draw(nbytes + 1);
        uint32_t a = fsdpck_crc32(0, bytes, first), b = fsdpck_crc32(0, bytes + first, nbytes - first);
        assert_int_equal(fsdpck_crc32_combine(a, b, nbytes - first), fsdpck_crc32(0, bytes, nbytes));
    }
}

/* CRC-32 of the byte 'x' and 2^k zero bytes, by doubling: the only way to exceed the memory. */
static void crc32_of_huge_parts(void **state)
{
    (void)state;
    uint32_t zeros = fsdpck_crc32(0, "", 1), x = fsdpck_crc32(0, "x", 1);
    for (unsigned k = 0; k < 62; k++) {
        uint64_t n = (uint64_t)1 << k;
        uint32_t twice = fsdpck_crc32_combine(fsdpck_crc32_combine(x, zeros, n), zeros, n);
        zeros = fsdpck_crc32_combine(zeros, zeros, n);
        assert_int_equal(fsdpck_crc32_combine(x, zeros, 2 * n), twice);
    }
    uint8_t *direct = calloc(1, 1 << 22);
    assert_non_null(direct);
    direct[0] = 'x';
    uint32_t tail = fsdpck_crc32(0, direct + 1, (1 << 22) - 1);
    assert_int_equal(fsdpck_crc32_combine(x, tail, (1 << 22) - 1), fsdpck_crc32(0, direct, 1 << 22));
    free(direct);
}

static void integers_are_little_endian(void **state)
{
    (void)state;
    uint8_t b[8];
    fsdpck_put64(b, 0x8877665544332211);
    assert_memory_equal(b, "\x11\x22\x33\x44\x55\x66\x77\x88", 8);
    assert_true(fsdpck_le64(b) == 0x8877665544332211);
    assert_int_equal(fsdpck_le32(b + 4), 0x88776655);
    assert_int_equal(fsdpck_le16(b + 6), 0x8877);
}

static void uuid_text_and_back(void **state)
{
    (void)state;
    uint8_t uuid[16], back[16];
    char text[37];
    for (size_t i = 0; i < 16; i++)
        uuid[i] = (uint8_t)(0xF0 + i);
    fsdpck_uuid_from_random(uuid);
    fsdpck_uuid_format(uuid, text);
    assert_string_equal(text, "f0f1f2f3-f4f5-46f7-b8f9-fafbfcfdfeff");
    assert_true(fsdpck_uuid_parse(text, back));
    assert_memory_equal(uuid, back, 16);
    static const char *const bad[] = {
        "",
        "f0f1f2f3-f4f5-46f7-b8f9-fafbfcfdfef",
        "f0f1f2f3-f4f5-46f7-b8f9-fafbfcfdfeff0",
        "f0f1f2f3-f4f5-46f7-b8f9-fafbfcfdfefg",
        "F0f1f2f3-f4f5-46f7-b8f9-fafbfcfdfeff",
        "f0f1f2f3+f4f5-46f7-b8f9-fafbfcfdfeff",
        "f0f1f2f3f4f5-46f7-b8f9-fafbfcfdfeff00",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(fsdpck_uuid_parse(bad[i], back));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_vectors),
        cmocka_unit_test(equals_the_reference),
        cmocka_unit_test(streaming_equals_one_call),
        cmocka_unit_test(content_is_the_same_under_any_split),
        cmocka_unit_test(content_carries_and_is_little_endian),
        cmocka_unit_test(crc32_is_that_of_zip),
        cmocka_unit_test(crc32_of_parts_is_that_of_the_whole),
        cmocka_unit_test(crc32_of_huge_parts),
        cmocka_unit_test(integers_are_little_endian),
        cmocka_unit_test(uuid_text_and_back),
    };
    return cmocka_run_group_tests(tests, make_bytes, free_bytes);
}
