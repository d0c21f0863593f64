/* SPDX-License-Identifier: Apache-2.0 */
/* The pull reader for JSON. Knows the grammar of RFC 8259, not the meaning of any document. */
#include "base/json_read.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

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

/* Fails with the text at the current position and the expected token. */
static void unexpected(struct fsdpck_json *j, const char *wanted)
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

static void skip_space(struct fsdpck_json *j)
{
    while (j->at < j->nbytes) {
        char c = j->text[j->at];
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t')
            return;
        j->at++;
    }
}

/* Returns the next byte that is not white space; 0 at the end (a NUL in the text is not a token either). */
static char next_token(struct fsdpck_json *j)
{
    skip_space(j);
    return j->at < j->nbytes ? j->text[j->at] : 0;
}

enum fsdpck_json_type fsdpck_json_peek(struct fsdpck_json *j)
{
    switch (j->failed ? 0 : next_token(j)) {
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
    if (next_token(j) != bracket) {
        unexpected(j, wanted);
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
    char c = next_token(j);
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
        unexpected(j, wanted);
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
    unexpected(j, "a value");
    return false;
}

bool fsdpck_json_next_key(struct fsdpck_json *j, const char **key)
{
    if (!next_member(j, '}', "',' or '}'"))
        return false;
    if (next_token(j) != '"') {
        unexpected(j, "a key in quotes");
        return false;
    }
    const char *s = fsdpck_json_string(j);
    if (!s)
        return false;
    if (next_token(j) != ':') {
        unexpected(j, "':'");
        return false;
    }
    j->at++;
    *key = s;
    return true;
}

#define EACH_BYTE 0x0101010101010101u

/* Returns the number of bytes at s before the first that ends a run of plain text: a quote, a backslash or a control
 * character. *bits: OR of them all. */
static size_t plain_run(const char *s, size_t n, uint64_t *bits)
{
    size_t i = 0;
    for (uint64_t x; n - i >= sizeof x; i += sizeof x) {
        memcpy(&x, s + i, sizeof x);
        uint64_t quote = x ^ EACH_BYTE * '"', backslash = x ^ EACH_BYTE * '\\';
        /* v - 1 borrows into the top bit of a byte that is 0; x - 0x20 into that of one below 0x20. A borrow from a
         * lower byte comes only from a byte that ends the run itself. */
        uint64_t stop =
            ((quote - EACH_BYTE) & ~quote) | ((backslash - EACH_BYTE) & ~backslash) | ((x - EACH_BYTE * 0x20) & ~x);
        if (stop & EACH_BYTE * 0x80)
            break;
        *bits |= x;
    }
    for (; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == '"' || c == '\\' || c < 0x20)
            break;
        *bits |= c;
    }
    return i;
}

/* Reserves nbytes after the first `used` ones, and a NUL. */
static bool reserve_scratch(struct fsdpck_json *j, size_t used, size_t nbytes)
{
    if (nbytes < j->scratch_nbytes - used)
        return true;
    size_t wanted = (used + nbytes + 64) * 2; /* both are less than the document's size */
    char *scratch = realloc(j->scratch, wanted);
    if (!scratch) {
        j->failed = true;
        fsdpck_error_nomem(j->err, wanted);
        return false;
    }
    j->scratch = scratch;
    j->scratch_nbytes = wanted;
    return true;
}

static bool hex4(struct fsdpck_json *j, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < 4; i++, j->at++) {
        char c = j->at < j->nbytes ? j->text[j->at] : 0;
        uint32_t digit;
        if (c >= '0' && c <= '9')
            digit = (uint32_t)(c - '0');
        else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))
            digit = (uint32_t)((c | 0x20) - 'a' + 10);
        else {
            unexpected(j, "a hex digit of \\uXXXX");
            return false;
        }
        *out = *out << 4 | digit;
    }
    return true;
}

