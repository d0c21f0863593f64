/* SPDX-License-Identifier: Apache-2.0 */
/* Attention and its gradients against a plain fp64 reference that stores T×T. The reference's gradients are checked
 * against finite differences. Documents must not see each other. */
#include "harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct job {
    struct kern_attention_shape s;
    const char *what;
};

static const int64_t one[] = { 0, 5 }, packed[] = { 0, 1, 70, 70, 203, 300 }, whole[] = { 0, 200 },
                     short_one[] = { 0, 90 }, long_one[] = { 0, 300 }, two[] = { 0, 129, 260 }, tail[] = { 0, 65, 130 };
/* A shape without a table. */
#define SHAPE(ntok, nhead, nkv, head_dim, docs, ndoc, window, scale) \
    { \
        ntok, nhead, nkv, head_dim, docs, ndoc, window, scale, { NULL, 0 }, { NULL, 0, KERN_F32 }, false, 0 \
    }
static const struct job jobs[] = {
    { SHAPE(5, 1, 1, 1, one, 1, 0, 1), "one head of one feature" },
    { SHAPE(300, 4, 2, 20, packed, 5, 0, 0.3f), "packed documents, one empty, grouped heads" },
    { SHAPE(200, 2, 1, 64, whole, 1, 65, 0.125f), "a window across blocks" },
    { SHAPE(260, 3, 3, 34, two, 2, 1, 0.2f), "a window of one" },
    { SHAPE(90, 5, 1, 130, short_one, 1, 70, 0.1f), "wide heads, two stacks" },
    { SHAPE(90, 2, 1, 96, short_one, 1, 0, 0.1f), "heads of 96" },
    { SHAPE(130, 1, 1, 128, tail, 2, 0, 0.09f), "heads of 128, documents of one token more than a block" },
    { SHAPE(130, 1, 1, 72, tail, 2, 0, 0.1f), "heads of 72" },
    /* 66: the last query that sees a block of keys is alone in its block; the others: the last query of a block just
       misses the first key of another */
    { SHAPE(300, 1, 1, 64, long_one, 1, 66, 0.1f), "a window of 66" },
    { SHAPE(300, 1, 1, 64, long_one, 1, 127, 0.1f), "a window of 127" },
    { SHAPE(300, 1, 1, 64, long_one, 1, 191, 0.1f), "a window of 191" },
    { SHAPE(300, 1, 1, 64, long_one, 1, 255, 0.1f), "a window of 255" },
};
enum { NJOB = sizeof(jobs) / sizeof(jobs[0]) };

/* q, k, v, o, d_o, and in fp64 the inputs without gaps and the expected results. */
struct bench {
    struct kern_attention_shape s;
    struct matrix q, k, v, o, d_o, dq, dk, dv, sinks;
    double *q64, *k64, *v64, *d_o64;
    double *o_ref, *lse_ref, *dq_ref, *dk_ref, *dv_ref, *dsinks_ref;
    float *dsinks; /* gradients are added to it */
};

ONE_THREAD static bool sees(const struct kern_attention_shape *s, int64_t doc, int64_t i, int64_t j)
{
    const int64_t first = s->cu_seqlens[doc];
    return j >= first && (s->full || j <= i) && (s->window == 0 || j > i - s->window) &&
           (s->nkeys == 0 || j < first + s->nkeys);
}

/* The last key that the query may see. */
ONE_THREAD static int64_t last_of(const struct kern_attention_shape *s, int64_t doc, int64_t i)
{
    return s->full ? s->cu_seqlens[doc + 1] - 1 : i;
}

/* The inputs as the reference reads them: an access of a matrix per product would be most of this test's time. */
ONE_THREAD static void widen(const struct matrix *m, double *to)
{
    for (int64_t i = 0; i < m->nrow; i++)
        for (int64_t j = 0; j < m->ncol; j++)
            to[i * m->ncol + j] = at(m, i, j);
}

static void widen_inputs(struct bench *b)
{
    widen(&b->q, b->q64), widen(&b->k, b->k64), widen(&b->v, b->v64), widen(&b->d_o, b->d_o64);
}

ONE_THREAD static double dot(const double *x, const double *y, int64_t n)
{
    double sum = 0;
    for (int64_t c = 0; c < n; c++)
        sum += x[c] * y[c];
    return sum;
}

