/* SPDX-License-Identifier: Apache-2.0 */
/* The CRC-32 of a record, combined from its parts, in any order, with overlaps, and from several threads: one changed
 * byte is found, and an intact record is accepted. Only the gaps are read at the end. */
#include "engine/checks.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "tree.h"

enum { BEFORE = 100, NBYTES = (2 << 20) + 4321, NTHREADS = 4 };

struct scene {
    char *root, *path;
    struct fsdpck_source *src;
    struct fsdpck_extent extent;
    uint8_t *data; /* (NBYTES) contents of the record */
    char notes[200];
    unsigned nnotes;
};

static void take_note(void *ctx, const char *line)
{
    struct scene *s = ctx;
    s->nnotes++;
    snprintf(s->notes, sizeof s->notes, "%s", line);
}

static uint64_t draw(uint64_t *rng, uint64_t n)
{
    *rng = *rng * 6364136223846793005u + 1442695040888963407u;
    return (*rng >> 33) % n;
}

static int setup(void **state)
{
    static const struct fsdpck_source_ops ops = { .kind = "record" };
    struct scene *s = calloc(1, sizeof *s);
    const struct fsdpck_options opt = { .note = take_note, .ctx = s };
    struct fsdpck_error err = { 0 };
    uint64_t rng = 7;
    s->root = tree_new();
    s->path = tree_path(s->root, "record");
    s->data = malloc(NBYTES);
    for (size_t i = 0; i < NBYTES; i++)
        s->data[i] = (uint8_t)draw(&rng, 256);
    FILE *f = fopen(s->path, "wb");
    assert_non_null(f);
    assert_int_equal(fseek(f, BEFORE, SEEK_SET), 0);
    assert_int_equal(fwrite(s->data, 1, NBYTES, f), NBYTES);
    assert_int_equal(fclose(f), 0);
    s->src = fsdpck_source_new(s->path, &opt, &err);
    assert_non_null(s->src);
    s->src->ops = &ops;
    assert_int_equal(fsdpck_source_add_file(s->src, s->path, "record", -1, &s->extent.file, &err), 0);
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    struct scene *s = *state;
    fsdpck_source_close(s->src);
    tree_remove(s->root);
    free(s->root);
    free(s->path);
    free(s->data);
    free(s);
    return 0;
}

/* Starts over. The extent's tensor begins `before` bytes after the start of the record. */
static struct fsdpck_crc_record *expect(struct scene *s, uint64_t before)
{
    struct fsdpck_crc_record *record = fsdpck_arena_alloc(&s->src->arena, sizeof *record, NULL);
    assert_non_null(record);
    s->extent.payload = BEFORE + before;
    s->extent.crc = fsdpck_checks_expect(s->src, record, BEFORE, NBYTES, fsdpck_crc32(0, s->data, NBYTES));
    assert_ptr_equal(s->extent.crc, record);
    return record;
}

static int bring(struct scene *s, uint64_t begin, uint64_t end, const uint8_t *data, struct fsdpck_error *err)
{
    return fsdpck_checks_bytes(s->src, FSDPCK_CHECKS_NO_TENSOR, &s->extent, begin, data + begin, end - begin, err);
}

static int finish(struct scene *s, uint64_t *read_nbytes, struct fsdpck_error *err)
{
    *read_nbytes = 0;
    return fsdpck_checks_finish(s->src, read_nbytes, err);
}

/* ---- one thread ---- */

static void only_gaps_are_read(void **state)
{
    struct scene *s = *state;
    struct fsdpck_error err = { 0 };
    uint64_t read;
    expect(s, 0);
    assert_int_equal(bring(s, 1000, 5000, s->data, &err), 0);
    assert_int_equal(bring(s, 4000, 9000, s->data, &err), 0);
    assert_int_equal(bring(s, 0, 500, s->data, &err), 0);
    assert_int_equal(finish(s, &read, &err), 0);
    assert_int_equal(read, NBYTES - 8500);
    assert_int_equal(finish(s, &read, &err), 0);
    assert_int_equal(read, 0);
    expect(s, 0);
    for (uint64_t at = 0; at < NBYTES; at += 70000)
        assert_int_equal(bring(s, at, at + 70000 < NBYTES ? at + 70000 : NBYTES, s->data, &err), 0);
    assert_int_equal(finish(s, &read, &err), 0);
    assert_int_equal(read, 0);
}

