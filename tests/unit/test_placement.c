/* SPDX-License-Identifier: Apache-2.0 */
/* Placements against lists of row numbers, cut one by one: the part of each rank, that the parts together are complete
 * and disjoint, and which rank writes. */
#include <fsdpck/tensor.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "draw.h"
#include "tensor/box.h"

enum { MAX_ROWS = 64, NDIM = 3 };

struct rows {
    uint64_t at[MAX_ROWS];
    size_t n;
};

/* Part i of n, as torch.chunk cuts a list. */
static struct rows chunk(const struct rows *r, size_t n, size_t i)
{
    struct rows part = { .n = 0 };
    size_t each = (r->n + n - 1) / n;
    for (size_t k = i * each; k < (i + 1) * each && k < r->n; k++)
        part.at[part.n++] = r->at[k];
    return part;
}

static struct rows apply(const struct fsdpck_placement *p, const struct rows *r, uint32_t n, uint32_t coord)
{
    struct rows all = { .n = 0 };
    size_t split = p->kind == FSDPCK_STRIDED_SHARD ? p->split : 1;
    for (size_t s = 0; s < split; s++) {
        struct rows outer = chunk(r, split, s), part = chunk(&outer, n, coord);
        for (size_t k = 0; k < part.n; k++)
            all.at[all.n++] = part.at[k];
    }
    return all;
}

struct held {
    const uint64_t *shape;
    unsigned char *count; /* (elements) number of boxes of the rank that contain it */
    uint64_t boxes, last_begin;
};

static int hold_box(void *ctx, const uint64_t *offset, const uint64_t *size)
{
    struct held *h = ctx;
    uint64_t begin, end;
    assert_true(fsdpck_box_inside(NDIM, offset, size, h->shape));
    fsdpck_box_span(NDIM, h->shape, offset, size, &begin, &end);
    assert_true(end > begin);
    assert_true(h->boxes == 0 || begin > h->last_begin); /* row-major order */
    h->last_begin = begin;
    h->boxes++;
    for (uint64_t i = 0; i < size[0]; i++)
        for (uint64_t j = 0; j < size[1]; j++)
            for (uint64_t k = 0; k < size[2]; k++)
                h->count[((offset[0] + i) * h->shape[1] + offset[1] + j) * h->shape[2] + offset[2] + k]++;
    return 0;
}

static void check_rank(const struct fsdpck_mesh *mesh, const struct fsdpck_placement *p, const uint64_t *shape,
                       const uint32_t *coord, unsigned char *total, bool counts)
{
    struct rows rows[NDIM];
    uint64_t nelem = shape[0] * shape[1] * shape[2];
    struct held h = { .shape = shape, .count = calloc(nelem, 1) };
    unsigned char *want = calloc(nelem, 1);
    assert_true(h.count && want);
    for (uint32_t d = 0; d < NDIM; d++)
        for (rows[d].n = 0; rows[d].n < shape[d]; rows[d].n++)
            rows[d].at[rows[d].n] = rows[d].n;
    for (uint32_t m = 0; m < mesh->ndim; m++)
        if (p[m].kind != FSDPCK_REPLICATE)
            rows[p[m].dim] = apply(&p[m], &rows[p[m].dim], mesh->sizes[m], coord[m]);
    for (size_t i = 0; i < rows[0].n; i++)
        for (size_t j = 0; j < rows[1].n; j++)
            for (size_t k = 0; k < rows[2].n; k++)
                want[(rows[0].at[i] * shape[1] + rows[1].at[j]) * shape[2] + rows[2].at[k]] = 1;
    assert_int_equal(fsdpck_placement_boxes(mesh, p, NDIM, shape, coord, hold_box, &h), 0);
    assert_memory_equal(h.count, want, nelem);
    for (uint64_t i = 0; i < nelem && counts; i++)
        total[i] += want[i];
    free(h.count);
    free(want);
}

static void random_placement(struct fsdpck_placement *p)
{
    uint64_t kind = draw(4);
    *p = (struct fsdpck_placement){ kind == 0   ? FSDPCK_REPLICATE
                                    : kind == 1 ? FSDPCK_STRIDED_SHARD
                                                : FSDPCK_SHARD,
                                    (uint32_t)draw(NDIM), 0 };
    if (p->kind == FSDPCK_STRIDED_SHARD)
        p->split = 1 + (uint32_t)draw(5);
}