ONE_THREAD static void add(double *to, double factor, const double *x, int64_t n)
{
    for (int64_t c = 0; c < n; c++)
        to[c] += factor * x[c];
}

/* One query: its weights in p, output and lse. */
ONE_THREAD static void row_forward(struct bench *b, int64_t doc, int64_t i, int64_t h, double *p)
{
    const int64_t d = b->s.head_dim, kv = h / (b->s.nhead / b->s.nkv), first = b->s.cu_seqlens[doc],
                  last = last_of(&b->s, doc, i);
    const int64_t at_q = (i * b->s.nhead + h) * d;
    double top = b->s.sinks.data ? at(&b->sinks, 0, h) : -INFINITY, sum = 0;
    const double sink = top;
    for (int64_t j = first; j <= last; j++)
        if (sees(&b->s, doc, i, j))
            top = fmax(top, p[j] = (double)b->s.scale * dot(&b->q64[at_q], &b->k64[(j * b->s.nkv + kv) * d], d));
    sum = exp(sink - top);
    for (int64_t j = first; j <= last; j++)
        sum += p[j] = sees(&b->s, doc, i, j) ? exp(p[j] - top) : 0;
    for (int64_t j = first; j <= last; j++) {
        p[j] /= sum;
        add(&b->o_ref[at_q], p[j], &b->v64[(j * b->s.nkv + kv) * d], d);
    }
    b->lse_ref[h * b->s.ntok + i] = top + log(sum);
}

ONE_THREAD static void row_backward(struct bench *b, int64_t doc, int64_t i, int64_t h, const double *p)
{
    const int64_t d = b->s.head_dim, kv = h / (b->s.nhead / b->s.nkv), at_q = (i * b->s.nhead + h) * d;
    const double *d_o = &b->d_o64[at_q], delta = dot(d_o, &b->o_ref[at_q], d);
    if (b->s.sinks.data)
        b->dsinks_ref[h] -= exp(at(&b->sinks, 0, h) - b->lse_ref[h * b->s.ntok + i]) * delta;
    for (int64_t j = b->s.cu_seqlens[doc]; j <= last_of(&b->s, doc, i); j++) {
        const int64_t at_kv = (j * b->s.nkv + kv) * d;
        const double ds = p[j] * (dot(d_o, &b->v64[at_kv], d) - delta) * (double)b->s.scale;
        add(&b->dv_ref[at_kv], p[j], d_o, d);
        add(&b->dk_ref[at_kv], ds, &b->q64[at_q], d);
        add(&b->dq_ref[at_q], ds, &b->k64[at_kv], d);
    }
}

static void reference(struct bench *b)
{
    double *p = zeros(b->s.ntok);
    widen_inputs(b);
    for (int64_t doc = 0; doc < b->s.ndoc; doc++)
        for (int64_t i = b->s.cu_seqlens[doc]; i < b->s.cu_seqlens[doc + 1]; i++)
            for (int64_t h = 0; h < b->s.nhead; h++) {
                row_forward(b, doc, i, h, p);
                row_backward(b, doc, i, h, p);
            }
    must_free(p);
}

static struct bench bench_new(struct rig *rig, const struct kern_attention_shape *s, bool with_sinks)
{
    const int64_t nq = s->nhead * s->head_dim, nkv = s->nkv * s->head_dim;
    struct bench b = { .s = *s,
                       .sinks = matrix_random(rig, 1, s->nhead, rig->dtype, 3),
                       .dsinks = float_zeros(s->nhead),
                       .dsinks_ref = zeros(s->nhead),
                       .q = matrix_random(rig, s->ntok, nq, rig->dtype, 2),
                       .k = matrix_random(rig, s->ntok, nkv, rig->dtype, 2),
                       .v = matrix_random(rig, s->ntok, nkv, rig->dtype, 1),
                       .o = matrix_new(s->ntok, nq, rig->dtype),
                       .d_o = matrix_random(rig, s->ntok, nq, rig->dtype, 1),
                       .dq = matrix_new(s->ntok, nq, rig->dtype),
                       .dk = matrix_new(s->ntok, nkv, rig->dtype),
                       .dv = matrix_new(s->ntok, nkv, rig->dtype),
                       .q64 = zeros(s->ntok * nq),
                       .k64 = zeros(s->ntok * nkv),
                       .v64 = zeros(s->ntok * nkv),
                       .d_o64 = zeros(s->ntok * nq),
                       .o_ref = zeros(s->ntok * nq),
                       .lse_ref = zeros(s->nhead * s->ntok),
                       .dq_ref = zeros(s->ntok * nq),
                       .dk_ref = zeros(s->ntok * nkv),
                       .dv_ref = zeros(s->ntok * nkv) };
    if (with_sinks)
        b.s.sinks = cview(&b.sinks);
    return b;
}

