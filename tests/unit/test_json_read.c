/* SPDX-License-Identifier: Apache-2.0 */
/* The streaming JSON reader: what it accepts and refuses, against a list and, on random documents, against jansson. */
#include "base/json_read.h"
#include "base/json_write.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "draw.h"

/* Reads text from memory of its exact size, so that a sanitizer detects reads beyond it. */
static bool accepts(const char *text, size_t nbytes, struct fsdpck_error *err)
{
    struct fsdpck_json j;
    char *exact = malloc(nbytes + (nbytes == 0));
    assert_non_null(exact);
    memcpy(exact, text, nbytes);
    fsdpck_json_begin(&j, "doc", 0, exact, nbytes, err);
    fsdpck_json_skip(&j);
    fsdpck_json_end(&j);
    bool ok = !j.failed;
    fsdpck_json_free(&j);
    free(exact);
    assert_int_equal(err->code == 0, ok);
    return ok;
}

static void accepted(void **state)
{
    (void)state;
    static const char *const docs[] = {
        "{}",
        "[]",
        " [ ] ",
        "0",
        "-0",
        "1",
        "-1.5e+10",
        "1E5",
        "0.0",
        "123456789012345678901234567890",
        "\"\"",
        "true",
        "false",
        "null",
        "\t\r\n {\"a\" : [ 1 , 2 ] }\n",
        "[[[[]]]]",
        "{\"a\":{\"a\":{}}}",
        "\"\\u0041\\n\\\"\\\\\\/\\b\\f\\n\\r\\t\"",
        "\"\\ud83d\\uDE00\"",
        "\"\x7f\"",
        "\"caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\"",
        "{\"\":\"\"}",
        "[1,[2,{\"x\":null}],\"y\"]",
        "{\"a\":1,\"a\":2}",
        "\"\\uFFFF\"",
        "\"\xf4\x8f\xbf\xbf\"",
        "\"\xed\x9f\xbf\xee\x80\x80\"",
        "[true,false,null]",
    };
    for (size_t i = 0; i < sizeof docs / sizeof *docs; i++) {
        struct fsdpck_error err = { 0 };
        if (!accepts(docs[i], strlen(docs[i]), &err))
            fail_msg("%s: %s", docs[i], err.message);
    }
}

