/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of whole models through the C API, against central differences of the fp64 reference. Models are small and
 * random, of every family, with and without adapters, with biases, windows, packed documents, tied heads, dropout and
 * every kind of rotary positions. Each tensor is varied along a random direction, to which every element contributes,
 * and at the elements with the largest gradients. */
#include "trial.h"

#include "../support/sanitized.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EVERY = UNDER_TSAN ? 11 : UNDER_ASAN ? 9 : 1, TOPS = 3 };

/* Fixes DoRA's norms at the point of the gradient. */
static void fix_norms(struct trial *t)
{
    static const char before[] = "base_model.model.", after[] = ".lora_magnitude_vector";
    const size_t n = t->ref.ntensors;
    for (size_t i = 0; i < n; i++) {
        char path[200], name[210];
        const char *end = strstr(t->ref.tensors[i].name, after);
        if (!end)
            continue;
        snprintf(path, sizeof path, "%.*s", (int)(end - t->ref.tensors[i].name - (ptrdiff_t)strlen(before)),
                 t->ref.tensors[i].name + strlen(before));
        snprintf(name, sizeof name, "norms.%s", path);
        trial_add_tensor(t, name, t->ref.tensors[i].nrow, 1, 0, 0);
        reference_norms(&t->ref, path, t->ref.tensors[t->ref.ntensors - 1].data);
    }
}

/* Adapters are as the session made them, except the half that starts as zeros; the reference gets the same numbers. */
static void share_adapters(struct trial *t)
{
    for (size_t i = 0; i < train_session_ntrained(t->session) && t->lora; i++) {
        const char *name;
        float *values, *gradients;
        int64_t n;
        struct fsdpck_error err = { 0 };
        trial_must(train_session_param(t->session, i, &name, &values, &gradients, &n, &err), &err);
        for (int64_t j = 0; j < n; j++)
            values[j] = values[j] == 0 ? (float)(0.3 * trial_uniform(t)) : values[j];
        const bool b = strstr(name, "lora_B") || strstr(name, "embedding_B");
        const int64_t r = strstr(name, "k_proj") ? 5 : 3, nrow = strstr(name, "magnitude") ? n : b ? n / r : r;
        trial_add_tensor(t, name, nrow, n / nrow, 0, 0);
        for (int64_t j = 0; j < n; j++)
            t->ref.tensors[t->ref.ntensors - 1].data[j] = (double)values[j];
    }
    fix_norms(t);
}

/* How unevenly the tokens [first, end) of the step are spread over the experts, in all layers that have some. */
static double unevenness(const struct trial *t, int64_t first, int64_t end)
{
    const struct reference *m = &t->ref;
    double sum = 0, nrow = 0;
    for (int64_t layer = 0; layer < m->nlayer; layer++)
        nrow += layer == t->first_dense ? 0 : (double)(end - first);
    for (int64_t e = 0; e < m->nexperts; e++) {
        double n = 0;
        for (int64_t layer = 0; layer < m->nlayer; layer++)
            for (int64_t i = first; i < end; i++)
                n += m->chosen[(layer * m->ntokens + i) * m->nexperts + e];
        sum += n / nrow * m->probs[e] / nrow;
    }
    return (double)m->nexperts * sum;
}

static double mean_loss(const struct trial *t)
{
    static const int last_of_micro[] = { 3, 5, 6 }; /* documents, as in write_data() */
    double sum = 0, spread = 0;
    int64_t token0 = 0, first = 0;
    for (int d = 0, micro = 0; d < DOCUMENTS; d++) {
        const struct document *doc = &t->documents[d];
        const struct reference_document one = { doc->ids, doc->labels, doc->ntok, token0 };
        sum += reference_loss(&t->ref, &one);
        token0 += doc->ntok;
        if (d != last_of_micro[micro] || t->ref.nexperts == 0)
            continue;
        spread += t->balance ? unevenness(t, first, token0) / 3 : 0;
        memset(t->ref.probs, 0, (size_t)t->ref.nexperts * sizeof *t->ref.probs);
        first = token0;
        micro++;
    }
    return sum / (double)t->nsupervised + t->balance * spread;
}

/* The loss after moving x by `step` along direction. */
static double loss_at(const struct trial *t, struct reference_tensor *x, const double *direction, double step)
{
    int64_t n = x->nrow * x->ncol;
    double *saved = x->data, *moved = malloc((size_t)n * sizeof *moved);
    for (int64_t i = 0; i < n; i++)
        moved[i] = saved[i] + step * direction[i];
    x->data = moved;
    double loss = mean_loss(t);
    x->data = saved;
    free(moved);
    return loss;
}

static double derivative(const struct trial *t, struct reference_tensor *x, const double *direction)
{
    const double step = t->ref.limit > 0 ? 1e-7 : 2e-5; /* a gate may be that near to its limit */
    return (loss_at(t, x, direction, step) - loss_at(t, x, direction, -step)) / (2 * step);
}

/* Copies of the tensors with every element moved at random by up to half a unit in the last place of fp32. */
static struct reference_tensor *rounded(struct trial *t)
{
    struct reference_tensor *copies = malloc(t->ref.ntensors * sizeof *copies);
    for (size_t i = 0; i < t->ref.ntensors; i++) {
        const struct reference_tensor *from = &t->ref.tensors[i];
        const int64_t n = from->nrow * from->ncol;
        copies[i] = *from;
        copies[i].data = malloc((size_t)n * sizeof *from->data);
        for (int64_t j = 0; j < n; j++)
            copies[i].data[j] = from->data[j] * (1 + trial_uniform(t) * 0x1p-24);
    }
    return copies;
}

