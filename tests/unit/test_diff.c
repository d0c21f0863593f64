/* SPDX-License-Identifier: Apache-2.0 */
/* fsdpck_diff(): the differences that it reports, by bits and by value, in any order, shape, sharding and memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fsdpck/check.h>
#include <fsdpck/convert.h>

#include "opened.h"
#include "tree.h"

/* A tensor of a safetensors file. */
struct made {
    const char *name, *dtype, *shape; /* "F32", "[2,3]" */
    const void *data;
    size_t nbytes;
};

struct fixture {
    char *root;
    char report[65536]; /* "NAME dtype|- shape|- NDIFFERENT MAX\n", or "NAME only a\n" */
    struct fsdpck_diff_result result;
    struct fsdpck_options opt;
    double tolerance;
    uint64_t done, total;
};

static int setup(void **state)
{
    struct fixture *x = calloc(1, sizeof *x);
    x->root = tree_new();
    x->tolerance = -1;
    x->opt.nthreads = 2;
    *state = x;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *x = *state;
    tree_remove(x->root);
    free(x->root);
    free(x);
    return 0;
}

static void write_safetensors(const char *path, const struct made *tensors, size_t n)
{
    char header[8192] = "{";
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        char one[512];
        snprintf(one, sizeof one, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
                 i > 0 ? "," : "", tensors[i].name, tensors[i].dtype, tensors[i].shape, at, at + tensors[i].nbytes);
        at += tensors[i].nbytes;
        strcat(header, one);
    }
    strcat(header, "}");
    uint64_t nbytes = strlen(header);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(&nbytes, 1, 8, f), 8); /* tests run on little-endian machines */
    assert_int_equal(fwrite(header, 1, nbytes, f), nbytes);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(fwrite(tensors[i].data, 1, tensors[i].nbytes, f), tensors[i].nbytes);
    assert_int_equal(fclose(f), 0);
}

static void on_difference(void *ctx, const struct fsdpck_difference *d)
{
    struct fixture *x = ctx;
    size_t n = strlen(x->report);
    if (d->a == NULL || d->b == NULL)
        snprintf(x->report + n, sizeof x->report - n, "%s only %s\n", d->tensor, d->a != NULL ? "a" : "b");
    else
        snprintf(x->report + n, sizeof x->report - n, "%s%s%s %" PRIu64 " %g\n", d->tensor,
                 d->same_dtype ? "" : " dtype", d->same_shape ? "" : " shape", d->ndifferent, d->max_abs);
}

static void on_progress(void *ctx, uint64_t done, uint64_t total)
{
    struct fixture *x = ctx;
    assert_true(done >= x->done && done <= total);
    x->done = done;
    x->total = total;
}

static int diff_paths(struct fixture *x, const char *a_path, const char *b_path)
{
    struct fsdpck_error err = { 0 };
    struct fsdpck_source *a = opened(a_path, NULL), *b = opened(b_path, NULL);
    x->report[0] = '\0';
    x->done = 0;
    int rc = fsdpck_diff(a, b, x->tolerance, &x->opt, on_difference, x, &x->result, &err);
    if (rc != 0)
        assert_int_equal(err.code, rc);
    fsdpck_source_close(a);
    fsdpck_source_close(b);
    return rc;
}

static int diff(struct fixture *x, const struct made *a, size_t na, const struct made *b, size_t nb)
{
    char *a_path = tree_path(x->root, "a.safetensors"), *b_path = tree_path(x->root, "b.safetensors");
    write_safetensors(a_path, a, na);
    write_safetensors(b_path, b, nb);
    int rc = diff_paths(x, a_path, b_path);
    free(a_path);
    free(b_path);
    return rc;
}

/* Compares one tensor "w" with another. */
static const char *diff_one(struct fixture *x, const char *a_dtype, const void *a, size_t a_nbytes, const char *b_dtype,
                            const void *b, size_t b_nbytes, const char *shape)
{
    struct made ta = { "w", a_dtype, shape, a, a_nbytes }, tb = { "w", b_dtype, shape, b, b_nbytes };
    assert_int_equal(diff(x, &ta, 1, &tb, 1), 0);
    return x->report;
}

/* ---- */