static void bench_free(struct bench *b)
{
    struct matrix *all[] = { &b->q, &b->k, &b->v, &b->o, &b->d_o, &b->dq, &b->dk, &b->dv, &b->sinks };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        matrix_free(all[i]);
    must_free(b->q64), must_free(b->k64), must_free(b->v64), must_free(b->d_o64);
    must_free(b->o_ref), must_free(b->lse_ref), must_free(b->dq_ref), must_free(b->dk_ref), must_free(b->dv_ref);
    must_free(b->dsinks), must_free(b->dsinks_ref);
}

enum { GUARD = 4096 };

/* Memory for the maximum of tokens and documents suffices for fewer: the guard behind it is unchanged. */
static void check_guard(const unsigned char *behind, const char *what, const struct kern_attention_shape *s,
                        const struct kern_attention_shape *most)
{
    for (int i = 0; i < GUARD; i++)
        if (behind[i] != 0x5a)
            fail_msg("%s: %lld tokens in %lld documents write beyond the memory of %lld in %lld", what,
                     (long long)s->ntok, (long long)s->ndoc, (long long)most->ntok, (long long)most->ndoc);
}

/* Makes the table of b's documents in memory of the caller, with room for the tokens and documents of `most`. GUARD
 * bytes behind it must stay unchanged. */
static void make_table(struct rig *rig, struct bench *b, const struct kern_attention_shape *most)
{
    const size_t nbytes = rig->ops->attention_table_bytes(rig->stream, most);
    unsigned char *table = must_alloc(nbytes + GUARD);
    memset(table + nbytes, 0x5a, GUARD);
    b->s.table.data = table;
    rig->ops->attention_table(rig->stream, &b->s);
    check_stream(rig);
    check_guard(table + nbytes, "table", &b->s, most);
}

static void run_forward(struct rig *rig, struct bench *b, float *lse)
{
    make_table(rig, b, &b->s);
    struct kern_attention a = { b->s,
                                cview(&b->q),
                                cview(&b->k),
                                cview(&b->v),
                                view(&b->o),
                                lse,
                                must_alloc(rig->ops->attention_scratch(rig->stream, &b->s)) };
    rig->ops->attention(rig->stream, &a);
    must_free(a.scratch);
    must_free(b->s.table.data);
}

static void run_backward(struct rig *rig, struct bench *b, const float *lse, struct matrix *dq,
                         const struct matrix *d_o)
{
    make_table(rig, b, &b->s);
    struct kern_attention_grad g = { b->s,
                                     cview(&b->q),
                                     cview(&b->k),
                                     cview(&b->v),
                                     cview(&b->o),
                                     cview(d_o),
                                     lse,
                                     view(dq),
                                     view(&b->dk),
                                     view(&b->dv),
                                     must_alloc(rig->ops->attention_grad_scratch(rig->stream, &b->s)),
                                     b->s.sinks.data ? b->dsinks : NULL };
    rig->ops->attention_grad(rig->stream, &g);
    must_free(g.scratch);
    must_free(b->s.table.data);
}

static void check_sinks(struct rig *rig, struct bench *b, double tolerance, const char *what)
{
    for (int64_t h = 0; h < b->s.nhead && b->s.sinks.data; h++)
        b->dsinks_ref[h] += 1;
    check_floats(rig, b->dsinks, b->s.nhead, b->dsinks_ref, tolerance, what);
}

