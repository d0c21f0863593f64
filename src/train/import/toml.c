/* SPDX-License-Identifier: Apache-2.0 */
/* TOML to a JSON tree. Debian's libraries for it are in C++, which this project has in CUDA files only, so the part
 * that configurations use is read here: tables, dotted keys, strings on one line, numbers, booleans, lists, inline
 * tables. Dates, strings of several lines and lists of tables are refused by name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "import/read.h"

struct reader {
    const char *path, *at, *end;
    unsigned line, depth;
    json_t *table;   /* that the next key belongs to; borrowed */
    json_t *headers; /* the names of tables that have a header, as keys */
    struct fsdpck_error *err;
};

static int refuse(struct reader *r, const char *why)
{
    return fsdpck_error_set(r->err, FSDPCK_ERR_FORMAT, r->path, "line %u: %s", r->line, why);
}

static int refuse_key(struct reader *r, const char *key, const char *why)
{
    return fsdpck_error_set(r->err, FSDPCK_ERR_FORMAT, r->path, "line %u: key '%.100s' %s", r->line, key, why);
}

static char peek(const struct reader *r)
{
    return r->at < r->end ? *r->at : '\0';
}

static void skip_blanks(struct reader *r)
{
    while (peek(r) == ' ' || peek(r) == '\t')
        r->at++;
}

static void skip_comment(struct reader *r)
{
    skip_blanks(r);
    if (peek(r) == '#')
        while (r->at < r->end && *r->at != '\n')
            r->at++;
}

/* Skips blanks, comments and ends of lines. */
static void skip_lines(struct reader *r)
{
    for (;;) {
        skip_comment(r);
        if (peek(r) == '\n')
            r->line++;
        else if (peek(r) != '\r')
            return;
        r->at++;
    }
}

