/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors input: files with one defect each and the expected message, folders with a wrong index, and unusual files
 * that are valid. */
#include <fsdpck/source.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/ioutil.h"
#include "tree.h"

static char *root; /* directory of the test */

static int make_root(void **state)
{
    (void)state;
    root = tree_new();
    return 0;
}

static int remove_root(void **state)
{
    (void)state;
    tree_remove(root);
    free(root);
    return 0;
}

/* Writes a file: length (nheader, if that is not the real one), header, ndata bytes 0, 1, 2 … */
static void put(const char *name, const char *header, uint64_t nheader, size_t ndata)
{
    size_t n = strlen(header);
    uint8_t *bytes = malloc(8 + n + ndata);
    char *path = tree_path(root, name);
    assert_non_null(bytes);
    fsdpck_put64(bytes, nheader == UINT64_MAX ? n : nheader);
    memcpy(bytes + 8, header, n);
    for (size_t i = 0; i < ndata; i++)
        bytes[8 + n + i] = (uint8_t)i;
    tree_remove(path);
    assert_int_equal(fsdpck_write_file(&fsdpck_io_posix, path, bytes, 8 + n + ndata, NULL), 0);
    free(path);
    free(bytes);
}

static int open_name(const char *name, struct fsdpck_source **src, struct fsdpck_error *err)
{
    char *path = tree_path(root, name);
    int rc = fsdpck_source_open(path, NULL, NULL, src, err);
    free(path);
    return rc;
}

static void refuse(const char *name, const char *fragment)
{
    struct fsdpck_source *src = NULL;
    struct fsdpck_error err = { 0 };
    char line[2048];
    int rc = open_name(name, &src, &err);
    if (rc == 0)
        fail_msg("accepted, wanted '%s'", fragment);
    assert_null(src);
    assert_int_equal(rc, err.code);
    assert_int_equal(fsdpck_error_exit_code(rc), 3);
    fsdpck_error_format(&err, line, sizeof line);
    if (!strstr(line, fragment) || strchr(line, '\n'))
        fail_msg("'%s', wanted '%s' in it", line, fragment);
}

static void accept(const char *name, size_t ntensors)
{
    struct fsdpck_source *src = NULL;
    struct fsdpck_error err = { 0 };
    if (open_name(name, &src, &err) != 0)
        fail_msg("refused: %s", err.message);
    assert_int_equal(fsdpck_source_ntensors(src), ntensors);
    fsdpck_source_close(src);
}

#define GOOD         "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}"
#define WITH(fields) "{\"a\":{" fields "}}"
#define D            "\"dtype\":\"F32\""
#define S            "\"shape\":[2,2]"
#define O            "\"data_offsets\":[0,16]"
#define REAL         UINT64_MAX

static void good_files_are_accepted(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t ndata, ntensors;
    } cases[] = {
        { GOOD, 16, 1 },
        { "   " GOOD, 16, 1 },
        { GOOD " \n\t ", 16, 1 },
        { "{}", 0, 0 },
        { WITH("\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]"), 4, 1 },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[0,0]},\"b\":{" D "," S "," O
          "},\"c\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[16,16]}}",
          16, 3 },
        { WITH(D "," S "," O ",\"note\":{\"x\":[1.5,null]}"), 16, 1 },
        { "{\"__metadata__\":{\"format\":\"pt\",\"k\":\"\\u00e9\"},\"a\":{" D "," S "," O "}}", 16, 1 },
        { "{\"\\u00e9\":{" O "," S "," D "}}", 16, 1 },
        { "{\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[8,16]},\"a\":{\"dtype\":\"BF16\",\"shape\":[4],"
          "\"data_offsets\":[0,8]}}",
          16, 2 },
        { WITH("\"dtype\":\"F4\",\"shape\":[4,8],\"data_offsets\":[0,16]"), 16, 1 },
        { WITH("\"dtype\":\"U8\",\"shape\":[0,1099511627776,1099511627776],\"data_offsets\":[0,0]"), 0, 1 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put("x.safetensors", cases[i].header, REAL, cases[i].ndata);
        accept("x.safetensors", cases[i].ntensors);
    }
}