/* After "\u": parses the code point, from two escapes for a surrogate pair. */
static bool unicode_escape(struct fsdpck_json *j, uint32_t *out)
{
    uint32_t high, low;
    if (!hex4(j, &high))
        return false;
    *out = high;
    if (high == 0) {
        fsdpck_json_fail(j, FSDPCK_ERR_FORMAT, "a JSON string holds a NUL (\\u0000)");
        return false;
    }
    if (high < 0xD800 || high > 0xDFFF)
        return true;
    if (high < 0xDC00 && j->nbytes - j->at >= 2 && j->text[j->at] == '\\' && j->text[j->at + 1] == 'u') {
        j->at += 2;
        if (!hex4(j, &low))
            return false;
        *out = 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
        if (low >= 0xDC00 && low <= 0xDFFF)
            return true;
    }
    fsdpck_json_fail(j, FSDPCK_ERR_FORMAT, "a JSON string holds half of a surrogate pair (\\u%04x)", (unsigned)high);
    return false;
}

static size_t encode(uint32_t c, char *out)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)((0xF00u >> n & 0xFF) | c);
    return n;
}

/* At a backslash: decodes the escaped character to UTF-8; returns 0 on failure. */
static size_t read_escape(struct fsdpck_json *j, char out[4])
{
    static const char names[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    uint32_t c;
    j->at++;
    char name = j->at < j->nbytes ? j->text[j->at] : 0;
    if (name == 'u') {
        j->at++;
        return unicode_escape(j, &c) ? encode(c, out) : 0;
    }
    const char *p = name == 0 ? NULL : strchr(names, name);
    if (!p) {
        unexpected(j, "one of \"\\/bfnrtu after a backslash");
        return 0;
    }
    j->at++;
    out[0] = meant[p - names];
    return 1;
}

/* Copies one run of plain text to the scratch. Escapes are ASCII, so no character spans two runs. */
static bool read_run(struct fsdpck_json *j, size_t *used)
{
    const char *run = j->text + j->at;
    uint64_t bits = 0;
    size_t n = plain_run(run, j->nbytes - j->at, &bits);
    if ((bits & EACH_BYTE * 0x80) != 0 && !fsdpck_utf8_valid(run, n)) {
        fsdpck_json_fail(j, FSDPCK_ERR_FORMAT, "a JSON string is not valid UTF-8");
        return false;
    }
    if (!reserve_scratch(j, *used, n))
        return false;
    memcpy(j->scratch + *used, run, n);
    *used += n;
    j->at += n;
    return true;
}

const char *fsdpck_json_string(struct fsdpck_json *j)
{
    if (j->failed)
        return NULL;
    if (next_token(j) != '"') {
        unexpected(j, "a string");
        return NULL;
    }
    j->at++;
    for (size_t used = 0; read_run(j, &used);) {
        char c = j->at < j->nbytes ? j->text[j->at] : 0;
        if (c == '"') {
            j->at++;
            j->scratch[used] = '\0';
            return j->scratch;
        }
        if (c != '\\') {
            unexpected(j, "the rest of a string");
            return NULL;
        }
        char utf8[4];
        size_t n = read_escape(j, utf8);
        if (n == 0 || !reserve_scratch(j, used, n))
            return NULL;
        memcpy(j->scratch + used, utf8, n);
        used += n;
    }
    return NULL;
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
        unexpected(j, "a digit");
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
            unexpected(j, "a whole number from 0");
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
            unexpected(j, "true or false");
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
    case FSDPCK_JSON_BAD: unexpected(j, "a value"); break;
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
    skip_space(j);
    size_t begin = j->at;
    fsdpck_json_skip(j);
    *text = j->text + begin;
    *nbytes = j->at - begin;
}

void fsdpck_json_end(struct fsdpck_json *j)
{
    if (j->failed)
        return;
    skip_space(j);
    if (j->at < j->nbytes)
        unexpected(j, "the end of the text");
}