static void refused(void **state)
{
    (void)state;
    static const struct {
        const char *doc;
        uint64_t offset;
        const char *message;
    } table[] = {
        { "", 0, "the JSON text ends where a value is wanted" },
        { "  ", 2, "the JSON text ends where a value is wanted" },
        { "{", 1, "the JSON text ends where a key in quotes is wanted" },
        { "[1,2", 4, "the JSON text ends where ',' or ']' is wanted" },
        { "[1,]", 3, "']' in JSON where a value is wanted" },
        { "[,1]", 1, "',' in JSON where a value is wanted" },
        { "[1 2]", 3, "'2' in JSON where ',' or ']' is wanted" },
        { "{\"a\":1,}", 7, "'}' in JSON where a key in quotes is wanted" },
        { "{\"a\" 1}", 5, "'1' in JSON where ':' is wanted" },
        { "{\"a\":}", 5, "'}' in JSON where a value is wanted" },
        { "{a:1}", 1, "'a' in JSON where a key in quotes is wanted" },
        { "{\"a\":1 \"b\":2}", 7, "'\"' in JSON where ',' or '}' is wanted" },
        { "[}", 1, "'}' in JSON where a value is wanted" },
        { "{]", 1, "']' in JSON where a key in quotes is wanted" },
        { "[] []", 3, "'[' in JSON where the end of the text is wanted" },
        { "1 x", 2, "'x' in JSON where the end of the text is wanted" },
        { "// c\n1", 0, "'/' in JSON where a value is wanted" },
        { "\xef\xbb\xbf{}", 0, "byte 0xef in JSON where a value is wanted" },
        { "nul", 0, "a JSON value that begins like 'null' but is not" },
        { "True", 0, "'T' in JSON where a value is wanted" },
        { "tru\xc3\xa9", 0, "a JSON value that begins like 'true' but is not" },
        { "truee", 4, "'e' in JSON where the end of the text is wanted" },
        { "NaN", 0, "'N' in JSON where a value is wanted" },
        { "01", 2, "a JSON number begins with 0" },
        { "-", 1, "the JSON text ends where a digit is wanted" },
        { "+1", 0, "'+' in JSON where a value is wanted" },
        { ".5", 0, "'.' in JSON where a value is wanted" },
        { "1.", 2, "the JSON text ends where a digit is wanted" },
        { "1e", 2, "the JSON text ends where a digit is wanted" },
        { "1e+x", 3, "'x' in JSON where a digit is wanted" },
        { "0x10", 1, "'x' in JSON where the end of the text is wanted" },
        { "\"abc", 4, "the JSON text ends where the rest of a string is wanted" },
        { "\"abc\\", 5, "the JSON text ends where one of \"\\/bfnrtu after a backslash is wanted" },
        { "\"\\x\"", 2, "'x' in JSON where one of \"\\/bfnrtu after a backslash is wanted" },
        { "\"a\nb\"", 2, "byte 0x0a in JSON where the rest of a string is wanted" },
        { "\"0123456789\x1f\"", 11, "byte 0x1f in JSON where the rest of a string is wanted" },
        { "'a'", 0, "''' in JSON where a value is wanted" },
        { "\"\\u12g4\"", 5, "'g' in JSON where a hex digit of \\uXXXX is wanted" },
        { "\"\\u12", 5, "the JSON text ends where a hex digit of \\uXXXX is wanted" },
        { "\"\\u0000\"", 7, "a JSON string holds a NUL (\\u0000)" },
        { "\"\\ud800\"", 7, "a JSON string holds half of a surrogate pair (\\ud800)" },
        { "\"\\ud800x\"", 7, "a JSON string holds half of a surrogate pair (\\ud800)" },
        { "\"\\ud800\\u0041\"", 13, "a JSON string holds half of a surrogate pair (\\ud800)" },
        { "\"\\ud800\\ud800\"", 13, "a JSON string holds half of a surrogate pair (\\ud800)" },
        { "\"\\udc00\"", 7, "a JSON string holds half of a surrogate pair (\\udc00)" },
        { "\"\xff\"", 1, "a JSON string is not valid UTF-8" },
        { "\"\xc3\"", 1, "a JSON string is not valid UTF-8" },
        { "\"\xc3", 1, "a JSON string is not valid UTF-8" },
        { "\"\xc3\\u00a9\"", 1, "a JSON string is not valid UTF-8" },
        { "\"\xc0\xaf\"", 1, "a JSON string is not valid UTF-8" },
        { "\"\xed\xa0\x80\"", 1, "a JSON string is not valid UTF-8" },
        { "\"\xf4\x90\x80\x80\"", 1, "a JSON string is not valid UTF-8" },
        { "\xc3\xa9", 0, "byte 0xc3 in JSON where a value is wanted" },
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct fsdpck_error err = { 0 };
        if (accepts(table[i].doc, strlen(table[i].doc), &err))
            fail_msg("accepted: %s", table[i].doc);
        assert_int_equal(err.code, FSDPCK_ERR_FORMAT);
        assert_string_equal(err.message, table[i].message);
        assert_int_equal(err.offset, table[i].offset);
        assert_true(err.has_offset);
    }
    struct fsdpck_error nul = { 0 };
    assert_false(accepts("[1\0]", 4, &nul));
    struct fsdpck_error in_string = { 0 };
    assert_false(accepts("\"a\0b\"", 5, &in_string));
}

static void nesting_has_a_cap(void **state)
{
    (void)state;
    char text[400];
    for (size_t depth = FSDPCK_JSON_MAX_DEPTH; depth <= FSDPCK_JSON_MAX_DEPTH + 1; depth++) {
        struct fsdpck_error err = { 0 };
        size_t n = 0;
        for (size_t d = 0; d < depth; d++)
            n += (size_t)sprintf(text + n, d % 3 == 0 ? "{\"\":" : "[");
        text[n++] = '7';
        for (size_t d = depth; d-- > 0;)
            text[n++] = d % 3 == 0 ? '}' : ']';
        assert_int_equal(accepts(text, n, &err), depth == FSDPCK_JSON_MAX_DEPTH);
        assert_int_equal(err.code, depth == FSDPCK_JSON_MAX_DEPTH ? 0 : FSDPCK_ERR_LIMIT);
    }
}

