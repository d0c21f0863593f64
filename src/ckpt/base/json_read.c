/* SPDX-License-Identifier: Apache-2.0 */
/* The pull reader for JSON. Knows the grammar of RFC 8259, not the meaning of any document. */
#include "base/json_read_impl.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fsdpck_json_begin(struct fsdpck_json *j, const char *file, uint64_t base, const char *text, size_t nbytes,
                       struct fsdpck_error *err)
{
    *j = (struct fsdpck_json){ .file = file, .base = base, .text = text, .nbytes = nbytes, .err = err };
}

void fsdpck_json_free(struct fsdpck_json *j)
{
    free(j->scratch);
    j->scratch = NULL;
    j->scratch_nbytes = 0;
}

void fsdpck_json_fail(struct fsdpck_json *j, int code, const char *fmt, ...)
{
    char message[512];
    if (j->failed)
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    j->failed = true;
    fsdpck_error_at(j->err, code, j->file, j->base + j->at, "%s", message);
}

void fsdpck_json_unexpected(struct fsdpck_json *j, const char *wanted)
{
    if (j->at == j->nbytes) {
        fsdpck_json_fail(j, FSDPCK_ERR_FORMAT, "the JSON text ends where %s is wanted", wanted);
        return;
    }
    unsigned char c = (unsigned char)j->text[j->at];
    if (c > 0x20 && c < 0x7F)
        fsdpck_json_fail(j, FSDPCK_ERR_FORMAT, "'%c' in JSON where %s is wanted", c, wanted);
    else
        fsdpck_json_fail(j, FSDPCK_ERR_FORMAT, "byte 0x%02x in JSON where %s is wanted", c, wanted);
}

enum fsdpck_json_type fsdpck_json_peek(struct fsdpck_json *j)
{
    switch (j->failed ? 0 : json_next_token(j)) {
    case '{': return FSDPCK_JSON_OBJECT;
    case '[': return FSDPCK_JSON_ARRAY;
    case '"': return FSDPCK_JSON_STRING;
    case 't': return FSDPCK_JSON_TRUE;
    case 'f': return FSDPCK_JSON_FALSE;
    case 'n': return FSDPCK_JSON_NULL;
    case '-':
    case '0':
    case '1':
    case '2':
    case '3':
    case '4':
    case '5':
    case '6':
    case '7':
    case '8':
    case '9': return FSDPCK_JSON_NUMBER;
    default: return FSDPCK_JSON_BAD;
    }
}

static bool open_container(struct fsdpck_json *j, char bracket, const char *wanted)
{
    if (j->failed)
        return false;
    if (json_next_token(j) != bracket) {
        fsdpck_json_unexpected(j, wanted);
        return false;
    }
    if (j->depth == FSDPCK_JSON_MAX_DEPTH) {
        fsdpck_json_fail(j, FSDPCK_ERR_LIMIT, "JSON is nested deeper than %d levels", FSDPCK_JSON_MAX_DEPTH);
        return false;
    }
    j->at++;
    j->first[++j->depth] = true;
    return true;
}

bool fsdpck_json_object(struct fsdpck_json *j)
{
    return open_container(j, '{', "an object");
}

bool fsdpck_json_array(struct fsdpck_json *j)
{
    return open_container(j, '[', "a list");
}

/* Steps to the next member of the open container, over a comma unless it is the first; false at its end, or on
 * failure. */
static bool next_member(struct fsdpck_json *j, char close, const char *wanted)
{
    if (j->failed)
        return false;
    assert(j->depth > 0);
    char c = json_next_token(j);
    if (c == close) {
        j->at++;
        j->depth--;
        return false;
    }
    if (j->first[j->depth]) {
        j->first[j->depth] = false;
        return true;
    }
    if (c != ',') {
        fsdpck_json_unexpected(j, wanted);
        return false;
    }
    j->at++;
    return true;
}

bool fsdpck_json_next_item(struct fsdpck_json *j)
{
    if (!next_member(j, ']', "',' or ']'"))
        return false;
    if (fsdpck_json_peek(j) != FSDPCK_JSON_BAD)
        return true;
    fsdpck_json_unexpected(j, "a value");
    return false;
}

bool fsdpck_json_next_key(struct fsdpck_json *j, const char **key)
{
    if (!next_member(j, '}', "',' or '}'"))
        return false;
    if (json_next_token(j) != '"') {
        fsdpck_json_unexpected(j, "a key in quotes");
        return false;
    }
    const char *s = fsdpck_json_string(j);
    if (!s)
        return false;
    if (json_next_token(j) != ':') {
        fsdpck_json_unexpected(j, "':'");
        return false;
    }
    j->at++;
    *key = s;
    return true;
}

static bool at_digit(const struct fsdpck_json *j)
{
    return j->at < j->nbytes && j->text[j->at] >= '0' && j->text[j->at] <= '9';
}

