/* SPDX-License-Identifier: Apache-2.0 */
/* PyTorch DCP directories written by real torch versions, read value by value. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include <fsdpck/source.h>

#include "../support/opened.h"
#include "engine/source_impl.h"

/* Every range of rows must equal that part of the whole. */
static void check_rows(struct fsdpck_source *src, const struct fsdpck_tensor *t, const uint8_t *whole)
{
    uint64_t offset[FSDPCK_MAX_DIMS] = { 0 }, part[FSDPCK_MAX_DIMS], row_nbytes = t->nbytes / t->shape[0];
    uint8_t *data = malloc(t->nbytes);
    memcpy(part, t->shape, t->ndim * sizeof *part);
    for (offset[0] = 0; offset[0] < t->shape[0]; offset[0]++)
        for (part[0] = 1; offset[0] + part[0] <= t->shape[0]; part[0]++) {
            struct fsdpck_read read = { .tensor = t, .offset = offset, .size = part, .dst = data };
            assert_int_equal(fsdpck_source_read(src, &read, 1, NULL), 0);
            assert_memory_equal(data, whole + offset[0] * row_nbytes, part[0] * row_nbytes);
        }
    free(data);
}

static void check_tensor(struct fsdpck_source *src, const char *name, const json_t *want)
{
    const struct fsdpck_tensor *t = fsdpck_source_find(src, name);
    const struct fsdpck_dtype_info *info;
    assert_non_null(t);
    info = fsdpck_dtype_info(t->dtype);
    assert_string_equal(info->name, json_string_value(json_object_get(want, "dtype")));
    const json_t *shape = json_object_get(want, "shape"), *values = json_object_get(want, "values");
    assert_int_equal(t->ndim, json_array_size(shape));
    for (uint32_t d = 0; d < t->ndim; d++)
        assert_int_equal(t->shape[d], json_integer_value(json_array_get(shape, d)));
    assert_int_equal(t->nelem, json_array_size(values));
    uint8_t *data = opened_read(src, t);
    for (uint64_t i = 0; i < t->nelem; i++) {
        double v[2];
        fsdpck_dtype_to_double(t->dtype, data + i * info->nbytes, v);
        assert_true(v[0] == json_number_value(json_array_get(values, i)));
    }
    check_rows(src, t, data);
    free(data);
}

static void check_paths(struct fsdpck_source *src)
{
    const struct fsdpck_tensor *t = fsdpck_source_find(src, "model.embed.weight");
    assert_int_equal(t->npath, 2); /* stored keys, not split at dots */
    assert_string_equal(t->path[0].str, "model");
    assert_string_equal(t->path[1].str, "embed.weight");
    assert_int_equal(fsdpck_source_find(src, "turned")->npath, 1);
}

static void check_items(struct fsdpck_source *src, const json_t *want)
{
    assert_int_equal(fsdpck_source_nitems(src), json_object_size(want));
    for (size_t i = 0; i < fsdpck_source_nitems(src); i++) {
        const struct source_item *item = &source_items(src)[i];
        char *data = malloc(item->pub.nbytes);
        assert_non_null(json_object_get(want, item->pub.name));
        assert_int_equal(fsdpck_source_read_item(src, i, data, NULL), 0);
        assert_memory_equal(data, "PK\3\4", 4);
        assert_memory_equal(data + item->pub.nbytes - 22, "PK\5\6", 4);
        assert_int_equal(fsdpck_source_read_item_part(src, i, data, 4, item->pub.nbytes - 22, NULL),
                         0); /* backwards in a stream */
        assert_memory_equal(data, "PK\5\6", 4);
        free(data);
    }
}

static void check_golden(const char *version)
{
    const char *root = getenv("FSDPCK_FIXTURES"), *name;
    char dir[1024], ref[1024];
    json_t *value;
    snprintf(dir, sizeof dir, "%s/dcp/%s/ckpt", root ? root : "fixtures", version);
    snprintf(ref, sizeof ref, "%s/dcp/%s/REF.json", root ? root : "fixtures", version);
    json_t *truth = json_load_file(ref, 0, NULL), *tensors = json_object_get(truth, "tensors");
    struct fsdpck_source *src = opened(dir, "dcp");
    assert_non_null(truth);
    assert_string_equal(fsdpck_source_kind(src), "dcp");
    assert_int_equal(fsdpck_source_nranks(src), 3);
    assert_int_equal(fsdpck_source_nfiles(src), 3);
    assert_int_equal(fsdpck_source_ntensors(src), json_object_size(tensors));
    json_object_foreach (tensors, name, value)
        check_tensor(src, name, value);
    check_paths(src);
    check_items(src, json_object_get(truth, "items"));
    struct fsdpck_verify_result result;
    assert_int_equal(opened_problems(src, &result), 0);
    assert_true(result.nblocks >= 57 && !result.hashed);
    fsdpck_source_close(src);
    json_decref(truth);
}

static void test_golden_24(void **state)
{
    (void)state;
    check_golden("torch-2.4");
}

static void test_golden_26(void **state)
{
    (void)state;
    check_golden("torch-2.6");
}

static void test_golden_215(void **state)
{
    (void)state;
    check_golden("torch-2.15");
}

/* Python 3.11 stores enums as getattr(class, "MEMBER"). */
static void test_golden_python_311(void **state)
{
    (void)state;
    check_golden("torch-2.15-python-3.11.2");
}

/* Every item is a zstd stream. */
static void test_golden_zstd(void **state)
{
    (void)state;
    check_golden("zstd");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_24),         cmocka_unit_test(test_golden_26),   cmocka_unit_test(test_golden_215),
        cmocka_unit_test(test_golden_python_311), cmocka_unit_test(test_golden_zstd),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
