/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON reader against jansson: both accept the same documents, with the same values. Known differences: jansson has
 * no depth cap of 64, refuses numbers that fit neither long long nor double, and ignores a NUL byte after a number. */
#include <string.h>

#include <jansson.h>

#include "fuzz.h"
#include "base/json_read.h"

/* Returns NULL if jansson cannot hold the number. */
static json_t *build_number(struct fsdpck_json *j)
{
    const char *text;
    size_t nbytes;
    struct fsdpck_json own;
    struct fsdpck_error err = { 0 };
    fsdpck_json_raw(j, &text, &nbytes);
    if (j->failed)
        return NULL;
    json_t *number = json_loadb(text, nbytes, JSON_DECODE_ANY, NULL);
    fsdpck_json_begin(&own, "number", 0, text, nbytes, &err);
    uint64_t value = fsdpck_json_u64(&own);
    FUZZ_CHECK(own.failed || !json_is_integer(number) || (uint64_t)json_integer_value(number) == value);
    FUZZ_CHECK(!own.failed || !json_is_integer(number) || text[0] == '-');
    fsdpck_json_free(&own);
    return number;
}

static json_t *build(struct fsdpck_json *j);

static json_t *build_object(struct fsdpck_json *j)
{
    json_t *object = json_object();
    const char *key;
    fsdpck_json_object(j);
    while (fsdpck_json_next_key(j, &key)) {
        char *name = strdup(key);
        json_t *value = build(j);
        FUZZ_CHECK(name && (j->failed || json_object_set(object, name, value ? value : json_null()) == 0));
        json_decref(value);
        free(name);
    }
    return object;
}

static json_t *build_array(struct fsdpck_json *j)
{
    json_t *array = json_array();
    fsdpck_json_array(j);
    while (fsdpck_json_next_item(j)) {
        json_t *value = build(j);
        json_array_append(array, value ? value : json_null());
        json_decref(value);
    }
    return array;
}

static json_t *build(struct fsdpck_json *j)
{
    const char *text;
    switch (fsdpck_json_peek(j)) {
    case FSDPCK_JSON_OBJECT: return build_object(j);
    case FSDPCK_JSON_ARRAY: return build_array(j);
    case FSDPCK_JSON_STRING: return (text = fsdpck_json_string(j)) ? json_string(text) : NULL;
    case FSDPCK_JSON_NUMBER: return build_number(j);
    case FSDPCK_JSON_TRUE:
    case FSDPCK_JSON_FALSE: return json_boolean(fsdpck_json_bool(j));
    case FSDPCK_JSON_NULL:
    case FSDPCK_JSON_BAD: fsdpck_json_skip(j); return json_null();
    }
    return NULL;
}

/* Skipping a value refuses exactly what reading it refuses. */
static void check_skip(const char *text, size_t nbytes, bool failed)
{
    struct fsdpck_error err = { 0 };
    struct fsdpck_json j;
    fsdpck_json_begin(&j, "x", 0, text, nbytes, &err);
    fsdpck_json_skip(&j);
    fsdpck_json_end(&j);
    FUZZ_CHECK(j.failed == failed && (err.code != 0) == failed);
    fsdpck_json_free(&j);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    char *text = (char *)fuzz_copy(data, nbytes); /* without a terminating NUL */
    struct fsdpck_error err = { 0 };
    struct fsdpck_json j;
    json_error_t why;
    fsdpck_json_begin(&j, "x", 0, text, nbytes, &err);
    json_t *ours = build(&j), *theirs = json_loadb(text, nbytes, JSON_DECODE_ANY, &why);
    fsdpck_json_end(&j);
    if (j.failed)
        FUZZ_CHECK(!theirs || err.code == FSDPCK_ERR_LIMIT || memchr(text, '\0', nbytes));
    else
        FUZZ_CHECK(theirs ? json_equal(ours, theirs) : json_error_code(&why) == json_error_numeric_overflow);
    check_skip(text, nbytes, j.failed);
    fsdpck_json_free(&j);
    json_decref(ours);
    json_decref(theirs);
    free(text);
    return 0;
}
