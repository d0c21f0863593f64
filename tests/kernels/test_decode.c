/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix-vector products, and the attention of one token, against fp64. */
#include "harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct part {
    struct matrix w, b, bias, add, y;
    float *s; /* (r) */
    double *want;
};

static struct part part_new(struct rig *rig, int64_t n, int64_t k, int64_t r, enum kern_dtype out)
{
    struct part p = { matrix_random(rig, n, k, rig->dtype, 1),
                      matrix_random(rig, n, r, rig->dtype, 1),
                      matrix_random(rig, 1, n, rig->dtype, 1),
                      matrix_random(rig, 1, n, rig->dtype, 1),
                      matrix_new(1, n, out),
                      float_zeros(r),
                      zeros(n) };
    for (int64_t l = 0; l < r; l++)
        p.s[l] = (float)rig_uniform(rig);
    return p;
}

static void part_free(struct part *p)
{
    matrix_free(&p->w);
    matrix_free(&p->b);
    matrix_free(&p->bias);
    matrix_free(&p->add);
    matrix_free(&p->y);
    must_free(p->want);
    must_free(p->s);
}

/* rest: with bias, `add` and a low-rank part. */
static struct kern_gemv_part describe(struct part *p, const struct matrix *x, int64_t r, float alpha, bool rest)
{
    struct kern_gemv_part g = { .n = p->w.nrow, .w = cview(&p->w), .alpha = alpha, .y = view(&p->y) };
    for (int64_t i = 0; i < g.n; i++) {
        double sum = 0, low = 0;
        for (int64_t l = 0; l < p->w.ncol; l++)
            sum += at(&p->w, i, l) * at(x, 0, l);
        for (int64_t l = 0; l < r; l++)
            low += at(&p->b, i, l) * (double)p->s[l];
        p->want[i] = (double)alpha * sum + (rest ? low + at(&p->bias, 0, i) + at(&p->add, 0, i) : 0);
    }
    if (rest) {
        g.r = r;
        g.s = p->s;
        g.b = cview(&p->b);
        g.bias = cview(&p->bias);
        g.add = cview(&p->add);
    }
    return g;
}

static void gemv_one(struct rig *rig, int64_t k, enum kern_dtype of_x, const int64_t n[3], int64_t r)
{
    struct matrix x = matrix_random(rig, 1, k, of_x, 1);
    struct part parts[3];
    struct kern_gemv_part described[3];
    for (int i = 0; i < 3; i++) {
        parts[i] = part_new(rig, n[i], k, r, i == 1 ? KERN_F32 : rig->dtype);
        described[i] = describe(&parts[i], &x, r, i == 2 ? 0.5f : 1.0f, i != 1);
    }
    struct kern_gemv g = { .k = k, .x = cview(&x), .parts = described, .nparts = 3 };
    rig->ops->gemv(rig->stream, &g);
    for (int i = 0; i < 3; i++) {
        check_matrix(rig, &parts[i].y, parts[i].want, 2e-5, "gemv");
        part_free(&parts[i]);
    }
    matrix_free(&x);
}

/* Products of the same weight with several vectors, each with a low-rank part of its own rank. */
static void gemv_several(struct rig *rig, int64_t k, int64_t n)
{
    enum { VECTORS = 4 };
    struct matrix x[VECTORS];
    struct part parts[VECTORS];
    struct kern_gemv_part described[VECTORS];
    struct kern_gemv g[VECTORS];
    for (int i = 0; i < VECTORS; i++) {
        x[i] = matrix_random(rig, 1, k, rig->dtype, 1);
        parts[i] = part_new(rig, n, k, i, KERN_F32);
        if (i) {
            matrix_free(&parts[i].w);
            parts[i].w = parts[0].w;
        }
        described[i] = describe(&parts[i], &x[i], i, 1, true);
        g[i] = (struct kern_gemv){ .k = k, .x = cview(&x[i]), .parts = &described[i], .nparts = 1 };
    }
    g[0].also = g + 1;
    g[0].nalso = VECTORS - 1;
    rig->ops->gemv(rig->stream, &g[0]);
    for (int i = 0; i < VECTORS; i++)
        check_matrix(rig, &parts[i].y, parts[i].want, 2e-5, "gemv of several");
    for (int i = 0; i < VECTORS; i++) {
        if (i)
            parts[i].w = (struct matrix){ 0 };
        part_free(&parts[i]);
        matrix_free(&x[i]);
    }
}

