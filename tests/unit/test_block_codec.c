/* SPDX-License-Identifier: Apache-2.0 */
/* Byte planes and stored blocks: every type round-trips, blocks that do not shrink are stored as they are, and no bytes
 * decode to more than allowed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/block_codec.h"
#include "base/hash.h"
#include "model.h"

enum { GUARD = 32, MAX = FSDPCK_BLOCK_NBYTES };

struct bench {
    struct fsdpck_encoder *e;
    struct fsdpck_decoder *d;
    uint64_t rng;
    uint8_t in[MAX], stored[MAX + GUARD], back[MAX + GUARD];
};

static int setup(void **state)
{
    struct bench *b = calloc(1, sizeof *b);
    assert_non_null(b);
    b->e = fsdpck_encoder_new();
    b->d = fsdpck_decoder_new();
    assert_true(b->e && b->d);
    b->rng = 1;
    *state = b;
    return 0;
}

static int teardown(void **state)
{
    struct bench *b = *state;
    fsdpck_encoder_free(b->e);
    fsdpck_decoder_free(b->d);
    free(b);
    return 0;
}

/* Encodes the first nbytes of in, and checks that they decode to the same and that no other byte was written. */
static uint32_t round_trip(struct bench *b, enum fsdpck_dtype dtype, uint32_t nbytes)
{
    struct fsdpck_planes p = fsdpck_planes_of(dtype);
    memset(b->stored, 0xa5, sizeof b->stored);
    memset(b->back, 0x5a, sizeof b->back);
    uint32_t n = fsdpck_block_encode(b->e, &p, b->in, nbytes, b->stored);
    assert_in_range(n, 1, nbytes);
    for (uint32_t i = 0; i < GUARD; i++)
        assert_int_equal(b->stored[nbytes + i], 0xa5);
    assert_true(fsdpck_block_decode(b->d, &p, b->stored, n, b->back, nbytes));
    assert_memory_equal(b->back, b->in, nbytes);
    for (uint32_t i = 0; i < GUARD; i++)
        assert_int_equal(b->back[nbytes + i], 0x5a);
    return n;
}

static void fill_random(struct bench *b)
{
    for (uint32_t i = 0; i < MAX; i += 8)
        fsdpck_put64(b->in + i, model_random(&b->rng));
}

/* Fills with sums of uniform numbers, which resemble weights. */
static void fill_weights(struct bench *b, enum fsdpck_dtype dtype)
{
    uint32_t item = fsdpck_dtype_info(dtype)->nbytes;
    for (uint32_t i = 0; i < MAX / item; i++) {
        float x = 0;
        for (int k = 0; k < 12; k++)
            x += (float)model_below(&b->rng, 1u << 16) / 65536 - 0.5f;
        x *= 0.02f;
        assert_true(fsdpck_dtype_cast(FSDPCK_FLOAT32, &x, dtype, b->in + (size_t)i * item, 1));
    }
}

static uint32_t some_size(struct bench *b, uint32_t item)
{
    uint32_t n = model_below(&b->rng, 3) ? 1 + (uint32_t)model_below(&b->rng, 300)
                                         : (uint32_t)model_below(&b->rng, MAX / item) + 1;
    return (n * item < MAX ? n * item : MAX) / item * item;
}

static void anything_comes_back(void **state)
{
    struct bench *b = *state;
    for (int dtype = 0; dtype < FSDPCK_NDTYPES; dtype++)
        for (int i = 0; i < 60; i++) {
            fill_random(b);
            if (i % 3 == 1)
                memset(b->in, (int)model_below(&b->rng, 256), MAX);
            if (i % 3 == 2) /* few values in one byte of each element */
                for (uint32_t k = fsdpck_dtype_info(dtype)->nbytes - 1; k < MAX; k += fsdpck_dtype_info(dtype)->nbytes)
                    b->in[k] = (uint8_t)(0x3a + model_below(&b->rng, 3));
            round_trip(b, (enum fsdpck_dtype)dtype, i < 3 ? MAX : some_size(b, fsdpck_dtype_info(dtype)->nbytes));
        }
}

static void noise_is_stored_as_it_is(void **state)
{
    struct bench *b = *state;
    fill_random(b);
    for (int dtype = 0; dtype < FSDPCK_NDTYPES; dtype++) {
        assert_int_equal(round_trip(b, (enum fsdpck_dtype)dtype, MAX), MAX);
        assert_memory_equal(b->stored, b->in, MAX);
    }
}