/* Skips at least one digit; refuses a leading 0 if !zeros. */
static bool skip_digits(struct fsdpck_json *j, bool zeros)
{
    size_t begin = j->at;
    while (at_digit(j))
        j->at++;
    if (j->at > begin && (zeros || j->text[begin] != '0' || j->at == begin + 1))
        return true;
    if (j->at > begin)
        fsdpck_json_fail(j, FSDPCK_ERR_FORMAT, "a JSON number begins with 0");
    else
        fsdpck_json_unexpected(j, "a digit");
    return false;
}

/* Skips a number; *integer: it has no sign, fraction or exponent. */
static bool skip_number(struct fsdpck_json *j, bool *integer)
{
    *integer = j->text[j->at] != '-';
    j->at += !*integer;
    if (!skip_digits(j, false))
        return false;
    if (j->at < j->nbytes && j->text[j->at] == '.') {
        *integer = false;
        j->at++;
        if (!skip_digits(j, true))
            return false;
    }
    if (j->at < j->nbytes && (j->text[j->at] | 0x20) == 'e') {
        *integer = false;
        j->at++;
        if (j->at < j->nbytes && (j->text[j->at] == '+' || j->text[j->at] == '-'))
            j->at++;
        return skip_digits(j, true);
    }
    return true;
}

uint64_t fsdpck_json_u64(struct fsdpck_json *j)
{
    bool integer;
    uint64_t value = 0;
    if (fsdpck_json_peek(j) != FSDPCK_JSON_NUMBER) {
        if (!j->failed)
            fsdpck_json_unexpected(j, "a whole number from 0");
        return 0;
    }
    size_t begin = j->at;
    if (!skip_number(j, &integer))
        return 0;
    for (size_t i = begin; i < j->at && integer; i++)
        integer = !__builtin_mul_overflow(value, 10u, &value) &&
                  !__builtin_add_overflow(value, (uint64_t)(j->text[i] - '0'), &value);
    if (integer)
        return value;
    int shown = (int)(j->at - begin < 40 ? j->at - begin : 40);
    j->at = begin;
    fsdpck_json_fail(j, FSDPCK_ERR_FORMAT, "number %.*s in JSON where a whole number from 0 to 2^64-1 is wanted", shown,
                     j->text + begin);
    return 0;
}

static bool literal(struct fsdpck_json *j, const char *word)
{
    size_t n = strlen(word);
    if (j->nbytes - j->at >= n && memcmp(j->text + j->at, word, n) == 0) {
        j->at += n;
        return true;
    }
    fsdpck_json_fail(j, FSDPCK_ERR_FORMAT, "a JSON value that begins like '%s' but is not", word);
    return false;
}

bool fsdpck_json_bool(struct fsdpck_json *j)
{
    switch (fsdpck_json_peek(j)) {
    case FSDPCK_JSON_TRUE: return literal(j, "true");
    case FSDPCK_JSON_FALSE: literal(j, "false"); return false;
    default:
        if (!j->failed)
            fsdpck_json_unexpected(j, "true or false");
        return false;
    }
}

/* Skips the value at the current position; of a container only its opening bracket. */
static void enter_value(struct fsdpck_json *j, uint64_t *objects)
{
    bool integer;
    switch (fsdpck_json_peek(j)) {
    case FSDPCK_JSON_OBJECT:
        if (fsdpck_json_object(j))
            *objects |= (uint64_t)1 << (j->depth - 1);
        break;
    case FSDPCK_JSON_ARRAY:
        if (fsdpck_json_array(j))
            *objects &= ~((uint64_t)1 << (j->depth - 1));
        break;
    case FSDPCK_JSON_STRING: fsdpck_json_string(j); break;
    case FSDPCK_JSON_NUMBER: skip_number(j, &integer); break;
    case FSDPCK_JSON_TRUE: literal(j, "true"); break;
    case FSDPCK_JSON_FALSE: literal(j, "false"); break;
    case FSDPCK_JSON_NULL: literal(j, "null"); break;
    case FSDPCK_JSON_BAD: fsdpck_json_unexpected(j, "a value"); break;
    }
}

void fsdpck_json_skip(struct fsdpck_json *j)
{
    _Static_assert(FSDPCK_JSON_MAX_DEPTH <= 64, "one bit a level");
    uint64_t objects = 0; /* bit d: the container at depth d + 1 is an object; this replaces recursion */
    uint32_t outside = j->depth;
    const char *key;
    if (j->failed)
        return;
    enter_value(j, &objects);
    while (!j->failed && j->depth > outside) {
        bool object = objects >> (j->depth - 1) & 1;
        if (object ? fsdpck_json_next_key(j, &key) : fsdpck_json_next_item(j))
            enter_value(j, &objects);
    }
}

void fsdpck_json_raw(struct fsdpck_json *j, const char **text, size_t *nbytes)
{
    json_skip_space(j);
    size_t begin = j->at;
    fsdpck_json_skip(j);
    *text = j->text + begin;
    *nbytes = j->at - begin;
}

void fsdpck_json_end(struct fsdpck_json *j)
{
    if (j->failed)
        return;
    json_skip_space(j);
    if (j->at < j->nbytes)
        fsdpck_json_unexpected(j, "the end of the text");
}
