/* SPDX-License-Identifier: Apache-2.0 */
/* Callers may pass no error: a function that fails returns then the same code. */
#include <fsdpck/convert.h>
#include <fsdpck/export.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "read_case.h"

/* Each call fails. src: of the case's model, which has no config.json. */
typedef int failing_call(const struct read_case *p, struct fsdpck_source *src, struct fsdpck_error *err);

static int open_missing(const struct read_case *p, struct fsdpck_source *src, struct fsdpck_error *err)
{
    struct fsdpck_source *none = NULL;
    (void)src;
    int rc = fsdpck_source_open("/nowhere", NULL, &p->opt, &none, err);
    assert_null(none);
    return rc;
}

static int name_unknown(const struct read_case *p, struct fsdpck_source *src, struct fsdpck_error *err)
{
    (void)p;
    return fsdpck_source_set_names(src, "nobody's", NULL, err);
}

static int name_for_vllm(const struct read_case *p, struct fsdpck_source *src, struct fsdpck_error *err)
{
    (void)p;
    return fsdpck_source_set_names(src, "vllm", NULL, err);
}

static int name_for_megatron(const struct read_case *p, struct fsdpck_source *src, struct fsdpck_error *err)
{
    (void)p;
    return fsdpck_source_set_names(src, "megatron", NULL, err);
}

static int quantize_unknown(const struct read_case *p, struct fsdpck_source *src, struct fsdpck_error *err)
{
    (void)p;
    return fsdpck_source_quantize(src, "fp3", NULL, 0, err);
}

static int read_outside(const struct read_case *p, struct fsdpck_source *src, struct fsdpck_error *err)
{
    static const uint64_t far[FSDPCK_MAX_DIMS] = { UINT64_MAX, UINT64_MAX };
    const struct fsdpck_read read = { .tensor = fsdpck_source_tensor(src, 0), .offset = far };
    (void)p;
    return fsdpck_source_read(src, &read, 1, err);
}

static int plan_outside(const struct read_case *p, struct fsdpck_source *src, struct fsdpck_error *err)
{
    static const uint64_t far[FSDPCK_MAX_DIMS] = { UINT64_MAX, UINT64_MAX };
    const struct fsdpck_read read = { .tensor = fsdpck_source_tensor(src, 0), .offset = far };
    struct fsdpck_plan plan;
    (void)p;
    return fsdpck_source_plan(src, &read, 1, &plan, err);
}

static const struct fsdpck_convert_request by_family = { .out = "/nowhere/out",
                                                         .mesh = { .ndim = 1, .names = { "tp" }, .sizes = { 2 } },
                                                         .by_family = true };

static int place_by_family(const struct read_case *p, struct fsdpck_source *src, struct fsdpck_error *err)
{
    struct fsdpck_convert_place places[4];
    (void)p;
    return fsdpck_convert_places(src, &by_family, places, err);
}

static int plan_by_family(const struct read_case *p, struct fsdpck_source *src, struct fsdpck_error *err)
{
    struct fsdpck_plan plans[2];
    return fsdpck_plan_ranks(src, &by_family, &p->opt, plans, err);
}

static int convert_by_family(const struct read_case *p, struct fsdpck_source *src, struct fsdpck_error *err)
{
    return fsdpck_convert(src, &by_family, &p->opt, NULL, err);
}

static int export_for_vllm(const struct read_case *p, struct fsdpck_source *src, struct fsdpck_error *err)
{
    const struct fsdpck_export_request req = { .out = "/nowhere/out", .vllm_ranks = 2 };
    return fsdpck_export(src, &req, &p->opt, NULL, err);
}

static void test_same_code_without_an_error(void **state)
{
    static failing_call *const calls[] = { open_missing,     name_unknown,      name_for_vllm,  name_for_megatron,
                                           quantize_unknown, read_outside,      plan_outside,   place_by_family,
                                           plan_by_family,   convert_by_family, export_for_vllm };
    struct read_case p = { 0 };
    uint64_t rng = 3;
    (void)state;
    for (int i = 0; i < 4; i++)
        model_add_random(&p.model, &rng, 100);
    model_calm(&p.model);
    read_case_write(&p);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        struct fsdpck_error err = { 0 };
        struct fsdpck_source *one = read_case_open(&p, p.file), *other = read_case_open(&p, p.file);
        const int with = calls[i](&p, one, &err), without = calls[i](&p, other, NULL);
        assert_int_not_equal(with, 0);
        assert_int_equal(with, err.code);
        assert_int_equal(without, with);
        fsdpck_source_close(one);
        fsdpck_source_close(other);
    }
    read_case_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_same_code_without_an_error) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