static void gemv(struct rig *rig)
{
    static const int64_t n[][3] = { { 1, 1, 1 }, { 0, 3, 70 }, { 130, 7, 65 }, { 700, 40, 3 } };
    static const int64_t k[] = {
        1, 7, 33, 64, 100, 577, 2500, 2184
    }; /* the last: rows of whole groups of eight, more than a warp reads at once, with a remainder */
    for (size_t i = 0; i < sizeof(n) / sizeof(n[0]); i++)
        for (size_t j = 0; j < sizeof(k) / sizeof(k[0]); j++)
            gemv_one(rig, k[j], rig->dtype, n[i], (int64_t)(j % 4) * 2);
    gemv_one(rig, 2184, KERN_F32, n[1], 2);
    gemv_several(rig, 100, 130);
    gemv_several(rig, 2500, 9);
}

struct shape {
    int64_t nkeys, nhead, nkv, head_dim;
};

static void attention_reference(const struct shape *s, const struct matrix *q, const struct matrix *k,
                                const struct matrix *v, const struct matrix *sinks, double scale, double *want)
{
    double *p = zeros(s->nkeys);
    for (int64_t h = 0; h < s->nhead; h++) {
        int64_t kv = h / (s->nhead / s->nkv) * s->head_dim;
        double top = sinks ? at(sinks, 0, h) : -INFINITY, sum;
        const double sink = top;
        for (int64_t i = 0; i < s->nkeys; i++) {
            p[i] = 0;
            for (int64_t j = 0; j < s->head_dim; j++)
                p[i] += scale * at(q, 0, h * s->head_dim + j) * at(k, i, kv + j);
            top = p[i] > top ? p[i] : top;
        }
        sum = exp(sink - top);
        for (int64_t i = 0; i < s->nkeys; i++)
            sum += p[i] = exp(p[i] - top);
        for (int64_t j = 0; j < s->head_dim; j++)
            for (int64_t i = 0; i < s->nkeys; i++)
                want[h * s->head_dim + j] += p[i] / sum * at(v, i, kv + j);
    }
    must_free(p);
}

/* Rows first … first + m->nrow - 1 of pages with nrow rows each. Page i is the i-th from the end, so that the order in
 * memory is another one. */
static void put_pages(const struct matrix *m, int64_t nrow, int64_t first, void *const *list, size_t at)
{
    const size_t row = (size_t)(m->ncol * kern_dtype_bytes(m->dtype));
    for (int64_t i = 0; i < m->nrow; i++)
        memcpy((char *)list[(first + i) / nrow] + at + (size_t)((first + i) % nrow) * row,
               (const char *)m->data + i * m->pitch * kern_dtype_bytes(m->dtype), row);
}

/* The same keys in pages give the same bits. */
static void attention_pages(struct rig *rig, struct kern_attention_one a, const struct matrix *k,
                            const struct matrix *v, const struct matrix *o, int64_t nrow, int64_t first)
{
    enum { PAGES = 2000 };
    const size_t one = (size_t)(nrow * k->ncol * kern_dtype_bytes(k->dtype)),
                 all = (size_t)((first + k->nrow + nrow - 1) / nrow);
    struct matrix other = matrix_new(1, o->ncol, o->dtype);
    void *list[PAGES];
    char *memory = must_alloc(2 * one * all);
    assert_true(all <= PAGES);
    for (size_t i = 0; i < all; i++)
        list[i] = memory + 2 * one * (all - 1 - i);
    put_pages(k, nrow, first, list, one);
    put_pages(v, nrow, first, list, 0);
    a.pages = (struct kern_pages){ .list = list, .nrow = nrow, .first = first, .k_at = one, .v_at = 0 };
    a.k = (struct kern_cmat){ NULL, k->ncol, k->dtype };
    a.v = (struct kern_cmat){ NULL, v->ncol, v->dtype };
    a.o = view(&other);
    rig->ops->attention_one(rig->stream, &a);
    check_stream(rig);
    assert_memory_equal(other.data, o->data, (size_t)(o->ncol * kern_dtype_bytes(o->dtype)));
    matrix_free(&other);
    must_free(memory);
}