static void random_meshes_cover_everything_once(void **state)
{
    (void)state;
    for (int round = 0; round < 500; round++) {
        struct fsdpck_mesh mesh = { .ndim = 1 + (uint32_t)draw(3) };
        struct fsdpck_placement p[3];
        uint64_t shape[NDIM] = { 1 + draw(17), 1 + draw(9), 1 + draw(4) }, nelem = shape[0] * shape[1] * shape[2];
        uint64_t ordinal = draw(100000);
        unsigned char *total = calloc(nelem, 1);
        assert_non_null(total);
        for (uint32_t m = 0; m < mesh.ndim; m++) {
            mesh.sizes[m] = 1 + (uint32_t)draw(5);
            random_placement(&p[m]);
        }
        for (uint32_t rank = 0; rank < fsdpck_mesh_nranks(&mesh); rank++) {
            uint32_t coord[3];
            assert_true(fsdpck_mesh_coordinate(&mesh, rank, coord));
            check_rank(&mesh, p, shape, coord, total, fsdpck_placement_owner(&mesh, p, ordinal, coord));
        }
        for (uint64_t i = 0; i < nelem; i++)
            assert_int_equal(total[i], 1);
        free(total);
    }
}

struct one_box {
    uint64_t offset[4], size[4];
    int n;
};

static int keep_box(void *ctx, const uint64_t *offset, const uint64_t *size)
{
    struct one_box *b = ctx;
    memcpy(b->offset, offset, sizeof b->offset[0] * 2);
    memcpy(b->size, size, sizeof b->size[0] * 2);
    return ++b->n == 3 ? 5 : 0;
}

/* Results of torch.chunk for 10 rows on 4 ranks, 9 on 4, 3 on 8. */
static void trailing_ranks_are_short_or_empty(void **state)
{
    (void)state;
    static const struct {
        uint64_t rows;
        uint32_t n;
        uint64_t parts[8];
    } cases[] = { { 10, 4, { 3, 3, 3, 1 } }, { 9, 4, { 3, 3, 3, 0 } }, { 3, 8, { 1, 1, 1, 0, 0, 0, 0, 0 } } };
    for (size_t c = 0; c < 3; c++) {
        struct fsdpck_mesh mesh = { .ndim = 1, .sizes = { cases[c].n } };
        struct fsdpck_placement p = { FSDPCK_SHARD, 0, 0 };
        uint64_t shape[2] = { cases[c].rows, 7 }, at = 0;
        for (uint32_t r = 0; r < cases[c].n; r++) {
            struct one_box b = { .n = 0 };
            assert_int_equal(fsdpck_placement_boxes(&mesh, &p, 2, shape, &r, keep_box, &b), 0);
            assert_int_equal(b.n, cases[c].parts[r] > 0);
            if (b.n) {
                assert_int_equal(b.offset[0], at);
                assert_int_equal(b.size[0], cases[c].parts[r]);
                assert_int_equal(b.size[1], 7);
            }
            at += cases[c].parts[r];
        }
    }
}

/* Mesh (fsdp 2, tp 2), 8 rows: tensor parallelism gives 0-3 and 4-7, FSDP halves each. torch: _StridedShard(0, 2),
 * Shard(0). */
static void fsdp_over_tensor_parallelism(void **state)
{
    (void)state;
    struct fsdpck_mesh mesh = { .ndim = 2, .sizes = { 2, 2 } };
    struct fsdpck_placement p[2] = { { FSDPCK_STRIDED_SHARD, 0, 2 }, { FSDPCK_SHARD, 0, 0 } };
    uint64_t shape[2] = { 8, 3 };
    for (uint32_t fsdp = 0; fsdp < 2; fsdp++)
        for (uint32_t tp = 0; tp < 2; tp++) {
            struct one_box b = { .n = 0 };
            assert_int_equal(fsdpck_placement_boxes(&mesh, p, 2, shape, (uint32_t[]){ fsdp, tp }, keep_box, &b), 0);
            assert_int_equal(b.n, 1);
            assert_int_equal(b.offset[0], tp * 4 + fsdp * 2);
            assert_int_equal(b.size[0], 2);
        }
}