static void one_defect_each(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        uint64_t nheader;
        size_t ndata;
        const char *want;
    } cases[] = {
        { "", 40, 0, "header length 40, but only 0 bytes follow" },
        { "", 0, 16, "the JSON text ends" },
        { GOOD, 4000, 16, "header length 4000" },
        { GOOD, 100000001, 16, "at most 100000000 is allowed" },
        { GOOD, 1ull << 63, 16, "at most 100000000 is allowed" },
        { GOOD, UINT64_MAX - 7, 16, "at most 100000000 is allowed" },
        { "{\"\xff\":{" D "," S "," O "}}", REAL, 16, "not valid UTF-8" },
        { "{\"\\ud800\":{" D "," S "," O "}}", REAL, 16, "surrogate" },
        { "\xef\xbb\xbf" GOOD, REAL, 16, "0xef" },
        { GOOD "}", REAL, 16, "end of the text" },
        { "[]", REAL, 0, "an object is wanted" },
        { "null", REAL, 0, "an object is wanted" },
        { "{", REAL, 0, "the JSON text ends" },
        { "{/*x*/\"a\":{" D "," S "," O "}}", REAL, 16, "a key in quotes" },
        { "{\"a\":{" D "," S "," O "},\"a\":{" D ",\"shape\":[4]," O "}}", REAL, 16, "tensor 'a' is listed twice" },
        { WITH(D "," D "," S "," O), REAL, 16, "dtype is given twice" },
        { "{\"__metadata__\":{},\"__metadata__\":{\"a\":\"b\"}}", REAL, 0, "__metadata__ is given twice" },
        { "{\"__metadata__\":{\"k\":1}}", REAL, 0, "the value of 'k' in __metadata__ is no string" },
        { "{\"__metadata__\":[\"x\"]}", REAL, 0, "an object is wanted" },
        { "{\"a\":\"F32\"}", REAL, 0, "tensor 'a'" },
        { WITH(S "," O), REAL, 16, "tensor 'a': dtype is missing" },
        { WITH(D "," O), REAL, 16, "tensor 'a': shape is missing" },
        { WITH(D "," S), REAL, 16, "tensor 'a': data_offsets is missing" },
        { WITH("\"dtype\":\"F31\"," S "," O), REAL, 16, "dtype 'F31' is none that safetensors has" },
        { WITH("\"dtype\":\"f32\"," S "," O), REAL, 16, "dtype 'f32'" },
        { WITH("\"dtype\":\"F6_E3M2\"," S "," O), REAL, 16, "6-bit floats" },
        { WITH("\"dtype\":4," S "," O), REAL, 16, "a string is wanted" },
        { WITH(D ",\"shape\":[-2,-2]," O), REAL, 16, "number -2" },
        { WITH(D ",\"shape\":[2.0,2]," O), REAL, 16, "number 2.0" },
        { WITH(D ",\"shape\":[\"2\",2]," O), REAL, 16, "a whole number" },
        { WITH(D ",\"shape\":[2,3]," O), REAL, 16, "data_offsets span 16 bytes, shape and dtype need 24" },
        { WITH("\"dtype\":\"F16\"," S "," O), REAL, 16, "shape and dtype need 8" },
        { WITH(D "," S ",\"data_offsets\":[0,16,16]"), REAL, 16, "data_offsets has 3 values" },
        { WITH(D "," S ",\"data_offsets\":[0]"), REAL, 16, "data_offsets has 1 values" },
        { WITH(D "," S ",\"data_offsets\":[16,0]"), REAL, 16, "before they begin" },
        { WITH(D "," S ",\"data_offsets\":[-16,0]"), REAL, 16, "number -16" },
        { WITH(D "," S ",\"data_offsets\":[16,32]"), REAL, 16, "the file holds 16 bytes of data" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"F32\",\"shape\":[2],"
          "\"data_offsets\":[8,16]}}",
          REAL, 16, "tensor 'b': begins at data byte 8, but what lies before it ends at 4" },
        { WITH("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]"), REAL, 16, "ends at 0" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},\"b\":{\"dtype\":\"F32\",\"shape\":[2],"
          "\"data_offsets\":[8,16]}}",
          REAL, 16, "tensor 'b': begins at data byte 8, inside another tensor that ends at 12" },
        { "{\"a\":{" D "," S "," O "},\"b\":{" D "," S "," O "}}", REAL, 16, "inside another tensor" },
        { GOOD, REAL, 17, "1 more bytes after the last tensor" },
        { "{}", REAL, 8, "8 more bytes" },
        { GOOD, REAL, 15, "the file holds 15 bytes of data" },
        { WITH(D ",\"shape\":[8589934592,8589934592]," O), REAL, 16, "overflows" },
        { WITH(D ",\"shape\":[4611686018427387904]," O), REAL, 16, "overflows" },
        { WITH(D ",\"shape\":[4611686018427387908]," O), REAL, 16, "overflows" },
        { WITH("\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[18446744073709551615,18446744073709551615]"), REAL, 0,
          "18446744073709551615" },
        { WITH("\"dtype\":\"U8\",\"shape\":[36893488147419103232],\"data_offsets\":[0,0]"), REAL, 0,
          "whole number from 0 to 2^64-1" },
        { WITH("\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]"), REAL, 2, "odd" },
        { WITH("\"dtype\":\"F4\",\"shape\":[],\"data_offsets\":[0,1]"), REAL, 1, "scalar" },
        { WITH("\"x\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["), REAL, 0,
          "deeper than" },
        { WITH(D ",\"shape\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
                 "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]"),
          REAL, 4, "more than 64 dimensions" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put("x.safetensors", cases[i].header, cases[i].nheader, cases[i].ndata);
        refuse("x.safetensors", cases[i].want);
    }
}