static bool is_bare(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

/* Appends a character of a basic string after a backslash. */
static int put_escape(struct reader *r, char *out, size_t *n)
{
    static const char from[] = "btnfr\"\\", to[] = "\b\t\n\f\r\"\\";
    const char c = peek(r);
    const char *found = c ? strchr(from, c) : NULL;
    if (!found)
        return refuse(r,
                      "a string with an escape other than \\b \\t \\n \\f \\r \\\" \\\\: write the character itself");
    out[(*n)++] = to[found - from];
    r->at++;
    return 0;
}

/* Reads a string in " or '. The caller frees *out. */
static int read_string(struct reader *r, char **out)
{
    const char quote = *r->at++;
    size_t n = 0;
    int rc = 0;
    if (r->end - r->at >= 2 && r->at[0] == quote && r->at[1] == quote)
        return refuse(r, "a string of several lines (three quotes): write it on one");
    const char *end = memchr(r->at, '\n', (size_t)(r->end - r->at));
    char *text = malloc((size_t)((end ? end : r->end) - r->at) + 1);
    if (!text)
        return fsdpck_error_nomem(r->err, (size_t)(r->end - r->at));
    while (!rc && peek(r) != quote) {
        const char c = peek(r);
        if (c == '\0' || c == '\n')
            rc = refuse(r, "a string without its closing quote");
        else if (c == '\\' && quote == '"')
            r->at++, rc = put_escape(r, text, &n);
        else
            text[n++] = *r->at++;
    }
    text[n] = '\0';
    r->at += !rc;
    *out = text;
    return rc;
}

/* Returns a string of n bytes of the text, which has no NUL at its end; NULL without memory. The caller frees it. */
static char *copy_text(const char *from, size_t n)
{
    char *copy = malloc(n + 1);
    if (copy)
        memcpy(copy, from, n), copy[n] = '\0';
    return copy;
}

/* Reads one part of a key. The caller frees *out, also on failure. */
static int read_key_part(struct reader *r, char **out)
{
    *out = NULL;
    skip_blanks(r);
    if (peek(r) == '"' || peek(r) == '\'')
        return read_string(r, out);
    const char *from = r->at;
    while (is_bare(peek(r)))
        r->at++;
    if (r->at == from)
        return refuse(r, "a key is wanted, as in steps = 100, or a table, as in [training]");
    *out = copy_text(from, (size_t)(r->at - from));
    return *out ? 0 : fsdpck_error_nomem(r->err, (size_t)(r->at - from));
}

/* Reads a dotted key. *table becomes the table of its last part, which the caller frees. */
static int read_key(struct reader *r, json_t **table, char **last)
{
    int rc = read_key_part(r, last);
    unsigned depth = 0;
    for (skip_blanks(r); !rc && peek(r) == '.'; skip_blanks(r)) {
        json_t *next = json_object_get(*table, *last);
        if (!next) {
            next = json_object();
            if (json_object_set_new(*table, *last, next))
                rc = refuse_key(r, "", "is not UTF-8");
        } else if (!json_is_object(next)) {
            rc = refuse_key(r, *last, "is there already, and is no table");
        }
        if (!rc && ++depth == IMPORT_DEPTH)
            rc = refuse(r, "a key of too many parts");
        free(*last);
        *last = NULL;
        *table = next;
        r->at++;
        if (!rc)
            rc = read_key_part(r, last);
    }
    return rc;
}

static int read_value(struct reader *r, json_t **out);

static int read_pair(struct reader *r, json_t *table)
{
    json_t *value = NULL;
    char *key = NULL;
    int rc = read_key(r, &table, &key);
    if (!rc && peek(r) != '=')
        rc = refuse(r, "'=' is wanted after a key");
    r->at += !rc;
    skip_blanks(r);
    if (!rc)
        rc = read_value(r, &value);
    if (!rc && json_object_get(table, key))
        rc = refuse_key(r, key, "is there twice");
    if (!rc && json_object_set(table, key, value))
        rc = refuse_key(r, "", "is not UTF-8");
    json_decref(value);
    free(key);
    return rc;
}

/* Reads what is between brackets: values of a list, or pairs of an inline table. */
static int read_items(struct reader *r, json_t *into, char close)
{
    const bool list = json_is_array(into);
    int rc = 0;
    r->at++;
    for (skip_lines(r); !rc && peek(r) != close; skip_lines(r)) {
        json_t *value = NULL;
        rc = list ? read_value(r, &value) : read_pair(r, into);
        if (!rc && list && json_array_append(into, value))
            rc = fsdpck_error_nomem(r->err, sizeof value);
        json_decref(value);
        skip_lines(r);
        if (!rc && peek(r) != ',' && peek(r) != close)
            rc = refuse(r, list ? "',' or ']' is wanted in a list" : "',' or '}' is wanted in an inline table");
        r->at += !rc && peek(r) == ',';
    }
    r->at += !rc;
    return rc;
}

static int read_plain(struct reader *r, json_t **out)
{
    const char *from = r->at, *why;
    while (r->at < r->end && !strchr(" \t\r\n#,]}", *r->at))
        r->at++;
    const size_t n = (size_t)(r->at - from);
    bool word = n && strchr("tf", *from); /* other words of YAML, as yes, are no values here */
    *out = n && (word || strchr("+-0123456789.", *from)) ? import_scalar(from, n, &why) : NULL;
    return *out ? 0
                : fsdpck_error_set(r->err, FSDPCK_ERR_FORMAT, r->path,
                                   "line %u: '%.*s' is no string in quotes, no decimal number, and neither true nor "
                                   "false",
                                   r->line, n > 60 ? 60 : (int)n, from);
}

static int read_value(struct reader *r, json_t **out)
{
    char *text = NULL;
    int rc;
    *out = NULL;
    if (peek(r) == '"' || peek(r) == '\'') {
        rc = read_string(r, &text);
        *out = rc ? NULL : json_string(text);
        free(text);
        return rc || *out ? rc : refuse(r, "a string that is not UTF-8");
    }
    if (peek(r) != '[' && peek(r) != '{')
        return read_plain(r, out);
    if (++r->depth == IMPORT_DEPTH)
        return refuse(r, "too many levels of nesting");
    json_t *items = peek(r) == '[' ? json_array() : json_object();
    rc = items ? read_items(r, items, json_is_array(items) ? ']' : '}') : fsdpck_error_nomem(r->err, 64);
    r->depth--;
    if (rc)
        json_decref(items);
    else
        *out = items;
    return rc;
}

/* Reads "[a.b]" and makes it the table of the keys that follow. */
static int read_header(struct reader *r, json_t *root)
{
    const char *from = ++r->at;
    char *last = NULL, *name = NULL;
    json_t *table = root, *own;
    int rc = peek(r) == '[' ? refuse(r, "a list of tables ('[['): no trainer's configuration has one")
                            : read_key(r, &table, &last);
    if (!rc && peek(r) != ']')
        rc = refuse(r, "']' is wanted after the name of a table");
    if (!rc && !(name = copy_text(from, (size_t)(r->at - from))))
        rc = fsdpck_error_nomem(r->err, 64);
    if (!rc && json_object_get(r->headers, name))
        rc = refuse_key(r, last, "is there twice, as a table");
    if (!rc && json_object_set_new(r->headers, name, json_true()))
        rc = refuse_key(r, "", "is not UTF-8");
    own = rc ? NULL : json_object_get(table, last);
    if (!rc && !own && json_object_set_new(table, last, own = json_object()))
        rc = refuse_key(r, "", "is not UTF-8");
    if (!rc && !json_is_object(own))
        rc = refuse_key(r, last, "is there already, and is no table");
    r->table = own;
    r->at += !rc;
    free(last);
    free(name);
    return rc;
}

int import_toml(const char *path, const char *text, size_t nbytes, json_t **out, struct fsdpck_error *err)
{
    json_t *root = json_object();
    struct reader r = {
        .path = path, .at = text, .end = text + nbytes, .line = 1, .table = root, .headers = json_object(), .err = err
    };
    int rc = root && r.headers ? 0 : fsdpck_error_nomem(err, 64);
    *out = NULL;
    for (skip_lines(&r); !rc && r.at < r.end; skip_lines(&r)) {
        rc = peek(&r) == '[' ? read_header(&r, root) : read_pair(&r, r.table);
        skip_comment(&r);
        if (!rc && peek(&r) != '\r' && peek(&r) != '\n' && r.at < r.end)
            rc = refuse(&r, "the end of the line is wanted after a value");
    }
    json_decref(r.headers);
    if (rc)
        json_decref(root);
    else
        *out = root;
    return rc;
}
