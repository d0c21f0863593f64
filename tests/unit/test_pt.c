/* SPDX-License-Identifier: Apache-2.0 */
/* torch.save pickles: names and paths of leaves, values pickled again, and the location of a view's elements. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "torch/pt/file.h"
#include "torch/pt/value.h"
#include "torch/pt/walk.h"
#include "torch/pickle/tensor_node.h"

/* A tensor's pickle: storage "0" of 4 floats, first 0, size (2, 2), stride (2, 1). */
#define TENSOR \
    "ctorch._utils\n_rebuild_tensor_v2\n((" \
    "X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0000X\3\0\0\0cpuK\4tQK\0K\2K\2\x86K\2K\1\x86\x89" \
    "ccollections\nOrderedDict\n)RtR"
#define PICKLE(body) "\x80\2" body ".", sizeof("\x80\2" body ".") - 1

static struct fsdpck_pickle *parse(const void *bytes, size_t nbytes)
{
    struct fsdpck_error err = { 0 };
    struct fsdpck_pickle *p = NULL;
    int r = fsdpck_pickle_parse("f", 0, bytes, nbytes, fsdpck_pt_names, &p, &err);
    if (r)
        print_error("%s\n", err.message);
    assert_int_equal(r, 0);
    return p;
}

/* ---- the walk ---- */

struct leaves {
    char text[1024]; /* "t:name/path;v:name/path;": t of tensors, v of values; list positions in brackets */
};

static int add_leaf(struct leaves *l, char kind, const char *name, const struct fsdpck_key *path, uint32_t npath)
{
    size_t at = strlen(l->text);
    at += (size_t)snprintf(l->text + at, sizeof l->text - at, "%c:%s", kind, name);
    for (uint32_t i = 0; i < npath; i++)
        at += path[i].str ? (size_t)snprintf(l->text + at, sizeof l->text - at, "/%s", path[i].str)
                          : (size_t)snprintf(l->text + at, sizeof l->text - at, "/[%d]", (int)path[i].position);
    snprintf(l->text + at, sizeof l->text - at, ";");
    return 0;
}

static int on_tensor(void *ctx, const char *name, const struct fsdpck_key *path, uint32_t npath, fsdpck_node n)
{
    (void)n;
    return add_leaf(ctx, 't', name, path, npath);
}

static int on_value(void *ctx, const char *name, const struct fsdpck_key *path, uint32_t npath, fsdpck_node n)
{
    (void)n;
    return add_leaf(ctx, 'v', name, path, npath);
}

static int walk(const void *bytes, size_t nbytes, const char *tree, struct leaves *l, struct fsdpck_error *err)
{
    struct fsdpck_pickle *p = parse(bytes, nbytes);
    struct fsdpck_pt_walk w = { .p = p,
                                .root = fsdpck_pickle_root(p),
                                .file = "f",
                                .nbytes = nbytes,
                                .tree = tree,
                                .tensor = on_tensor,
                                .value = on_value,
                                .ctx = l,
                                .err = err };
    memset(l, 0, sizeof *l);
    int r = fsdpck_pt_walk(&w);
    fsdpck_pickle_free(p);
    return r;
}

static void expect_leaves(const void *bytes, size_t nbytes, const char *tree, const char *want)
{
    struct leaves l;
    struct fsdpck_error err = { 0 };
    assert_int_equal(walk(bytes, nbytes, tree, &l, &err), 0);
    assert_string_equal(l.text, want);
}

static void test_names(void **state)
{
    (void)state;
    expect_leaves(PICKLE(TENSOR), NULL, "t:tensor/tensor;");
    expect_leaves(PICKLE("}X\3\0\0\0a.b" TENSOR "s"), NULL, "t:a.b/a.b;");
    expect_leaves(PICKLE("}X\1\0\0\0a}X\1\0\0\0b" TENSOR "ss"), NULL, "t:a.b/a/b;");
    expect_leaves(PICKLE("}X\1\0\0\0a" TENSOR "s"), "model", "t:model.a/model/a;");
    /* int, bool and None keys become str() of them */
    expect_leaves(PICKLE("}(K\7" TENSOR "\x88" TENSOR "N" TENSOR "u"), NULL, "t:7/7;t:True/True;t:None/None;");
}

