/* SPDX-License-Identifier: Apache-2.0 */
/* See opened.h. */
#include "opened.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/source_impl.h"
#include "model.h"

struct fsdpck_source *opened(const char *path, const char *kind)
{
    struct fsdpck_error err = { 0 };
    struct fsdpck_source *src;
    char text[1200];
    if (fsdpck_source_open(path, kind, NULL, &src, &err))
        fail_msg("%s", fsdpck_error_format(&err, text, sizeof text));
    return src;
}

void *opened_read(struct fsdpck_source *src, const struct fsdpck_tensor *t)
{
    struct fsdpck_error err = { 0 };
    char text[1200];
    void *data = malloc(t->nbytes + 1);
    struct fsdpck_read read = { .tensor = t, .dst = data };
    if (fsdpck_source_read(src, &read, 1, &err))
        fail_msg("%s", fsdpck_error_format(&err, text, sizeof text));
    return data;
}

void opened_check_same(struct fsdpck_source *want, struct fsdpck_source *got)
{
    assert_int_equal(fsdpck_source_ntensors(got), fsdpck_source_ntensors(want));
    for (size_t i = 0; i < fsdpck_source_ntensors(want); i++) {
        const struct fsdpck_tensor *a = fsdpck_source_tensor(want, i), *b = fsdpck_source_find(got, a->name);
        if (!b)
            fail_msg("no %s", a->name);
        assert_int_equal(a->dtype, b->dtype);
        assert_int_equal(a->ndim, b->ndim);
        assert_memory_equal(a->shape, b->shape, a->ndim * sizeof *a->shape);
        uint8_t *x = opened_read(want, a), *y = opened_read(got, b);
        assert_memory_equal(x, y, a->nbytes);
        free(x);
        free(y);
    }
}

void opened_check_box(struct fsdpck_source *src, const struct fsdpck_tensor *t, const uint8_t *whole, uint64_t *seed)
{
    uint64_t offset[3], size[3], item = fsdpck_dtype_info(t->dtype)->nbytes, n = 1;
    int64_t from[3], dense = (int64_t)item, strides[3];
    for (uint32_t d = t->ndim; d-- > 0;) {
        offset[d] = model_below(seed, t->shape[d]);
        size[d] = 1 + model_below(seed, t->shape[d] - offset[d]);
        from[d] = dense;
        dense *= (int64_t)t->shape[d];
        n *= size[d];
    }
    bool apart = model_below(seed, 4) == 0; /* elements of a row are not dense */
    int64_t at = (int64_t)item * (apart ? 2 : 1);
    for (uint32_t d = t->ndim; d-- > 0;) {
        strides[d] = at;
        at *= (int64_t)size[d];
    }
    uint8_t *got = calloc(1, (size_t)at);
    struct fsdpck_read read = { .tensor = t, .offset = offset, .size = size, .dst = got, .strides = strides };
    assert_int_equal(fsdpck_source_read(src, &read, 1, NULL), 0);
    for (uint64_t i = 0; i < n; i++) {
        int64_t a = 0, b = 0;
        uint64_t rest = i;
        for (uint32_t d = t->ndim; d-- > 0; rest /= size[d]) {
            a += (int64_t)(offset[d] + rest % size[d]) * from[d];
            b += (int64_t)(rest % size[d]) * strides[d];
        }
        assert_memory_equal(whole + a, got + b, item);
    }
    free(got);
}

static void count_problem(void *ctx, const struct fsdpck_problem *problem)
{
    (void)problem;
    ++*(unsigned *)ctx;
}

unsigned opened_problems(struct fsdpck_source *src, struct fsdpck_verify_result *result)
{
    unsigned n = 0;
    *result = (struct fsdpck_verify_result){ 0 };
    assert_int_equal(src->ops->verify(src, false, count_problem, &n, result, NULL), 0);
    assert_int_equal(n, result->nproblems);
    return n;
}