static void strangers_are_called_by_name(void **state)
{
    (void)state;
    tree_file(root, "x.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 16\n");
    refuse("x.safetensors", "is a git-lfs pointer");
    tree_file(root, "x.safetensors", "\n<!DOCTYPE html><html>");
    refuse("x.safetensors", "is a web page (HTML)");
    tree_file(root, "x.safetensors", "<html>404 Not Found</html>");
    refuse("x.safetensors", "is a web page (HTML)");
    tree_file(root, "x.safetensors", "PK\3\4 and so on");
    refuse("x.safetensors", "too few for a zip");
    tree_file(root, "x.safetensors", "1234567");
    refuse("x.safetensors", "file of 7 bytes");
    tree_file(root, "x.safetensors", "");
    refuse("x.safetensors", "file of 0 bytes");
    put("shard-00001-model-00001-of-00001.safetensors", "{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{}\"}}", REAL, 0);
    refuse("shard-00001-model-00001-of-00001.safetensors", "holds slices of tensors");
}

static void bytes_and_shapes_arrive(void **state)
{
    (void)state;
    struct fsdpck_source *src = NULL;
    uint8_t got[16], two[4];
    put("x.safetensors",
        "{\"q\":{\"dtype\":\"F4\",\"shape\":[2,8],\"data_offsets\":[16,24]},\"a\":{" D "," S "," O "}}", REAL, 24);
    assert_int_equal(open_name("x.safetensors", &src, NULL), 0);
    const struct fsdpck_tensor *q = fsdpck_source_find(src, "q"), *a = fsdpck_source_find(src, "a");
    assert_true(q && a);
    assert_string_equal(fsdpck_source_tensor(src, 0)->name, "q"); /* the order of the header */
    assert_int_equal(q->dtype, FSDPCK_FLOAT4_E2M1FN_X2);
    assert_int_equal(q->shape[1], 4); /* packed pairs */
    const struct fsdpck_read reads[2] = {
        { .tensor = a, .dst = got },
        { .tensor = q, .offset = (uint64_t[]){ 0, 2 }, .size = (uint64_t[]){ 2, 2 }, .dst = two },
    };
    assert_int_equal(fsdpck_source_read(src, reads, 2, NULL), 0);
    for (uint8_t i = 0; i < 16; i++)
        assert_int_equal(got[i], i);
    assert_int_equal(two[0], 18);
    assert_int_equal(two[3], 23);
    fsdpck_source_close(src);
}