/* Too many parts to keep: all of the record is read again. */
static void scattered_parts(void **state)
{
    struct scene *s = *state;
    struct fsdpck_error err = { 0 };
    uint64_t read;
    for (int flip = 0; flip < 2; flip++) {
        struct fsdpck_crc_record *record = expect(s, 0);
        record->crc32 ^= (uint32_t)flip;
        for (uint64_t at = 0; at < 20000; at += 2)
            assert_int_equal(bring(s, at, at + 1, s->data, &err), 0);
        assert_int_equal(finish(s, &read, &err), flip ? FSDPCK_ERR_DAMAGED : 0);
        assert_int_equal(read, NBYTES);
    }
}

/* A slice of a tensor inside its storage: the whole storage is checked, and stays refused. */
static void damage_is_remembered(void **state)
{
    struct scene *s = *state;
    struct fsdpck_error err = { 0 };
    uint64_t read;
    s->data[17] ^= 1; /* the file now differs in one byte */
    expect(s, 4096);
    assert_int_equal(bring(s, 0, 100, s->data + 4096, &err), 0);
    assert_int_equal(finish(s, &read, &err), FSDPCK_ERR_DAMAGED);
    assert_non_null(strstr(err.message, "CRC-32"));
    assert_string_equal(err.file, s->path);
    assert_int_equal(bring(s, 200, 300, s->data + 4096, &err), FSDPCK_ERR_DAMAGED);
    assert_int_equal(fsdpck_checks_extent(s->src, FSDPCK_CHECKS_NO_TENSOR, &s->extent, &err), FSDPCK_ERR_DAMAGED);
    s->src->opt.no_verify = true;
    assert_int_equal(bring(s, 200, 300, s->data + 4096, &err), 0);
    assert_int_equal(fsdpck_checks_extent(s->src, FSDPCK_CHECKS_NO_TENSOR, &s->extent, &err), 0);
}

static void records_without_a_crc_are_counted(void **state)
{
    struct scene *s = *state;
    struct fsdpck_error err = { 0 };
    struct fsdpck_crc_record record;
    assert_null(fsdpck_checks_expect(s->src, &record, BEFORE, 0, 0)); /* empty: nothing to check */
    assert_null(fsdpck_checks_expect(s->src, &record, BEFORE, NBYTES, 0));
    fsdpck_checks_unchecked(s->src, 2);
    assert_int_equal(fsdpck_source_nunchecked(s->src), 3);
    for (int again = 0; again < 2; again++)
        assert_int_equal(fsdpck_source_check(s->src, &err), 0);
    assert_int_equal(fsdpck_source_nunchecked(s->src), 0);
    assert_int_equal(s->nnotes, 1);
    assert_string_equal(s->notes, "3 records have no CRC-32 to be checked by");
}

/* ---- several threads ---- */

struct bringer {
    struct scene *s;
    const uint8_t *data;
    uint64_t rng;
    int rc;
    pthread_t thread;
};

/* Adds random parts, of the first half only if `rng` says so. */
static void *bring_parts(void *arg)
{
    struct bringer *b = arg;
    struct fsdpck_error err = { 0 };
    const uint64_t limit = draw(&b->rng, 2) ? NBYTES : NBYTES / 2;
    for (int i = 0; i < 60 && b->rc == 0; i++) {
        uint64_t begin = draw(&b->rng, limit), n = 1 + draw(&b->rng, 200000);
        b->rc = bring(b->s, begin, begin + n < NBYTES ? begin + n : NBYTES, b->data, &err);
    }
    if (b->rc == 0)
        b->rc = fsdpck_checks_extent(b->s->src, FSDPCK_CHECKS_NO_TENSOR, &b->s->extent, &err);
    return NULL;
}

static void any_order_of_any_parts(void **state)
{
    struct scene *s = *state;
    for (uint64_t round = 0; round < 40; round++) {
        struct bringer b[NTHREADS];
        uint64_t read, rng = round;
        struct fsdpck_error err = { 0 };
        struct fsdpck_crc_record *record = expect(s, 0);
        bool damage = round % 2;
        record->crc32 ^= damage ? 1u << draw(&rng, 32) : 0;
        for (int i = 0; i < NTHREADS; i++) {
            b[i] = (struct bringer){ .s = s, .data = s->data, .rng = round * NTHREADS + (uint64_t)i };
            assert_int_equal(pthread_create(&b[i].thread, NULL, bring_parts, &b[i]), 0);
        }
        for (int i = 0; i < NTHREADS; i++) {
            pthread_join(b[i].thread, NULL);
            assert_int_equal(b[i].rc, damage ? FSDPCK_ERR_DAMAGED : 0);
        }
        assert_int_equal(finish(s, &read, &err), 0); /* already checked */
        assert_int_equal(read, 0);
    }
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = { T(only_gaps_are_read), T(scattered_parts), T(damage_is_remembered),
                                        T(records_without_a_crc_are_counted), T(any_order_of_any_parts) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