static void refusals_and_early_ends(void **state)
{
    (void)state;
    struct fsdpck_mesh mesh = { .ndim = 1, .sizes = { 2 } };
    struct fsdpck_placement p = { FSDPCK_SHARD, 2, 0 };
    uint64_t shape[2] = { 12, 5 }, huge[2] = { 1ull << 40, 1 }, empty[2] = { 4, 0 };
    uint32_t coord = 1;
    struct one_box b = { .n = 0 };
    assert_int_equal(fsdpck_placement_boxes(&mesh, &p, 2, shape, &coord, keep_box, &b), FSDPCK_ERR_USAGE);
    p = (struct fsdpck_placement){ FSDPCK_STRIDED_SHARD, 0, 6 };
    assert_int_equal(fsdpck_placement_boxes(&mesh, &p, 2, shape, &coord, keep_box, &b), 5);
    assert_int_equal(b.n, 3);
    p.split = UINT32_MAX;
    assert_int_equal(fsdpck_placement_boxes(&mesh, &p, 2, huge, &coord, keep_box, &b), FSDPCK_ERR_LIMIT);
    p.split = 2;
    b.n = 0;
    assert_int_equal(fsdpck_placement_boxes(&mesh, &p, 2, empty, &coord, keep_box, &b), 0);
    assert_int_equal(b.n, 0);
    p.kind = FSDPCK_REPLICATE;
    assert_int_equal(fsdpck_placement_boxes(&mesh, &p, 0, NULL, &coord, keep_box, &b), 0);
    assert_int_equal(b.n, 1);
}

static void ranks_in_any_order(void **state)
{
    (void)state;
    const uint32_t order[6] = { 9, 4, 2, 7, 0, 1 };
    struct fsdpck_mesh mesh = { .ndim = 2, .sizes = { 2, 3 }, .ranks = order };
    uint32_t coord[2];
    assert_int_equal(fsdpck_mesh_nranks(&mesh), 6);
    assert_true(fsdpck_mesh_coordinate(&mesh, 7, coord));
    assert_int_equal(coord[0], 1);
    assert_int_equal(coord[1], 0);
    assert_false(fsdpck_mesh_coordinate(&mesh, 3, coord));
    mesh.ranks = NULL;
    assert_true(fsdpck_mesh_coordinate(&mesh, 5, coord));
    assert_int_equal(coord[0] * 3 + coord[1], 5);
    assert_false(fsdpck_mesh_coordinate(&mesh, 6, coord));
}

/* The formula of FORMAT.md, by hand: (1 * 0x9E3779B1 mod 2^32) >> 16 = 0x9E37 = 40503; 40503 mod 4 = 3. */
static void owner_is_the_documented_one(void **state)
{
    (void)state;
    struct fsdpck_mesh mesh = { .ndim = 2, .sizes = { 4, 2 } };
    struct fsdpck_placement p[2] = { { FSDPCK_REPLICATE, 0, 0 }, { FSDPCK_SHARD, 0, 0 } };
    assert_true(fsdpck_placement_owner(&mesh, p, 1, (uint32_t[]){ 3, 0 }));
    assert_true(fsdpck_placement_owner(&mesh, p, 1, (uint32_t[]){ 0, 1 })); /* the next shard, and the next replica */
    assert_false(fsdpck_placement_owner(&mesh, p, 1, (uint32_t[]){ 1, 0 }));
    assert_true(fsdpck_placement_owner(&mesh, p, 0, (uint32_t[]){ 0, 0 }));
}

static void placements_as_text(void **state)
{
    (void)state;
    static const char *const good[] = { "replicate", "shard(0)", "shard(63)", "strided_shard(0,2)",
                                        "strided_shard(12,65536)" };
    static const char *const bad[] = { "",
                                       "shard",
                                       "shard()",
                                       "shard(64)",
                                       "shard(-1)",
                                       "shard(+1)",
                                       "shard(01)",
                                       "shard( 1)",
                                       "shard(1) ",
                                       "Shard(1)",
                                       "replicated",
                                       "strided_shard(0)",
                                       "shard(0,2)",
                                       "shard(1",
                                       "strided_shard(0,0)",
                                       "strided_shard(0,2",
                                       "shard(4294967296)",
                                       "strided_shard(0,65537)",
                                       "partial(sum)" };
    struct fsdpck_placement p = { FSDPCK_SHARD, 7, 7 };
    char text[64];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(fsdpck_placement_parse(good[i], &p));
        assert_string_equal(fsdpck_placement_format(&p, text, sizeof text), good[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (fsdpck_placement_parse(bad[i], &p))
            fail_msg("'%s' was accepted", bad[i]);
    assert_string_equal(fsdpck_placement_format(&p, text, 5), "stri");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_meshes_cover_everything_once),
        cmocka_unit_test(trailing_ranks_are_short_or_empty),
        cmocka_unit_test(fsdp_over_tensor_parallelism),
        cmocka_unit_test(refusals_and_early_ends),
        cmocka_unit_test(ranks_in_any_order),
        cmocka_unit_test(owner_is_the_documented_one),
        cmocka_unit_test(placements_as_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