static void a_header_is_pulled(void **state)
{
    (void)state;
    const char *text = " {\"__metadata__\": {\"format\":\"pt\"}, \"a\\u002eb\": {\"shape\":[2, 18446744073709551615 "
                       ",0],\"big\":true,\"end\":false}}\n";
    struct fsdpck_json j;
    struct fsdpck_error err = { 0 };
    const char *key, *raw;
    size_t nraw;
    fsdpck_json_begin(&j, "f", 8, text, strlen(text), &err);
    assert_int_equal(fsdpck_json_peek(&j), FSDPCK_JSON_OBJECT);
    assert_true(fsdpck_json_object(&j));
    assert_true(fsdpck_json_next_key(&j, &key));
    assert_string_equal(key, "__metadata__");
    fsdpck_json_raw(&j, &raw, &nraw);
    assert_int_equal(nraw, strlen("{\"format\":\"pt\"}"));
    assert_memory_equal(raw, "{\"format\":\"pt\"}", nraw);
    assert_true(fsdpck_json_next_key(&j, &key));
    assert_string_equal(key, "a.b");
    assert_true(fsdpck_json_object(&j));
    assert_true(fsdpck_json_next_key(&j, &key));
    assert_int_equal(fsdpck_json_peek(&j), FSDPCK_JSON_ARRAY);
    assert_true(fsdpck_json_array(&j));
    static const uint64_t want[] = { 2, UINT64_MAX, 0 };
    for (size_t i = 0; i < 3; i++) {
        assert_true(fsdpck_json_next_item(&j));
        assert_int_equal(fsdpck_json_peek(&j), FSDPCK_JSON_NUMBER);
        assert_true(fsdpck_json_u64(&j) == want[i]);
    }
    assert_false(fsdpck_json_next_item(&j));
    assert_true(fsdpck_json_next_key(&j, &key));
    assert_true(fsdpck_json_bool(&j));
    assert_true(fsdpck_json_next_key(&j, &key));
    assert_false(fsdpck_json_bool(&j));
    assert_false(fsdpck_json_next_key(&j, &key));
    assert_false(fsdpck_json_next_key(&j, &key));
    fsdpck_json_end(&j);
    assert_false(j.failed);
    fsdpck_json_free(&j);
}

static void wrong_types_are_said(void **state)
{
    (void)state;
    static const struct {
        char want; /* object, list, string, unsigned, bool */
        const char *doc, *message;
    } table[] = {
        { 'o', "[]", "'[' in JSON where an object is wanted" },
        { 'l', "{}", "'{' in JSON where a list is wanted" },
        { 's', "1", "'1' in JSON where a string is wanted" },
        { 'u', "\"1\"", "'\"' in JSON where a whole number from 0 is wanted" },
        { 'u', "-1", "number -1 in JSON where a whole number from 0 to 2^64-1 is wanted" },
        { 'u', "-0", "number -0 in JSON where a whole number from 0 to 2^64-1 is wanted" },
        { 'u', "1.0", "number 1.0 in JSON where a whole number from 0 to 2^64-1 is wanted" },
        { 'u', "1e3", "number 1e3 in JSON where a whole number from 0 to 2^64-1 is wanted" },
        { 'u', "18446744073709551616",
          "number 18446744073709551616 in JSON where a whole number from 0 to 2^64-1 is wanted" },
        { 'u', "18446744073709551620",
          "number 18446744073709551620 in JSON where a whole number from 0 to 2^64-1 is wanted" },
        { 'u', "00", "a JSON number begins with 0" },
        { 'u', "", "the JSON text ends where a whole number from 0 is wanted" },
        { 'b', "null", "'n' in JSON where true or false is wanted" },
        { 'b', "falsy", "a JSON value that begins like 'false' but is not" },
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct fsdpck_json j;
        struct fsdpck_error err = { 0 };
        fsdpck_json_begin(&j, "f", 100, table[i].doc, strlen(table[i].doc), &err);
        switch (table[i].want) {
        case 'o': assert_false(fsdpck_json_object(&j)); break;
        case 'l': assert_false(fsdpck_json_array(&j)); break;
        case 's': assert_null(fsdpck_json_string(&j)); break;
        case 'u': assert_int_equal(fsdpck_json_u64(&j), 0); break;
        default: assert_false(fsdpck_json_bool(&j)); break;
        }
        assert_true(j.failed);
        assert_string_equal(err.message, table[i].message);
        assert_true(err.offset >= 100 && err.offset <= 102);
        fsdpck_json_free(&j);
    }
}