static void one_job(struct rig *rig, const struct job *job, bool with_sinks)
{
    struct bench b = bench_new(rig, &job->s, with_sinks);
    for (int64_t h = 0; h < b.s.nhead && with_sinks; h++)
        b.dsinks[h] = 1;
    float *lse = float_zeros(b.s.nhead * b.s.ntok);
    reference(&b);
    run_forward(rig, &b, lse);
    /* bf16: weights are rounded before they are multiplied, and the gradient uses the rounded o. */
    const double tolerance = rig->dtype == KERN_BF16 ? 1e-2 : 1e-5;
    check_matrix(rig, &b.o, b.o_ref, rig->dtype == KERN_BF16 ? 2e-3 : 2e-6, job->what);
    check_floats(rig, lse, b.s.nhead * b.s.ntok, b.lse_ref, 1e-6, job->what);
    run_backward(rig, &b, lse, &b.dq, &b.d_o);
    check_matrix(rig, &b.dq, b.dq_ref, tolerance, job->what);
    check_matrix(rig, &b.dk, b.dk_ref, tolerance, job->what);
    check_matrix(rig, &b.dv, b.dv_ref, tolerance, job->what);
    check_sinks(rig, &b, tolerance, job->what);
    struct matrix over = matrix_copy(&b.d_o);
    run_backward(rig, &b, lse, &over, &over);
    check_matrix(rig, &over, b.dq_ref, tolerance, "dq over d_o");
    matrix_free(&over);
    bench_free(&b);
    must_free(lse);
}

static void against_reference(struct rig *rig)
{
    for (int i = 0; i < NJOB; i++) {
        if (!rig->slow || i % 2)
            one_job(rig, &jobs[i], false);
        if (!rig->slow || i % 2 == 0)
            one_job(rig, &jobs[i], true);
    }
}

/* Documents that are seen whole, and padding that is not. */
static void not_causal(struct rig *rig)
{
    static const struct {
        bool full;
        int64_t nkeys;
    } forms[] = { { false, 64 }, { true, 70 }, { true, 0 }, { true, 40 }, { false, 2 }, { true, 200 } };
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++)
        for (int j = 0; j < 3; j++) {
            const struct kern_attention_shape shapes[] = { SHAPE(300, 4, 2, 20, packed, 5, 0, 0.3f),
                                                           SHAPE(200, 1, 1, 260, whole, 1, 0, 0.05f),
                                                           SHAPE(130, 2, 2, 64, tail, 2, 0, 0.1f) };
            struct job job = { shapes[j], "not causal" };
            job.s.full = forms[i].full;
            job.s.nkeys = forms[i].nkeys;
            if (!rig->slow || (size_t)j == i % 3)
                one_job(rig, &job, false);
        }
}

/* Gradients from a single query, one of many that see a key: the last query that sees keys of a block, and the first of
 * its own block. */
static void one_query(struct rig *rig)
{
    static const int64_t queries[] = { 128, 192 };
    for (int q = 0; q < 2; q++) {
        const struct kern_attention_shape s = SHAPE(300, 1, 1, 64, long_one, 1, 66, 0.1f);
        struct bench b = bench_new(rig, &s, q > 0);
        float *lse = float_zeros(s.ntok);
        for (int64_t i = 0; i < s.ntok; i++)
            for (int64_t j = 0; j < b.d_o.ncol && i != queries[q]; j++)
                put(&b.d_o, i, j, 0);
        reference(&b);
        run_forward(rig, &b, lse);
        run_backward(rig, &b, lse, &b.dq, &b.d_o);
        const double tolerance = rig->dtype == KERN_BF16 ? 1e-2 : 1e-5;
        check_matrix(rig, &b.dq, b.dq_ref, tolerance, "dq of one query");
        check_matrix(rig, &b.dk, b.dk_ref, tolerance, "dk of one query");
        check_matrix(rig, &b.dv, b.dv_ref, tolerance, "dv of one query");
        bench_free(&b);
        must_free(lse);
    }
}

static int64_t below(struct rig *rig, int64_t n)
{
    return (int64_t)((rig_uniform(rig) + 1) / 2 * 0.999999 * (double)n);
}

/* Random heads, features, documents and windows: blocks of 64 and 128 rows, whole and partial, several of them partly
 * masked. */