/* How far such roundings move the exact derivative `want`. fp32 rounds every activation too: where the model amplifies
 * that (qwen3 normalizes each head, and a head of two elements can lie near zero), no fp32 gradient comes closer. */
static double moved_by_rounding(struct trial *t, const struct reference_tensor *x, const double *direction, double want)
{
    enum { DRAWS = 6 };
    struct reference_tensor *exact = t->ref.tensors;
    double most = 0;
    for (int draw = 0; draw < DRAWS; draw++) {
        t->ref.tensors = rounded(t);
        most = fmax(most, fabs(derivative(t, &t->ref.tensors[x - exact], direction) - want));
        for (size_t i = 0; i < t->ref.ntensors; i++)
            free(t->ref.tensors[i].data);
        free(t->ref.tensors);
        t->ref.tensors = exact;
    }
    return most;
}

static void compare(struct trial *t, struct reference_tensor *x, const double *direction, const float *gradient,
                    double allowed, const char *what)
{
    double got = 0, want = derivative(t, x, direction);
    for (int64_t i = 0; i < x->nrow * x->ncol; i++)
        got += (double)gradient[i] * direction[i];
    if (!(fabs(got - want) <= allowed))
        allowed += 8 * moved_by_rounding(t, x, direction, want);
    if (!(fabs(got - want) <= allowed))
        fail_msg("%s: %s, %s: %.9g, by differences %.9g; %.2g is allowed", t->text, x->name, what, got, want, allowed);
}

static void check_tensor(struct trial *t, struct reference_tensor *x, const float *gradient, double all)
{
    int64_t n = x->nrow * x->ncol;
    double *direction = calloc((size_t)n, sizeof *direction), size = 0;
    for (int64_t i = 0; i < n; i++) {
        direction[i] = trial_below(t, 2) ? 1 : -1;
        size += (double)gradient[i] * (double)gradient[i];
    }
    size = sqrt(size);
    compare(t, x, direction, gradient, 5e-5 * size + 2e-6 * all, "a random direction");
    for (int k = 0; k < TOPS && k < n; k++) {
        int64_t most = k ? trial_below(t, n) : 0;
        for (int64_t i = 0; i < n && k == 0; i++)
            most = fabsf(gradient[i]) > fabsf(gradient[most]) ? i : most;
        memset(direction, 0, (size_t)n * sizeof *direction);
        direction[most] = 1;
        compare(t, x, direction, gradient, 5e-5 * size + 2e-6 * all, k ? "an element" : "its largest element");
    }
    free(direction);
}

static void check_gradients(struct trial *t)
{
    struct fsdpck_error err = { 0 };
    t->ref.ntokens = DOCUMENTS * LONGEST;
    t->ref.chosen = calloc((size_t)(t->ref.nlayer * t->ref.ntokens * t->ref.nexperts + 1), sizeof *t->ref.chosen);
    t->ref.probs = calloc((size_t)t->ref.nexperts + 1, sizeof *t->ref.probs);
    t->ref.chooses = true;
    double loss, norm, want = mean_loss(t), squares = 0;
    t->ref.chooses = false;
    trial_must(train_session_gradients(t->session, 0, &loss, &norm, &err), &err);
    if (!(fabs(loss - want) <= 2e-6 * want))
        fail_msg("%s: loss %.9g for %.9g", t->text, loss, want);
    for (size_t i = 0; i < train_session_ntrained(t->session); i++) {
        const char *name;
        float *values, *gradient;
        int64_t n;
        trial_must(train_session_param(t->session, i, &name, &values, &gradient, &n, &err), &err);
        struct reference_tensor *x = reference_find(&t->ref, "", name, "");
        if (!x || x->nrow * x->ncol != n)
            fail_msg("%s: no '%s' of %lld elements in the reference", t->text, name, (long long)n);
        check_tensor(t, x, gradient, norm);
        for (int64_t j = 0; j < n; j++)
            squares += (double)gradient[j] * (double)gradient[j];
    }
    assert_true(fabs(norm / sqrt(squares) - 1) < 1e-6);
}

static void forget(struct trial *t)
{
    train_session_close(t->session);
    train_config_free(&t->config);
    for (size_t i = 0; i < t->ref.ntensors; i++)
        free(t->ref.tensors[i].data);
    free(t->ref.tensors);
    free(t->ref.chosen);
    free(t->ref.probs);
    trial_unlink(t);
}

static void test_differences(void **state)
{
    (void)state;
    for (int number = 0; number < TRIALS; number += EVERY) {
        struct fsdpck_error err = { 0 };
        struct trial t = { .random = (uint64_t)number, .folder = "/tmp/fsdptrain-gradients-XXXXXX" };
        assert_non_null(mkdtemp(t.folder));
        trial_draw(&t, number);
        trial_write(&t);
        trial_must(train_session_open(&t.config, &(struct train_options){ .nthreads = 2 }, &t.session, &err), &err);
        share_adapters(&t);
        check_gradients(&t);
        forget(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_differences) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
