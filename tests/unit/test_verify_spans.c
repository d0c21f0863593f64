/* SPDX-License-Identifier: Apache-2.0 */
/* How verify cuts shard files: for any table, every byte before it is in one span, in file order; spans of a window are
 * adjacent, fit in one read, and start at hash blocks; the numbers of windows have no holes. */
#include "format/verify_spans.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model.h"

enum { MAX_ENTRIES = 40 };

struct scene {
    struct fsdpck_table_entry entries[MAX_ENTRIES];
    struct fsdpck_table t;
    uint64_t table;
    uint64_t at_once;
    struct fsdpck_vec spans, windows;
    uint32_t nturns;
};

/* Payloads and gaps of any size, in another order than in the file; some are compressed. */
static void make_table(struct scene *s, uint64_t *rng)
{
    uint64_t at = 0, n = model_below(rng, MAX_ENTRIES), longest = 1ull << model_below(rng, 24),
             widest = 1ull << model_below(rng, 24);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t nbytes = 1 + model_below(rng, longest);
        bool packed = model_below(rng, 8) == 0;
        at += model_below(rng, 4) ? model_below(rng, widest) : 0;
        s->entries[i] = (struct fsdpck_table_entry){ .payload = at,
                                                     .nbytes = nbytes,
                                                     .decoded = packed ? nbytes + model_below(rng, nbytes) : nbytes,
                                                     .codec = packed ? FSDPCK_CODEC_PLANES : FSDPCK_CODEC_STORED };
        at += nbytes;
    }
    for (uint64_t i = n; i > 1; i--) {
        uint64_t k = model_below(rng, i);
        struct fsdpck_table_entry e = s->entries[i - 1];
        s->entries[i - 1] = s->entries[k];
        s->entries[k] = e;
    }
    s->t = (struct fsdpck_table){ .entries = s->entries, .nentries = n };
    s->table = at + model_below(rng, widest);
}

static bool is_packed(const struct scene *s, const struct fsdpck_verify_span *x)
{
    return x->entry != FSDPCK_NO_ENTRY && s->entries[x->entry].codec == FSDPCK_CODEC_PLANES;
}

/* Checks a window that begins at byte *at of the file. *decoded: progress inside a compressed payload. */
static void check_window(const struct scene *s, const struct fsdpck_verify_window *w,
                         const struct fsdpck_verify_span *x, size_t n, uint64_t *at, uint64_t *decoded, uint32_t *turn)
{
    bool gaps = false;
    uint64_t sum = 0;
    assert_true(n > 0);
    for (size_t i = 0; i < n; i++) {
        const struct fsdpck_table_entry *e = x[i].entry == FSDPCK_NO_ENTRY ? NULL : &s->entries[x[i].entry];
        assert_true(x[i].end > x[i].begin || (!e && x[i].end == s->table));
        sum += x[i].end - x[i].begin;
        gaps |= !e;
        if (is_packed(s, &x[i])) {
            assert_int_equal(n, 1);
            assert_int_equal(x[i].begin, *decoded);
            *decoded = x[i].end < e->decoded ? x[i].end : 0;
            *at += *decoded ? 0 : e->nbytes;
        } else {
            assert_int_equal(x[i].begin + (e ? e->payload : 0), *at);
            *at += x[i].end - x[i].begin;
        }
        if (e)
            assert_true(x[i].begin % FSDPCK_BLOCK_NBYTES == 0 && x[i].end <= e->decoded);
        if (e && x[i].end < e->decoded)
            assert_int_equal(x[i].end % FSDPCK_BLOCK_NBYTES, 0);
    }
    assert_true(sum <= s->at_once || (n == 1 && gaps));
    assert_int_equal(w->turn, gaps ? *turn : FSDPCK_NO_TURN);
    *turn += gaps;
}

static void check(struct scene *s)
{
    const struct fsdpck_verify_window *w = s->windows.data;
    const struct fsdpck_verify_span *x = s->spans.data;
    uint64_t at = 0, decoded = 0;
    uint32_t turn = 0;
    for (size_t i = 0; i < s->windows.count; i++) {
        size_t end = i + 1 < s->windows.count ? w[i + 1].first : s->spans.count;
        assert_int_equal(w[i].rank, 7);
        check_window(s, &w[i], x + w[i].first, end - w[i].first, &at, &decoded, &turn);
    }
    assert_int_equal(at, s->table);
    assert_int_equal(turn, s->nturns);
    assert_true(turn > 0);
}

static void test_random_tables(void **state)
{
    (void)state;
    uint64_t rng = 11;
    size_t nwindows = 0, nspans = 0;
    for (int i = 0; i < 3000; i++) {
        struct scene *s = calloc(1, sizeof *s);
        assert_non_null(s);
        s->spans.item_nbytes = sizeof(struct fsdpck_verify_span);
        s->windows.item_nbytes = sizeof(struct fsdpck_verify_window);
        s->at_once = model_below(&rng, 2) ? FSDPCK_VERIFY_WINDOW_NBYTES : FSDPCK_VERIFY_CACHED_NBYTES;
        make_table(s, &rng);
        assert_int_equal(fsdpck_verify_cut(7, &s->t, s->table, s->at_once, &s->spans, &s->windows, &s->nturns, NULL),
                         0);
        check(s);
        nwindows += s->windows.count;
        nspans += s->spans.count;
        fsdpck_vec_free(&s->spans);
        fsdpck_vec_free(&s->windows);
        free(s);
    }
    assert_true(nspans > 2 * nwindows); /* neighbours do share windows */
}

/* A file that claims terabytes between two payloads needs no memory for them. */
static void test_long_gap(void **state)
{
    (void)state;
    struct fsdpck_table_entry entry = { .payload = 1ull << 44, .nbytes = 10, .decoded = 10 };
    const struct fsdpck_table t = { .entries = &entry, .nentries = 1 };
    struct fsdpck_vec spans = FSDPCK_VEC(struct fsdpck_verify_span), windows = FSDPCK_VEC(struct fsdpck_verify_window);
    uint32_t nturns;
    assert_int_equal(
        fsdpck_verify_cut(0, &t, (1ull << 44) + 10, FSDPCK_VERIFY_WINDOW_NBYTES, &spans, &windows, &nturns, NULL), 0);
    assert_int_equal(spans.count, 3);
    assert_int_equal(nturns, 2);
    fsdpck_vec_free(&spans);
    fsdpck_vec_free(&windows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_tables),
        cmocka_unit_test(test_long_gap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
