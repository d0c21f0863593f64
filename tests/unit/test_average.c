/* SPDX-License-Identifier: Apache-2.0 */
/* The view that averages sources: boxes of any shape against sums of single elements, what a plan says, and which
 * tensors it is computed from. The command's own test compares whole files (tests/cli/average.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/value_view.h"
#include "model.h"
#include "opened.h"
#include "tree.h"
#include "view/average.h"

enum { N = 3, NDTYPES = 4 };
static const enum fsdpck_dtype dtypes[NDTYPES] = { FSDPCK_FLOAT32, FSDPCK_BFLOAT16, FSDPCK_FLOAT16, FSDPCK_FLOAT64 };
static const double weights[N] = { 0.5, -1.25, 0.1 };

static double at(const struct model_tensor *t, uint64_t i)
{
    double v[2];
    fsdpck_dtype_to_double(t->dtype, t->data + i * t->item, v);
    return v[0];
}

/* Finite values: a NaN may have any bits. */
static void fill(struct model_tensor *t, uint64_t *seed)
{
    for (uint64_t i = 0; i < t->nelem; i++) {
        double v = (double)model_below(seed, 1 << 20) / (1 << 18) - 2;
        fsdpck_dtype_cast(FSDPCK_FLOAT64, &v, t->dtype, t->data + i * t->item, 1);
    }
}

struct averaged {
    char *root;
    struct model models[N];
    struct fsdpck_source *sources[N];
};

/* cast: index in dtypes, or -1. */
static void make(struct averaged *x, int cast, uint64_t *seed)
{
    const struct fsdpck_select select = { .cast = cast >= 0, .dtype = cast >= 0 ? dtypes[cast] : FSDPCK_FLOAT32 };
    struct fsdpck_average_left left;
    struct fsdpck_error err = { 0 };
    memset(x, 0, sizeof *x);
    x->root = tree_new();
    for (int i = 0; i < N; i++) {
        char name[32];
        for (uint32_t k = 0; k < NDTYPES * 3; k++) {
            const uint64_t shape[] = { 3 + k, 5 + 2 * k, 7 };
            fill(model_add(&x->models[i], seed, dtypes[k / 3], 1 + k % 3, shape), seed);
        }
        snprintf(name, sizeof name, "m%d.safetensors", i);
        char *path = tree_path(x->root, name);
        model_write_safetensors(&x->models[i], path);
        x->sources[i] = opened(path, NULL);
        free(path);
    }
    const struct fsdpck_averaging a = { x->sources, weights, N, &select };
    if (fsdpck_source_average(&a, &left, &err))
        fail_msg("%s: %s", err.file, err.message);
}

static void free_averaged(struct averaged *x)
{
    for (int i = 0; i < N; i++) {
        fsdpck_source_close(x->sources[i]);
        model_free(&x->models[i]);
    }
    tree_remove(x->root);
    free(x->root);
}

/* One element, by the definition in fsdpck/average.h. volatile keeps products apart from sums. */
static void expect(const struct averaged *x, size_t tensor, uint64_t i, enum fsdpck_dtype to, void *out)
{
    const enum fsdpck_dtype dtype = x->models[0].tensors[tensor].dtype;
    volatile float sum = 0, term;
    volatile double wide_sum = 0, wide_term;
    for (int m = 0; m < N; m++) {
        const double v = at(&x->models[m].tensors[tensor], i);
        term = (float)weights[m] * (float)v;
        wide_term = weights[m] * v;
        sum = m ? sum + term : term;
        wide_sum = m ? wide_sum + wide_term : wide_term;
    }
    const float narrow = sum;
    const double wide = wide_sum;
    const bool is_wide = dtype == FSDPCK_FLOAT64;
    fsdpck_dtype_cast(is_wide ? FSDPCK_FLOAT64 : FSDPCK_FLOAT32, is_wide ? (const void *)&wide : &narrow, to, out, 1);
}

static void check_box(const struct averaged *x, size_t tensor, uint64_t *seed)
{
    const struct fsdpck_tensor *t = fsdpck_source_tensor(x->sources[0], tensor);
    const uint64_t item = fsdpck_dtype_info(t->dtype)->nbytes;
    uint64_t offset[3], size[3], n = 1;
    for (uint32_t d = 0; d < t->ndim; d++) {
        offset[d] = model_below(seed, t->shape[d]);
        size[d] = 1 + model_below(seed, t->shape[d] - offset[d]);
        n *= size[d];
    }
    uint8_t *got = malloc(n * item), want[8];
    struct fsdpck_read read = { .tensor = t, .offset = offset, .size = size, .dst = got };
    struct fsdpck_plan plan;
    assert_int_equal(fsdpck_source_read(x->sources[0], &read, 1, NULL), 0);
    assert_int_equal(fsdpck_source_plan(x->sources[0], &read, 1, &plan, NULL), 0);
    assert_int_equal(plan.needed_nbytes, N * n * x->models[0].tensors[tensor].item);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t flat = 0, rest = i, step = 1;
        for (uint32_t d = t->ndim; d-- > 0; rest /= size[d], step *= t->shape[d])
            flat += (offset[d] + rest % size[d]) * step;
        expect(x, tensor, flat, t->dtype, want);
        assert_memory_equal(got + i * item, want, item);
    }
    free(got);
}

static void test_boxes(void **state)
{
    uint64_t seed = 5;
    struct averaged x;
    (void)state;
    for (int cast = -1; cast < NDTYPES; cast++) {
        make(&x, cast, &seed);
        assert_int_equal(fsdpck_source_ntensors(x.sources[0]), x.models[0].ntensors);
        for (size_t k = 0; k < x.models[0].ntensors; k++) {
            const enum fsdpck_dtype own = x.models[0].tensors[k].dtype;
            assert_int_equal(fsdpck_source_tensor(x.sources[0], k)->dtype, cast < 0 ? own : dtypes[cast]);
            for (int n = 0; n < 20; n++)
                check_box(&x, k, &seed);
        }
        free_averaged(&x);
    }
}

static int note_input(void *ctx, struct fsdpck_source *input, size_t ordinal, struct fsdpck_error *err)
{
    (void)err;
    assert_string_equal(fsdpck_source_tensor(input, ordinal)->name, "t2.weight");
    ++*(int *)ctx;
    return 0;
}

static void test_inputs(void **state)
{
    uint64_t seed = 6;
    struct averaged x;
    int n = 0;
    (void)state;
    make(&x, -1, &seed);
    const struct fsdpck_tensor *t = fsdpck_source_find(x.sources[0], "t2.weight");
    const size_t ordinal = (size_t)(t - source_tensors(x.sources[0]));
    assert_int_equal(x.sources[0]->ops->values->inputs(x.sources[0], ordinal, note_input, &n, NULL), 0);
    assert_int_equal(n, N);
    assert_int_equal(fsdpck_source_check_tensor(x.sources[0], t, NULL), 0);
    free_averaged(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_boxes),
        cmocka_unit_test(test_inputs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