static void any_shape(struct rig *rig)
{
    static const int64_t dims[] = { 64, 96, 128 };
    for (int i = 0; i < (rig->slow ? 4 : 8); i++) {
        int64_t docs[5] = { 0 };
        struct kern_attention_shape s = {
            .nkv = 1 + below(rig, 2), .cu_seqlens = docs, .ndoc = 1 + below(rig, 4), .window = i % 2 * below(rig, 300)
        };
        s.nhead = s.nkv * (1 + below(rig, 3));
        s.head_dim = i % 4 < 3 ? dims[i % 4] : 1 + below(rig, 140);
        s.scale = (float)(1 / sqrt((double)s.head_dim));
        for (int64_t d = 0; d < s.ndoc; d++)
            docs[d + 1] = docs[d] + below(rig, 420 / s.ndoc);
        s.ntok = docs[s.ndoc];
        char what[120];
        snprintf(what, sizeof(what), "shape %d: %lld tokens, %lld documents, %lld heads of %lld, window %lld", i,
                 (long long)s.ntok, (long long)s.ndoc, (long long)s.nhead, (long long)s.head_dim, (long long)s.window);
        const struct job job = { s, what };
        if (s.ntok)
            one_job(rig, &job, i % 3 == 0);
    }
}

/* Other contents of one document leave the bits of all others unchanged. */
static void documents(struct rig *rig)
{
    const struct kern_attention_shape *s = &jobs[1].s;
    struct bench b = bench_new(rig, s, true);
    float *lse = float_zeros(s->nhead * s->ntok);
    run_forward(rig, &b, lse);
    run_backward(rig, &b, lse, &b.dq, &b.d_o);
    struct matrix before[] = { matrix_copy(&b.o), matrix_copy(&b.dq), matrix_copy(&b.dk), matrix_copy(&b.dv) };
    for (int64_t i = 70; i < 203; i++) {
        for (int64_t j = 0; j < b.q.ncol; j++)
            put(&b.q, i, j, rig_uniform(rig) * 9);
        for (int64_t j = 0; j < b.k.ncol; j++) {
            put(&b.k, i, j, INFINITY);
            put(&b.v, i, j, NAN);
        }
    }
    run_forward(rig, &b, lse);
    run_backward(rig, &b, lse, &b.dq, &b.d_o);
    const struct matrix *after[] = { &b.o, &b.dq, &b.dk, &b.dv };
    for (size_t m = 0; m < 4; m++) {
        for (int64_t i = 0; i < s->ntok; i++)
            for (int64_t j = 0; j < before[m].ncol && (i < 70 || i >= 203); j++)
                if (memcmp(&(double){ at(after[m], i, j) }, &(double){ at(&before[m], i, j) }, sizeof(double)) != 0)
                    fail_msg("matrix %zu, token %lld changed with another document", m, (long long)i);
        matrix_free(&before[m]);
    }
    assert_true(isnan(at(&b.o, 100, 0))); /* a NaN must not be lost */
    bench_free(&b);
    must_free(lse);
}

static void run_in(struct rig *rig, struct bench *b, const struct kern_attention_shape *most)
{
    const size_t sizes[] = { rig->ops->attention_scratch(rig->stream, most),
                             rig->ops->attention_grad_scratch(rig->stream, most) };
    float *lse = float_zeros(b->s.nhead * b->s.ntok);
    make_table(rig, b, most);
    for (int i = 0; i < 2; i++) {
        unsigned char *scratch = must_alloc(sizes[i] + GUARD);
        memset(scratch + sizes[i], 0x5a, GUARD);
        struct kern_attention a = { b->s, cview(&b->q), cview(&b->k), cview(&b->v), view(&b->o), lse, scratch };
        struct kern_attention_grad g = {
            b->s, cview(&b->q), cview(&b->k), cview(&b->v), cview(&b->o), cview(&b->d_o),
            lse,  view(&b->dq), view(&b->dk), view(&b->dv), scratch,      b->s.sinks.data ? b->dsinks : NULL
        };
        if (i)
            rig->ops->attention_grad(rig->stream, &g);
        else
            rig->ops->attention(rig->stream, &a);
        check_stream(rig);
        check_guard(scratch + sizes[i], i ? "backward" : "forward", &b->s, most);
        must_free(scratch);
    }
    must_free(b->s.table.data);
    must_free(lse);
}