static void test_equal(void **state)
{
    struct fixture *x = *state;
    float w[6] = { 1, 2, 3, 4, 5, NAN };
    struct made a[] = { { "scalar", "F32", "[]", w, 4 },
                        { "empty", "F32", "[0,3]", w, 0 },
                        { "w", "F32", "[2,3]", w, 24 } };
    struct made b[] = { { "w", "F32", "[2,3]", w, 24 },
                        { "scalar", "F32", "[]", w, 4 },
                        { "empty", "F32", "[0,3]", w, 0 } };
    assert_int_equal(diff(x, a, 3, b, 3), 0);
    assert_string_equal(x->report, "");
    assert_int_equal(x->result.ntensors, 3);
    assert_int_equal(x->result.ndifferent, 0);
    assert_int_equal(x->result.nskipped, 0);
}

static void test_no_tensors(void **state)
{
    struct fixture *x = *state;
    assert_int_equal(diff(x, NULL, 0, NULL, 0), 0);
    assert_int_equal(x->result.ntensors, 0);
}

static void test_names_and_shapes(void **state)
{
    struct fixture *x = *state;
    float w[6] = { 1, 2, 3, 4, 5, 6 }, v[6] = { 1, 2, 3, 4, 5, 7.5f };
    struct made a[] = { { "z", "F32", "[2,3]", w, 24 },
                        { "b", "F32", "[6]", w, 24 },
                        { "a.10", "F32", "[1]", w, 4 },
                        { "s", "F32", "[2,3]", w, 24 } };
    struct made b[] = { { "c", "F32", "[2,3]", w, 24 },
                        { "z", "F32", "[2,3]", v, 24 },
                        { "a.9", "F32", "[1]", w, 4 },
                        { "s", "F32", "[3,2]", w, 24 } };
    assert_int_equal(diff(x, a, 4, b, 4), 0);
    assert_string_equal(x->report, "a.10 only a\na.9 only b\nb only a\nc only b\ns shape 0 0\nz 1 1.5\n");
    assert_int_equal(x->result.ntensors, 2);
    assert_int_equal(x->result.ndifferent, 6);
}

static void test_bits(void **state)
{
    struct fixture *x = *state;
    float zero = 0.0f, minus = -0.0f, a[4] = { NAN, INFINITY, INFINITY, 1 }, b[4] = { NAN, INFINITY, -INFINITY, 1 };
    assert_string_equal(diff_one(x, "F32", &zero, 4, "F32", &minus, 4, "[1]"), "w 1 0\n");
    assert_string_equal(diff_one(x, "F32", a, 16, "F32", b, 16, "[4]"), "w 1 inf\n");
    b[2] = INFINITY;
    b[0] = 1;
    assert_string_equal(diff_one(x, "F32", a, 16, "F32", b, 16, "[4]"), "w 1 inf\n");
    uint32_t nan_a = 0x7fc00000, nan_b = 0x7fc00001;
    assert_string_equal(diff_one(x, "F32", &nan_a, 4, "F32", &nan_b, 4, "[1]"), "w 1 0\n");
    x->tolerance = 0;
    assert_string_equal(diff_one(x, "F32", &nan_a, 4, "F32", &nan_b, 4, "[1]"), "");
    assert_string_equal(diff_one(x, "F32", &zero, 4, "F32", &minus, 4, "[1]"), "");
}

static void test_tolerance(void **state)
{
    struct fixture *x = *state;
    double a[4] = { 1, 2, 3, NAN }, b[4] = { 1.25, 2.5, 3.75, NAN };
    x->tolerance = 0.5;
    assert_string_equal(diff_one(x, "F64", a, 32, "F64", b, 32, "[4]"), "w 1 0.75\n");
    b[3] = 0;
    assert_string_equal(diff_one(x, "F64", a, 32, "F64", b, 32, "[4]"), "w 2 inf\n");
    x->tolerance = INFINITY;
    assert_string_equal(diff_one(x, "F64", a, 32, "F64", b, 32, "[4]"), "");
    x->tolerance = NAN;
    struct made t = { "w", "F64", "[4]", a, 32 };
    assert_int_equal(diff(x, &t, 1, &t, 1), FSDPCK_ERR_USAGE);
}