static void after_a_failure_calls_do_nothing(void **state)
{
    (void)state;
    struct fsdpck_json j;
    struct fsdpck_error err = { 0 };
    const char *key, *raw;
    size_t nraw;
    fsdpck_json_begin(&j, "f", 0, "[1,2]", 5, &err);
    assert_true(fsdpck_json_array(&j));
    assert_true(fsdpck_json_next_item(&j));
    fsdpck_json_fail(&j, FSDPCK_ERR_UNSUPPORTED, "no %s", "ones");
    fsdpck_json_fail(&j, FSDPCK_ERR_LIMIT, "second");
    assert_int_equal(fsdpck_json_peek(&j), FSDPCK_JSON_BAD);
    assert_int_equal(fsdpck_json_u64(&j), 0);
    assert_false(fsdpck_json_next_item(&j) || fsdpck_json_next_key(&j, &key) || fsdpck_json_bool(&j));
    assert_false(fsdpck_json_object(&j) || fsdpck_json_array(&j));
    assert_null(fsdpck_json_string(&j));
    fsdpck_json_skip(&j);
    fsdpck_json_raw(&j, &raw, &nraw);
    fsdpck_json_end(&j);
    assert_int_equal(nraw, 0);
    assert_int_equal(err.code, FSDPCK_ERR_UNSUPPORTED);
    assert_string_equal(err.message, "no ones");
    assert_int_equal(err.offset, 1);
    fsdpck_json_free(&j);
}

/* Builds the next value with jansson. Recursion is safe, because the reader caps the depth. */
static json_t *build(struct fsdpck_json *j)
{
    json_t *v = NULL;
    const char *key, *raw;
    size_t nraw;
    switch (fsdpck_json_peek(j)) {
    case FSDPCK_JSON_OBJECT:
        v = json_object();
        for (fsdpck_json_object(j); fsdpck_json_next_key(j, &key);) {
            char *copy = strdup(key);
            json_t *member = build(j);
            if (member != NULL)
                json_object_set_new(v, copy, member);
            free(copy);
        }
        return v;
    case FSDPCK_JSON_ARRAY:
        v = json_array();
        for (fsdpck_json_array(j); fsdpck_json_next_item(j);)
            json_array_append_new(v, build(j));
        return v;
    case FSDPCK_JSON_STRING: key = fsdpck_json_string(j); return key == NULL ? NULL : json_string(key);
    case FSDPCK_JSON_TRUE:
    case FSDPCK_JSON_FALSE: return json_boolean(fsdpck_json_bool(j));
    default: break;
    }
    fsdpck_json_raw(j, &raw, &nraw);
    return j->failed ? NULL : json_loadb(raw, nraw, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL, NULL);
}

static void random_string(struct fsdpck_text *t)
{
    static const char *const pieces[] = { "weight",
                                          ".",
                                          "model.layers.",
                                          "\\n",
                                          "\\u00e9",
                                          "\\ud83d\\ude00",
                                          "\xc3\xa9",
                                          "\xe2\x82\xac",
                                          "\xf0\x9f\x98\x80",
                                          "\\\\",
                                          "\\\"",
                                          "\\/",
                                          "0123456789abcdefghijklmnop",
                                          " ",
                                          "\x7f",
                                          "\\u001f" };
    fsdpck_text_add(t, "\"", 1);
    for (uint64_t n = draw(6); n > 0; n--) {
        const char *s = pieces[draw(sizeof pieces / sizeof *pieces)];
        fsdpck_text_add(t, s, strlen(s));
    }
    fsdpck_text_add(t, "\"", 1);
}

