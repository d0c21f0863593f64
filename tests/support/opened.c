/* SPDX-License-Identifier: Apache-2.0 */
/* See opened.h. */
#include "opened.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/source_impl.h"

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