/* ---- folders ---- */

#define TWO "{\"a\":{" D "," S "," O "},\"b\":{" D "," S ",\"data_offsets\":[16,32]}}"
#define F1  "model-00001-of-00001.safetensors"

static void fresh_folder(void)
{
    char *path = tree_path(root, "m");
    tree_remove(path);
    free(path);
    tree_dir(root, "m");
}

static void index_text(const char *text)
{
    tree_file(root, "m/model.safetensors.index.json", text);
}

static void an_index_that_lies_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *index, *want;
    } cases[] = {
        { "{\"metadata\":{}}", "has no weight_map" },
        { "{\"weight_map\":{\"a\":\"" F1 "\",\"b\":\"model-00002-of-00002.safetensors\"}}",
          "names the file 'model-00002-of-00002.safetensors', which is not there" },
        { "{\"weight_map\":{\"a\":\"" F1 "\",\"b\":\"" F1 "\",\"c\":\"" F1 "\"}}",
          "tensor 'c' lies in '" F1 "', which does not have it" },
        { "{\"weight_map\":{\"a\":\"" F1 "\"}}", "does not list tensor 'b', which lies in '" F1 "'" },
        { "{\"weight_map\":{\"a\":\"../../etc/passwd\",\"b\":\"" F1 "\"}}",
          "'../../etc/passwd', which is no plain path inside the folder" },
        { "{\"weight_map\":{\"a\":\"/etc/passwd\",\"b\":\"" F1 "\"}}", "no plain path" },
        { "{\"weight_map\":{\"a\":\"" F1 "\\u0000x\",\"b\":\"" F1 "\"}}", "NUL" },
        { "{\"weight_map\":{\"a\":1,\"b\":\"" F1 "\"}}", "a string is wanted" },
        { "{\"weight_map\":{\"a\":\"" F1 "\",\"a\":\"" F1 "\",\"b\":\"" F1 "\"}}", "tensor 'a' is listed twice" },
        { "{\"weight_map\":{},\"weight_map\":{}}", "weight_map is given twice" },
        { "[]", "an object is wanted" },
        { "", "the JSON text ends" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fresh_folder();
        put("m/" F1, TWO, REAL, 32);
        index_text(cases[i].index);
        refuse("m", cases[i].want);
    }
    fresh_folder();
    put("m/" F1, TWO, REAL, 32);
    put("m/x.safetensors", TWO, REAL, 32);
    index_text("{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"" F1 "\"}}");
    refuse("m", "says that tensor 'a' lies in 'x.safetensors', but it is in '" F1 "'");
    index_text("{\"weight_map\":{\"a\":\"" F1 "\",\"b\":\"" F1 "\"}}");
    refuse("m", "'x.safetensors', which it does not name, has one too");
    put("m/x.safetensors", "{\"other\":{" D "," S "," O "}}", REAL, 16);
    accept("m", 2); /* ignored */
}

static void which_files_are_the_model(void **state)
{
    (void)state;
    fresh_folder();
    put("m/one.safetensors", GOOD, REAL, 16);
    put("m/._one.safetensors", "junk", REAL, 0);
    accept("m", 1);
    put("m/two.safetensors", "{\"b\":{" D "," S "," O "}}", REAL, 16);
    accept("m", 2);
    put("m/three.safetensors", GOOD, REAL, 16);
    refuse("m", "tensor 'a' is also in 'one.safetensors'");
    put("m/model.safetensors", TWO, REAL, 32);
    accept("m", 2);
    fresh_folder();
    put("m/w1.safetensors", GOOD, REAL, 16);
    tree_file(root, "m/w.safetensors.index.json", "{\"weight_map\":{\"a\":\"w1.safetensors\"}}");
    accept("m", 1);
    tree_file(root, "m/v.safetensors.index.json", "{\"weight_map\":{\"a\":\"w1.safetensors\"}}");
    refuse("m", "has 2 indexes");
}