static void weights_shrink(void **state)
{
    static const struct {
        enum fsdpck_dtype dtype;
        double most;
    } want[] = {
        { FSDPCK_BFLOAT16, 0.675 }, { FSDPCK_FLOAT16, 0.93 }, { FSDPCK_FLOAT32, 0.84 }, { FSDPCK_FLOAT64, 0.95 }
    };
    struct bench *b = *state;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        fill_weights(b, want[i].dtype);
        assert_true(round_trip(b, want[i].dtype, MAX) <= want[i].most * MAX);
    }
}

static void one_value_is_one_byte_a_plane(void **state)
{
    struct bench *b = *state;
    for (int dtype = 0; dtype < FSDPCK_NDTYPES; dtype++) {
        memset(b->in, 0, MAX);
        assert_int_equal(round_trip(b, (enum fsdpck_dtype)dtype, MAX),
                         3 * fsdpck_planes_of((enum fsdpck_dtype)dtype).unit);
    }
}

/* A stored block against FORMAT.md section 8.2, by hand. */
static void bytes_are_where_the_page_says(void **state)
{
    struct bench *b = *state;
    /* 1, -1, 1 … */
    static const uint8_t ones[] = { 0x80, 0x3f, 0x80, 0xbf, 0x80, 0x3f, 0x80, 0x3f,
                                    0x80, 0x3f, 0x80, 0x3f, 0x80, 0x3f, 0x80, 0x3f };
    static const uint8_t want[] = { 1, 0, 8, 0, 0x7f, 0, 1, 0, 0, 0, 0, 0, 0 };
    memcpy(b->in, ones, sizeof ones);
    assert_int_equal(round_trip(b, FSDPCK_BFLOAT16, sizeof ones), sizeof want);
    assert_memory_equal(b->stored, want, sizeof want);
}

/* Changed, truncated and invented blocks are accepted or refused, but never write more than nbytes. Impossible sizes
 * are refused. */
static void lies_do_no_harm(void **state)
{
    struct bench *b = *state;
    struct fsdpck_planes p = fsdpck_planes_of(FSDPCK_BFLOAT16);
    const uint32_t nbytes = 4096;
    fill_weights(b, FSDPCK_BFLOAT16);
    uint32_t n = round_trip(b, FSDPCK_BFLOAT16, nbytes), nrefused = 0;
    for (uint32_t cut = 1; cut < n; cut++) {
        uint8_t *copy = malloc(n - cut); /* exact size, so that a sanitizer detects reads beyond it */
        assert_non_null(copy);
        memcpy(copy, b->stored, n - cut);
        assert_false(fsdpck_block_decode(b->d, &p, copy, n - cut, b->back, nbytes));
        free(copy);
    }
    assert_false(fsdpck_block_decode(b->d, &p, b->stored, n + 1, b->back, nbytes));
    assert_false(fsdpck_block_decode(b->d, &p, b->stored, n, b->back, nbytes + 2));
    assert_false(fsdpck_block_decode(b->d, &p, b->stored, n, b->back, nbytes - 2));
    assert_false(fsdpck_block_decode(b->d, &p, b->stored, n, b->back, nbytes - 1));
    assert_false(fsdpck_block_decode(b->d, &p, b->stored, n, b->back, MAX + 2));
    for (uint32_t i = 0; i < 8 * n; i++) {
        b->stored[i / 8] ^= (uint8_t)(1u << i % 8);
        memset(b->back, 0x5a, sizeof b->back);
        nrefused += !fsdpck_block_decode(b->d, &p, b->stored, n, b->back, nbytes);
        for (uint32_t k = 0; k < GUARD; k++)
            assert_int_equal(b->back[nbytes + k], 0x5a);
        b->stored[i / 8] ^= (uint8_t)(1u << i % 8);
    }
    assert_true(nrefused > 32); /* at least changes of the sizes; the hashes detect the others */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(anything_comes_back),
        cmocka_unit_test(noise_is_stored_as_it_is),
        cmocka_unit_test(weights_shrink),
        cmocka_unit_test(one_value_is_one_byte_a_plane),
        cmocka_unit_test(bytes_are_where_the_page_says),
        cmocka_unit_test(lies_do_no_harm),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
