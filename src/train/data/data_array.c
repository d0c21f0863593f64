/* SPDX-License-Identifier: Apache-2.0 */
/* Follows strings and brackets, and no other part of JSON. A comma or the closing bracket at the outermost level ends a
 * line. */
#include "data/data_array.h"

#include <string.h>

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

bool data_array_begins(const char *text, size_t nbytes)
{
    size_t i = 0;
    while (i < nbytes && is_space(text[i]))
        i++;
    return i < nbytes && text[i] == '[';
}

static int malformed(const struct data_array *a, const char *path, const char *what, struct fsdpck_error *err)
{
    return fsdpck_error_at(err, FSDPCK_ERR_FORMAT, path, a->at, "%s", what);
}

/* Updates the state for a byte outside strings: what it opens or closes. */
static void follow(struct data_array *a, char c)
{
    a->in_string = c == '"';
    a->depth += c == '[' || c == '{';
    a->depth -= c == ']' || c == '}';
}

/* Handles a byte between the outermost brackets. *put: the byte to emit, or 0. */
static int outermost(struct data_array *a, const char *path, char c, char *put, struct fsdpck_error *err)
{
    *put = is_space(c) ? 0 : c;
    if (is_space(c))
        return 0;
    if (c == '}')
        return malformed(a, path, "a brace is closed that was not opened", err);
    if (c != ',' && c != ']') {
        a->in_element = true;
        follow(a, c);
        return 0;
    }
    if (!a->in_element && (c == ',' || a->after_comma))
        return malformed(a, path, "the array has a comma without an element", err);
    *put = a->in_element ? '\n' : 0;
    a->in_element = false;
    a->after_comma = c == ',';
    a->ended = c == ']';
    return 0;
}

static int take(struct data_array *a, const char *path, char c, char *put, struct fsdpck_error *err)
{
    *put = c;
    if (a->in_string) { /* emits '\r' for a line feed in a string: the parser rejects either */
        a->in_string = a->escaped || c != '"';
        a->escaped = !a->escaped && c == '\\';
        *put = c == '\n' ? '\r' : c;
        return 0;
    }
    if (a->depth == 1 && !a->ended)
        return outermost(a, path, c, put, err);
    if (a->depth > 1) {
        follow(a, c);
        *put = is_space(c) ? ' ' : c;
        return 0;
    }
    *put = 0;
    if (is_space(c))
        return 0;
    if (a->ended)
        return malformed(a, path, "something stands behind the array", err);
    a->depth = 1; /* data_array_begins() has seen the bracket */
    return 0;
}

int data_array_filter(struct data_array *a, const char *path, char *bytes, size_t *nbytes, struct fsdpck_error *err)
{
    size_t kept = 0;
    for (size_t i = 0; i < *nbytes; i++, a->at++) {
        char put;
        int rc = take(a, path, bytes[i], &put, err);
        if (rc)
            return rc;
        if (put)
            bytes[kept++] = put;
    }
    *nbytes = kept;
    return 0;
}

int data_array_end(const struct data_array *a, const char *path, struct fsdpck_error *err)
{
    return a->ended ? 0 : fsdpck_error_at(err, FSDPCK_ERR_FORMAT, path, a->at, "the array is not closed");
}