static void test_dtypes(void **state)
{
    struct fixture *x = *state;
    float a[3] = { 1, 2, 3 };
    uint16_t bf16[3] = { 0x3f80, 0x4000, 0x4080 }; /* 1 2 4 */
    int64_t i64[3] = { 1, 2, 3 };
    assert_string_equal(diff_one(x, "F32", a, 12, "BF16", bf16, 6, "[3]"), "w dtype 0 0\n");
    x->tolerance = 0;
    assert_string_equal(diff_one(x, "F32", a, 12, "BF16", bf16, 6, "[3]"), "w dtype 1 1\n");
    assert_string_equal(diff_one(x, "I64", i64, 24, "F32", a, 12, "[3]"), "w dtype 0 0\n");
    assert_string_equal(diff_one(x, "BF16", bf16, 6, "I64", i64, 24, "[3]"), "w dtype 1 1\n");
}

static void test_other_kinds(void **state)
{
    struct fixture *x = *state;
    int64_t i[2] = { INT64_MAX, INT64_MIN }, j[2] = { INT64_MAX - 1, INT64_MIN };
    uint64_t u[1] = { UINT64_MAX }, v[1] = { UINT64_MAX - 3 };
    float c[4] = { 1, 2, 3, 4 }, d[4] = { 1, 2, 6, 8 };
    uint8_t t[3] = { 0, 1, 1 }, f[3] = { 1, 1, 0 }, e4m3[2] = { 0x38, 0x40 }, other[2] = { 0x38, 0x38 };
    assert_string_equal(diff_one(x, "I64", i, 16, "I64", j, 16, "[2]"), "w 1 1\n"); /* equal as doubles */
    assert_string_equal(diff_one(x, "U64", u, 8, "U64", v, 8, "[1]"), "w 1 3\n");
    assert_string_equal(diff_one(x, "C64", c, 16, "C64", d, 16, "[2]"), "w 1 5\n");
    assert_string_equal(diff_one(x, "BOOL", t, 3, "BOOL", f, 3, "[3]"), "w 2 1\n");
    assert_string_equal(diff_one(x, "F8_E4M3", e4m3, 2, "F8_E4M3", other, 2, "[2]"), "w 1 1\n");
}

/* ---- sizes */

static uint64_t draw(uint64_t *s, uint64_t n)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (*s >> 33) % n;
}

/* For any budget and number of threads, the counts equal those of a plain loop. */
static void test_any_budget(void **state)
{
    static const char *const shapes[] = { "[60000]",     "[1,60000]",   "[60000,1]", "[3,20000]",
                                          "[20,30,100]", "[2,2,15000]", "[60,1000]" };
    enum { N = 60000 };
    struct fixture *x = *state;
    static float a[N], b[N];
    uint64_t seed = 1;
    for (size_t i = 0; i < N; i++)
        a[i] = b[i] = (float)draw(&seed, 1000);
    double most = 0;
    uint64_t count = 0;
    for (size_t i = 0; i < N; i += 1 + draw(&seed, 400)) {
        b[i] += (float)(1 + draw(&seed, 1000));
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
        count++;
    }
    char want[128];
    snprintf(want, sizeof want, "w %" PRIu64 " %g\n", count, most);
    x->opt.progress = on_progress;
    x->opt.ctx = x;
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (unsigned threads = 1; threads < 4; threads += 2)
            for (uint64_t memory = 1; memory < 4u << 20; memory *= 37) {
                x->opt.nthreads = threads;
                x->opt.memory_nbytes = memory;
                assert_string_equal(diff_one(x, "F32", a, sizeof a, "F32", b, sizeof b, shapes[s]), want);
                assert_int_equal(x->done, x->total);
                assert_int_equal(x->total, 2 * sizeof a);
            }
}

static void test_many_tensors(void **state)
{
    enum { N = 100 };
    struct fixture *x = *state;
    static char names[N][8];
    static float values[N][5], others[N][5];
    struct made a[N], b[N];
    char want[4096] = "";
    for (size_t i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "t%03zu", i);
        for (size_t k = 0; k < 5; k++)
            values[i][k] = others[i][k] = (float)(i + k);
        a[i] = (struct made){ names[i], "F32", "[5]", values[i], 20 };
        b[N - 1 - i] = (struct made){ names[i], "F32", "[5]", others[i], 20 };
        if (i % 7 == 3) {
            others[i][i % 5] += (float)i;
            snprintf(want + strlen(want), sizeof want - strlen(want), "%s 1 %zu\n", names[i], i);
        }
    }
    for (uint64_t memory = 0; memory < 100000; memory += 16384) {
        x->opt.memory_nbytes = memory;
        assert_int_equal(diff(x, a, N, b, N), 0);
        assert_string_equal(x->report, want);
    }
}