static void random_space(struct fsdpck_text *t)
{
    if (draw(4) == 0)
        fsdpck_text_add(t, &" \n\t\r"[draw(4)], 1);
}

static void random_value(struct fsdpck_text *t, unsigned depth)
{
    static const char *const scalars[] = { "0",    "-0",   "12",    "1.5",  "-2e3",
                                           "1E-2", "true", "false", "null", "184467440737095516150" };
    random_space(t);
    uint64_t kind = draw(depth == 0 ? 2 : 4);
    if (kind == 0) {
        const char *s = scalars[draw(sizeof scalars / sizeof *scalars)];
        fsdpck_text_add(t, s, strlen(s));
    } else if (kind == 1) {
        random_string(t);
    } else {
        fsdpck_text_add(t, kind == 2 ? "[" : "{", 1);
        random_space(t);
        uint64_t n = draw(5);
        for (uint64_t i = 0; i < n; i++) {
            if (i > 0)
                fsdpck_text_add(t, ",", 1);
            random_space(t);
            if (kind == 3) {
                random_string(t);
                random_space(t);
                fsdpck_text_add(t, ":", 1);
            }
            random_value(t, depth - 1);
        }
        fsdpck_text_add(t, kind == 2 ? "]" : "}", 1);
    }
    random_space(t);
}

/* One change, which breaks most documents and keeps some valid. */
static void mutate(struct fsdpck_text *t)
{
    static const char bytes[] = "\"\\{}[],:u0159dD-+.eE tfn\n\x01\x80\xc3\xed\xff";
    size_t at = (size_t)draw(t->nbytes);
    switch (draw(3)) {
    case 0: t->data[at] = bytes[draw(sizeof bytes - 1)]; break;
    case 1: memmove(t->data + at, t->data + at + 1, --t->nbytes - at); break;
    default: t->nbytes = at; break;
    }
}

static void same_as_jansson(void **state)
{
    (void)state;
    size_t nvalid = 0, ninvalid = 0;
    for (int i = 0; i < 20000; i++) {
        struct fsdpck_text t = { 0 };
        random_value(&t, 4);
        assert_int_equal(fsdpck_text_check(&t, NULL), 0);
        if (i % 2 == 1)
            mutate(&t);
        json_error_t why;
        json_t *want = json_loadb(t.data, t.nbytes, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL, &why);
        if (want == NULL && json_error_code(&why) == json_error_numeric_overflow) { /* jansson's limit, not JSON's */
            fsdpck_text_free(&t);
            continue;
        }
        struct fsdpck_error err = { 0 };
        bool ok = accepts(t.data, t.nbytes, &err);
        if (ok != (want != NULL))
            fail_msg("%s by us (%s), %s by jansson (%s): %.*s", ok ? "accepted" : "refused", err.message,
                     want ? "accepted" : "refused", why.text, (int)t.nbytes, t.data);
        struct fsdpck_json j;
        struct fsdpck_error again = { 0 };
        fsdpck_json_begin(&j, "doc", 0, t.data, t.nbytes, &again);
        json_t *got = build(&j);
        fsdpck_json_end(&j);
        assert_int_equal(j.failed, !ok);
        if (ok && !json_equal(got, want))
            fail_msg("read differently from jansson: %.*s", (int)t.nbytes, t.data);
        ok ? nvalid++ : ninvalid++;
        fsdpck_json_free(&j);
        json_decref(got);
        json_decref(want);
        fsdpck_text_free(&t);
    }
    assert_true(nvalid > 10000 && ninvalid > 3000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepted),
        cmocka_unit_test(refused),
        cmocka_unit_test(nesting_has_a_cap),
        cmocka_unit_test(a_header_is_pulled),
        cmocka_unit_test(wrong_types_are_said),
        cmocka_unit_test(after_a_failure_calls_do_nothing),
        cmocka_unit_test(same_as_jansson),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