static void scratch_of_more(struct rig *rig)
{
    for (int i = 0; i < 40; i += rig->slow ? 7 : 1) {
        int64_t docs[24] = { 0 }, nkv = 1 + i % 3, ndoc = 1 + i % 13;
        struct kern_attention_shape s = { .nhead = nkv * (1 + i % 2 * 5),
                                          .nkv = nkv,
                                          .head_dim = 6,
                                          .cu_seqlens = docs,
                                          .ndoc = ndoc,
                                          .scale = 0.4f },
                                    most = s;
        for (int64_t d = 0; d < ndoc; d++)
            docs[d + 1] = docs[d] + 1 + (int64_t)((rig_uniform(rig) + 1) * (i % 4 ? 7 : 70));
        s.ntok = docs[ndoc];
        most.ndoc = ndoc + i % 5 * 2;
        most.ntok = s.ntok + i % 7 * 9;
        struct bench b = bench_new(rig, &s, i % 2);
        run_in(rig, &b, &most);
        bench_free(&b);
    }
}

/* Σ o · d_o of the reference; its finite differences check the reference's gradients. */
static double objective(struct bench *b)
{
    double sum = 0, *p = zeros(b->s.ntok);
    widen_inputs(b);
    memset(b->o_ref, 0, (size_t)(b->s.ntok * b->q.ncol) * sizeof(double));
    for (int64_t doc = 0; doc < b->s.ndoc; doc++)
        for (int64_t i = b->s.cu_seqlens[doc]; i < b->s.cu_seqlens[doc + 1]; i++)
            for (int64_t h = 0; h < b->s.nhead; h++)
                row_forward(b, doc, i, h, p);
    for (int64_t i = 0; i < b->s.ntok * b->q.ncol; i++)
        sum += b->o_ref[i] * b->d_o64[i];
    must_free(p);
    return sum;
}

static void check_difference(struct bench *b, struct matrix *m, const double *grad, int64_t row, int64_t col)
{
    const double value = at(m, row, col), step = 0x1p-10;
    put(m, row, col, value + step);
    const double up = at(m, row, col), high = objective(b);
    put(m, row, col, value - step);
    const double down = at(m, row, col), low = objective(b);
    put(m, row, col, value);
    const double slope = (high - low) / (up - down);
    if (fabs(slope - grad[row * m->ncol + col]) > 1e-4)
        fail_msg("[%lld][%lld]: slope %.8f, gradient %.8f", (long long)row, (long long)col, slope,
                 grad[row * m->ncol + col]);
}

static void test_differences(void **state)
{
    (void)state;
    static const int64_t docs[] = { 0, 9, 20 };
    const struct kern_attention_shape s = SHAPE(20, 2, 1, 6, docs, 2, 5, 0.4f);
    struct rig rig = { .dtype = KERN_F32, .random = 3 };
    struct bench b = bench_new(&rig, &s, true);
    reference(&b);
    for (int64_t h = 0; h < s.nhead; h++)
        check_difference(&b, &b.sinks, b.dsinks_ref, 0, h);
    for (int64_t row = 0; row < s.ntok; row += 3) {
        check_difference(&b, &b.q, b.dq_ref, row, row % b.q.ncol);
        check_difference(&b, &b.k, b.dk_ref, row, row % b.k.ncol);
        check_difference(&b, &b.v, b.dv_ref, row, row % b.v.ncol);
    }
    bench_free(&b);
}

static void test_reference(void **state)
{
    (void)state;
    rig_run_all(against_reference);
}

static void test_not_causal(void **state)
{
    (void)state;
    rig_run_all(not_causal);
}

static void test_one_query(void **state)
{
    (void)state;
    rig_run_all(one_query);
}

static void test_any_shape(void **state)
{
    (void)state;
    rig_run_all(any_shape);
}

static void test_documents(void **state)
{
    (void)state;
    rig_run_all(documents);
}

static void test_scratch(void **state)
{
    (void)state;
    rig_run_all(scratch_of_more);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_differences), cmocka_unit_test(test_reference),
                                        cmocka_unit_test(test_not_causal),  cmocka_unit_test(test_one_query),
                                        cmocka_unit_test(test_any_shape),   cmocka_unit_test(test_documents),
                                        cmocka_unit_test(test_scratch) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