static void test_stop(void **state)
{
    struct fixture *x = *state;
    volatile int stop = 1;
    float w = 1;
    struct made t = { "w", "F32", "[1]", &w, 4 };
    x->opt.stop = &stop;
    assert_int_equal(diff(x, &t, 1, &t, 1), FSDPCK_ERR_STOPPED);
}

/* ---- sharded */

static void convert(struct fixture *x, const char *from, const char *to, uint32_t nranks)
{
    struct fsdpck_error err = { 0 };
    char *in = tree_path(x->root, from), *out = tree_path(x->root, to);
    struct fsdpck_source *src = opened(in, NULL);
    struct fsdpck_convert_request req = { .out = out,
                                          .mesh = { .ndim = 1, .names = { "shard" }, .sizes = { nranks } } };
    struct fsdpck_transfer_result result;
    if (fsdpck_convert(src, &req, NULL, &result, &err) != 0)
        fail_msg("%s", err.message);
    fsdpck_source_close(src);
    free(in);
    free(out);
}

static void test_content_ids(void **state)
{
    struct fixture *x = *state;
    float w[12], v[12];
    for (int i = 0; i < 12; i++)
        w[i] = v[i] = (float)i;
    v[7] = 100;
    struct made a[] = { { "same", "F32", "[4,3]", w, 48 }, { "w", "F32", "[4,3]", w, 48 } };
    struct made b[] = { { "same", "F32", "[4,3]", w, 48 }, { "w", "F32", "[4,3]", v, 48 } };
    char *a_path = tree_path(x->root, "a.safetensors"), *b_path = tree_path(x->root, "b.safetensors");
    char *a_dir = tree_path(x->root, "a"), *b_dir = tree_path(x->root, "b"), *c_dir = tree_path(x->root, "c");
    write_safetensors(a_path, a, 2);
    write_safetensors(b_path, b, 2);
    convert(x, "a.safetensors", "a", 2);
    convert(x, "b.safetensors", "b", 3);
    convert(x, "a", "c", 3);
    assert_int_equal(diff_paths(x, a_dir, c_dir), 0);
    assert_string_equal(x->report, "");
    assert_int_equal(x->result.nskipped, 2);
    assert_int_equal(diff_paths(x, a_dir, b_dir), 0);
    assert_string_equal(x->report, "w 1 93\n");
    assert_int_equal(x->result.nskipped, 1);
    assert_int_equal(diff_paths(x, a_dir, b_path), 0); /* a kind without content ids */
    assert_string_equal(x->report, "w 1 93\n");
    assert_int_equal(x->result.nskipped, 0);
    free(a_path);
    free(b_path);
    free(a_dir);
    free(b_dir);
    free(c_dir);
}

/* Equal content ids of different shapes prove nothing: the same bytes may form other rows. */
static void test_content_id_of_another_shape(void **state)
{
    struct fixture *x = *state;
    float w[4] = { 1, 2, 3, 4 };
    struct made a = { "w", "F32", "[2,2]", w, 16 }, b = { "w", "F32", "[2,2,1]", w, 16 };
    char *a_path = tree_path(x->root, "a.safetensors"), *b_path = tree_path(x->root, "b.safetensors");
    char *a_dir = tree_path(x->root, "a"), *b_dir = tree_path(x->root, "b");
    write_safetensors(a_path, &a, 1);
    write_safetensors(b_path, &b, 1);
    convert(x, "a.safetensors", "a", 2);
    convert(x, "b.safetensors", "b", 1);
    assert_int_equal(diff_paths(x, a_dir, b_dir), 0);
    assert_string_equal(x->report, "w shape 0 0\n");
    free(a_path);
    free(b_path);
    free(a_dir);
    free(b_dir);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_equal),        T(test_no_tensors), T(test_names_and_shapes), T(test_bits),
        T(test_tolerance),    T(test_dtypes),     T(test_other_kinds),      T(test_any_budget),
        T(test_many_tensors), T(test_stop),       T(test_content_ids),      T(test_content_id_of_another_shape),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