static void attention_shape(struct rig *rig, struct shape s, enum kern_dtype of_o, bool in_place, bool with_sinks)
{
    struct matrix q = matrix_random(rig, 1, s.nhead * s.head_dim, rig->dtype, 3),
                  o = in_place ? q : matrix_new(1, s.nhead * s.head_dim, of_o);
    struct matrix k = matrix_random(rig, s.nkeys, s.nkv * s.head_dim, rig->dtype, 3),
                  v = matrix_random(rig, s.nkeys, s.nkv * s.head_dim, rig->dtype, 1),
                  sinks = matrix_random(rig, 1, s.nhead, rig->dtype, 8);
    double *want = zeros(s.nhead * s.head_dim);
    const float scale = (float)(1 / sqrt((double)s.head_dim));
    attention_reference(&s, &q, &k, &v, with_sinks ? &sinks : NULL, (double)scale, want);
    struct kern_attention_one a = { .nkeys = s.nkeys,
                                    .nhead = s.nhead,
                                    .nkv = s.nkv,
                                    .head_dim = s.head_dim,
                                    .scale = scale,
                                    .q = cview(&q),
                                    .k = cview(&k),
                                    .v = cview(&v),
                                    .o = view(&o) };
    if (with_sinks)
        a.sinks = cview(&sinks);
    rig->ops->attention_one(rig->stream, &a);
    check_matrix(rig, &o, want, 1e-5, "o");
    if (strcmp(rig->device->name, "cpu") == 0 && !in_place) {
        attention_pages(rig, a, &k, &v, &o, 16, 0);
        attention_pages(rig, a, &k, &v, &o, 7, 5);
    }
    must_free(want);
    if (!in_place)
        matrix_free(&o);
    matrix_free(&q);
    matrix_free(&k);
    matrix_free(&v);
    matrix_free(&sinks);
}

static void attention(struct rig *rig)
{
    static const struct shape shapes[] = { { 1, 1, 1, 2 },     { 7, 2, 1, 10 },    { 33, 6, 2, 64 },
                                           { 700, 4, 4, 22 },  { 300, 9, 3, 80 },  { 1, 2, 2, 128 },
                                           { 257, 4, 2, 128 }, { 1025, 2, 1, 64 }, { 600, 3, 3, 96 },
                                           { 513, 2, 1, 256 }, { 256, 1, 1, 200 } };
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        attention_shape(rig, shapes[i], KERN_F32, false, i % 2);
        attention_shape(rig, shapes[i], rig->dtype, false, true);
        attention_shape(rig, shapes[i], rig->dtype, true, false);
    }
}

/* Invalid arguments are refused, with a message in the stream. */
static void refused(struct rig *rig)
{
    char message[KERN_MESSAGE_BYTES];
    struct kern_attention_one none = { .nkeys = 0, .nhead = 1, .nkv = 1, .head_dim = 2, .scale = 1 };
    rig->ops->attention_one(rig->stream, &none);
    assert_int_equal(rig->device->stream_sync(rig->stream, message), KERN_ERR_ARG);
    struct kern_attention_one rowless = none;
    rowless.nkeys = 1;
    rowless.pages.list = (void *const[]){ &rowless };
    rig->ops->attention_one(rig->stream, &rowless);
    assert_int_equal(rig->device->stream_sync(rig->stream, message), KERN_ERR_ARG);
    struct kern_gemv negative = { .k = -1 };
    rig->ops->gemv(rig->stream, &negative);
    assert_int_equal(rig->device->stream_sync(rig->stream, message), KERN_ERR_ARG);
}

static void run_gemv(void **state)
{
    (void)state;
    rig_run_all(gemv);
}

static void run_attention(void **state)
{
    (void)state;
    rig_run_all(attention);
}

static void run_refused(void **state)
{
    (void)state;
    rig_run_all(refused);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(run_gemv), cmocka_unit_test(run_attention),
                                        cmocka_unit_test(run_refused) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