static void test_lists(void **state)
{
    (void)state;
    /* a list of plain values is one value */
    expect_leaves(PICKLE("}X\1\0\0\0l](K\1K\2es"), NULL, "v:l/l;");
    expect_leaves(PICKLE("}X\1\0\0\0l](K\1" TENSOR "es"), NULL, "v:l.0/l/[0];t:l.1/l/[1];"); /* a list with a tensor */
    expect_leaves(PICKLE("}X\1\0\0\0l](K\1}X\1\0\0\0dK\2ses"), NULL,
                  "v:l.0/l/[0];v:l.1.d/l/[1]/d;"); /* a list with a dict */
    expect_leaves(PICKLE("}X\1\0\0\0l](](" TENSOR "eK\1es"), NULL, "t:l.0.0/l/[0]/[0];v:l.1/l/[1];");
    /* a tuple is a value */
    expect_leaves(PICKLE("}X\1\0\0\0tK\1}X\1\0\0\0dK\2s\x86s"), NULL, "v:t/t;");
    /* except one with tensors */
    expect_leaves(PICKLE("}X\1\0\0\0tK\1" TENSOR "\x86s"), NULL, "v:t.0/t/[0];t:t.1/t/[1];");
    /* empty dicts disappear, empty lists remain */
    expect_leaves(PICKLE("}(X\1\0\0\0a}X\1\0\0\0bccollections\nOrderedDict\n)RX\1\0\0\0c]u"), NULL, "v:c/c;");
}

static void test_refused_trees(void **state)
{
    (void)state;
    struct leaves l;
    struct fsdpck_error err = { 0 };
    assert_int_equal(walk(PICKLE("K\7"), NULL, &l, &err), FSDPCK_ERR_FORMAT);
    err = (struct fsdpck_error){ 0 };
    assert_int_equal(walk(PICKLE("}G\0\0\0\0\0\0\0\0" TENSOR "s"), NULL, &l, &err), FSDPCK_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "neither a plain string nor an integer"));
}

/* ---- values ---- */

/* Pickles a value twice; the second time must change nothing. The tests against torch check what Python loads. */
static void expect_again(const void *bytes, size_t nbytes, const void *want, size_t want_nbytes)
{
    struct fsdpck_pickle *p = parse(bytes, nbytes), *q;
    struct fsdpck_text text = { 0 }, again = { 0 };
    struct fsdpck_error err = { 0 };
    assert_int_equal(fsdpck_pt_value(p, fsdpck_pickle_root(p), 4096, "f", &text, &err), 0);
    assert_int_equal(text.nbytes, want_nbytes);
    assert_memory_equal(text.data, want, want_nbytes);
    q = parse(text.data, text.nbytes);
    assert_int_equal(fsdpck_pt_value(q, fsdpck_pickle_root(q), 4096, "f", &again, &err), 0);
    assert_int_equal(again.nbytes, text.nbytes);
    assert_memory_equal(again.data, text.data, text.nbytes);
    fsdpck_pickle_free(p);
    fsdpck_pickle_free(q);
    fsdpck_text_free(&text);
    fsdpck_text_free(&again);
}

