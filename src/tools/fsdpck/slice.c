/* SPDX-License-Identifier: Apache-2.0 */
/* Parses slices against a tensor's shape. It must not know the use of the box. */
#include "slice.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Reads the integer at *text, if there is one, and moves *text past it. */
static bool take_integer(const char **text, int64_t *out)
{
    const char *s = *text + (**text == '-');
    char *end;
    if (*s < '0' || *s > '9')
        return false;
    errno = 0;
    long long value = strtoll(*text, &end, 10);
    if (errno)
        return false;
    *text = end;
    *out = value;
    return true;
}

/* Resolves an end of a range: negative values count from the end; the result is clamped to 0 … n. */
static uint64_t clamp(int64_t value, uint64_t n)
{
    if (value >= 0)
        return (uint64_t)value < n ? (uint64_t)value : n;
    uint64_t back = -(uint64_t)value;
    return back < n ? n - back : 0;
}

static int parse_index(int64_t value, uint32_t d, uint64_t n, struct slice *out, struct fsdpck_error *err)
{
    uint64_t back = -(uint64_t)value;
    bool inside = value >= 0 ? (uint64_t)value < n : back <= n;
    if (!inside)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                "--slice: found index %" PRId64 " for dimension %u of size %" PRIu64, value, d, n);
    out->offset[d] = value >= 0 ? (uint64_t)value : n - back;
    out->size[d] = 1;
    out->dropped[d] = true;
    return 0;
}

/* Parses "3", "2:5", ":" or "-4:" up to the comma or the end; moves *text there. */
static int parse_dim(const char **text, uint32_t d, uint64_t n, struct slice *out, struct fsdpck_error *err)
{
    const char *s = *text;
    int64_t from = 0, to = 0;
    bool has_from = take_integer(&s, &from), range = *s == ':', has_to = false;
    if (range) {
        s++;
        has_to = take_integer(&s, &to);
    }
    if ((*s && *s != ',') || (!range && !has_from))
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                "--slice: found '%.*s', wanted an index or FROM:TO for each dimension, as in 0:8,:",
                                (int)strcspn(*text, ","), *text);
    *text = s;
    if (!range)
        return parse_index(from, d, n, out, err);
    uint64_t begin = has_from ? clamp(from, n) : 0, end = has_to ? clamp(to, n) : n;
    out->offset[d] = begin;
    out->size[d] = end > begin ? end - begin : 0;
    return 0;
}

int slice_parse(const char *text, const struct fsdpck_tensor *t, struct slice *out, struct fsdpck_error *err)
{
    *out = (struct slice){ .nelem = 1 };
    const char *next = text;
    for (uint32_t d = 0; d < t->ndim; d++) {
        int rc = 0;
        out->size[d] = t->shape[d];
        if (next)
            rc = parse_dim(&next, d, t->shape[d], out, err);
        if (rc)
            return rc;
        if (next)
            next = *next ? next + 1 : NULL;
        out->nelem *= out->size[d]; /* cannot overflow: the count of the whole tensor was checked when it was opened */
    }
    if (next)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "--slice: found '%s', the tensor has %u dimensions", text,
                                t->ndim);
    return 0;
}