static void a_tied_head_is_listed_once_stored(void **state)
{
    (void)state;
    static const char *const untied[] = {
        "{\"tie_word_embeddings\": false}", "{}",
        "{\"tie_word_embeddings\": false, \"text_config\": {\"tie_word_embeddings\": true}}", "not json"
    };
    struct fsdpck_source *src = NULL;
    fresh_folder();
    put("m/model.safetensors", "{\"model.embed_tokens.weight\":{" D "," S "," O "}}", REAL, 16);
    for (size_t i = 0; i < sizeof untied / sizeof *untied; i++) {
        tree_file(root, "m/config.json", untied[i]);
        accept("m", 1);
    }
    tree_file(root, "m/config.json", "{\"text_config\": {\"tie_word_embeddings\": true}}");
    accept("m", 2);
    tree_file(root, "m/config.json", "{\"x\": [1, {}], \"tie_word_embeddings\": true}");
    assert_int_equal(open_name("m", &src, NULL), 0);
    const struct fsdpck_tensor *head = fsdpck_source_find(src, "lm_head.weight");
    assert_non_null(head);
    assert_int_equal(head->alias_of, 0);
    assert_int_equal(head->nbytes, 16);
    fsdpck_source_close(src);
    put("m/model.safetensors",
        "{\"model.embed_tokens.weight\":{" D "," S "," O "},\"lm_head.weight\":{" D "," S ",\"data_offsets\":[16,32]}}",
        REAL, 32);
    assert_int_equal(open_name("m", &src, NULL), 0);
    assert_int_equal(fsdpck_source_find(src, "lm_head.weight")->alias_of, -1); /* a separate head */
    fsdpck_source_close(src);
}

static void assets_are_what_is_no_weights(void **state)
{
    (void)state;
    struct fsdpck_source *src = NULL;
    char names[512] = "";
    fresh_folder();
    put("m/model.safetensors", GOOD, REAL, 16);
    tree_file(root, "m/config.json", "{}");
    tree_file(root, "m/tokenizer.model", "t");
    tree_file(root, "m/pytorch_model.bin", "b");
    tree_file(root, "m/pytorch_model.bin.index.json", "{}");
    tree_file(root, "m/.gitattributes", "g");
    tree_file(root, "m/1_Pooling/config.json", "{}");
    tree_file(root, "m/checkpoint-5/trainer_state.json", "{}");
    tree_file(root, "m/checkpoint-5/optimizer.pt", "o");
    assert_int_equal(open_name("m", &src, NULL), 0);
    for (size_t i = 0; i < fsdpck_source_nassets(src); i++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s ", fsdpck_source_asset(src, i)->path);
    assert_string_equal(names, "1_Pooling/config.json config.json tokenizer.model ");
    fsdpck_source_close(src);
}

static void the_fixture_opens(void **state)
{
    (void)state;
    const char *fixtures = getenv("FSDPCK_FIXTURES");
    char *path = tree_path(fixtures ? fixtures : "fixtures", "tiny-llama-tied");
    struct fsdpck_source *src = NULL;
    struct fsdpck_error err = { 0 };
    if (fsdpck_source_open(path, NULL, NULL, &src, &err) != 0)
        fail_msg("%s: %s", err.file, err.message);
    assert_string_equal(fsdpck_source_kind(src), "hf");
    assert_int_equal(fsdpck_source_nfiles(src), 3);
    assert_int_equal(fsdpck_source_find(src, "lm_head.weight")->alias_of >= 0, 1);
    assert_true(fsdpck_source_nassets(src) >= 3);
    fsdpck_source_close(src);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_files_are_accepted),
        cmocka_unit_test(one_defect_each),
        cmocka_unit_test(strangers_are_called_by_name),
        cmocka_unit_test(bytes_and_shapes_arrive),
        cmocka_unit_test(an_index_that_lies_is_refused),
        cmocka_unit_test(which_files_are_the_model),
        cmocka_unit_test(a_tied_head_is_listed_once_stored),
        cmocka_unit_test(assets_are_what_is_no_weights),
        cmocka_unit_test(the_fixture_opens),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