static void test_values(void **state)
{
    (void)state;
    expect_again(PICKLE("N"), PICKLE("N"));
    expect_again(PICKLE("\x88"), PICKLE("\x88"));
    expect_again(PICKLE("M\1\0"), PICKLE("K\1"));
    expect_again(PICKLE("J\xff\xff\xff\xff"), PICKLE("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\xff"));
    expect_again(PICKLE("\x8a\x09\0\0\0\0\0\0\0\0\1"), PICKLE("\x8a\x09\0\0\0\0\0\0\0\0\1"));
    expect_again(PICKLE("G?\xf0\0\0\0\0\0\0"), PICKLE("G?\xf0\0\0\0\0\0\0"));
    expect_again(PICKLE("K\1K\2\x86"), PICKLE("(K\1K\2t"));
    expect_again(PICKLE("](K\1K\2e"), PICKLE("](K\1K\2e"));
    expect_again(PICKLE("}X\1\0\0\0aK\1s"), PICKLE("}(X\1\0\0\0aK\1u"));
    expect_again(PICKLE("ctorch\nSize\n(K\1K\2t\x85R"), PICKLE("ctorch\nSize\n((K\1K\2ttR"));
    /* sets of protocol 4 and bytes of protocol 3, in the opcodes of protocol 2 */
    expect_again("\x80\4\x8f(K\1\x90.", 8, PICKLE("c__builtin__\nset\n(](K\1etR"));
    expect_again("\x80\3"
                 "C\2a\xff.",
                 7, PICKLE("c_codecs\nencode\n(X\3\0\0\0a\xc3\xbfX\6\0\0\0latin1tR"));
}

static void test_refused_values(void **state)
{
    (void)state;
    struct fsdpck_pickle *p = parse(PICKLE("}X\1\0\0\0t" TENSOR "s"));
    struct fsdpck_text text = { 0 };
    struct fsdpck_error err = { 0 };
    assert_int_equal(fsdpck_pt_value(p, fsdpck_pickle_root(p), 4096, "f", &text, &err), FSDPCK_ERR_UNSUPPORTED);
    fsdpck_pickle_free(p);
    p = parse(PICKLE("](X\4\0\0\0aaaaX\4\0\0\0bbbbX\4\0\0\0cccce"));
    err = (struct fsdpck_error){ 0 };
    text.nbytes = 0;
    assert_int_equal(fsdpck_pt_value(p, fsdpck_pickle_root(p), 16, "f", &text, &err), FSDPCK_ERR_LIMIT);
    fsdpck_pickle_free(p);
    fsdpck_text_free(&text);
}

/* ---- views ---- */

static void test_views(void **state)
{
    (void)state;
    struct fsdpck_tensor_node t = {
        .dtype = FSDPCK_FLOAT32, .storage_nelem = 24, .ndim = 2, .size = { 4, 6 }, .strides = { 6, 1 }
    };
    assert_true(fsdpck_tensor_node_inside(&t) && fsdpck_tensor_node_is_dense(&t));
    t.first = 1;
    assert_false(fsdpck_tensor_node_inside(&t));
    t = (struct fsdpck_tensor_node){ .storage_nelem = 24, .ndim = 2, .size = { 6, 4 }, .strides = { 1, 6 } };
    assert_true(fsdpck_tensor_node_inside(&t) && !fsdpck_tensor_node_is_dense(&t));
    t.strides[1] = 7;
    assert_false(fsdpck_tensor_node_inside(&t));
    t = (struct fsdpck_tensor_node){ .storage_nelem = 1, .ndim = 2, .size = { 1000, 1000 }, .strides = { 0, 0 } };
    assert_true(fsdpck_tensor_node_inside(&t) && !fsdpck_tensor_node_is_dense(&t));
    /* a stride that is never used */
    t = (struct fsdpck_tensor_node){ .storage_nelem = 6, .ndim = 3, .size = { 1, 2, 3 }, .strides = { 99, 3, 1 } };
    assert_true(fsdpck_tensor_node_inside(&t) && fsdpck_tensor_node_is_dense(&t));
    t = (struct fsdpck_tensor_node){
        .storage_nelem = 0, .first = 7, .ndim = 2, .size = { 0, UINT64_MAX }, .strides = { UINT64_MAX, UINT64_MAX }
    };
    assert_true(fsdpck_tensor_node_inside(&t)); /* empty: reads nothing */
    t = (struct fsdpck_tensor_node){
        .storage_nelem = UINT64_MAX, .ndim = 2, .size = { UINT64_MAX, 3 }, .strides = { 2, 1 }
    };
    assert_false(fsdpck_tensor_node_inside(&t)); /* overflows */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),  cmocka_unit_test(test_lists),          cmocka_unit_test(test_refused_trees),
        cmocka_unit_test(test_values), cmocka_unit_test(test_refused_values), cmocka_unit_test(test_views),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
