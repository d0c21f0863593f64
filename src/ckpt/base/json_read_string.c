/* SPDX-License-Identifier: Apache-2.0 */
/* Reads JSON strings: escapes, surrogate pairs, and the check of UTF-8. Runs of plain text are scanned eight bytes at a
 * time. */
#include "base/json_read_impl.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

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
            fsdpck_json_unexpected(j, "a hex digit of \\uXXXX");
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
        fsdpck_json_unexpected(j, "one of \"\\/bfnrtu after a backslash");
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
    if (json_next_token(j) != '"') {
        fsdpck_json_unexpected(j, "a string");
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
            fsdpck_json_unexpected(j, "the rest of a string");
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
