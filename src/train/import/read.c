/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the three syntaxes a text has: JSON begins with a brace; TOML's first line is a table or has '=' after a
 * key. */
#include <string.h>

#include "import/read.h"

static const char *skip_to_content(const char *at, const char *end)
{
    while (at < end && (*at == '#' || strchr(" \t\r\n", *at))) {
        const char *newline = *at == '#' ? memchr(at, '\n', (size_t)(end - at)) : at;
        at = newline ? newline + 1 : end;
    }
    return at;
}

static bool is_toml(const char *at, const char *end)
{
    static const char key[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.\"' \t";
    if (at < end && *at == '[')
        return true;
    while (at < end && *at && strchr(key, *at))
        at++;
    return at < end && *at == '=';
}

static int parse_json(const char *path, const char *text, size_t nbytes, json_t **out, struct fsdpck_error *err)
{
    json_error_t why;
    *out = json_loadb(text, nbytes, JSON_REJECT_DUPLICATES, &why);
    return *out ? 0 : fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "line %d: %s", why.line, why.text);
}

int import_parse(const char *path, const char *text, size_t nbytes, json_t **out, enum import_syntax *syntax,
                 struct fsdpck_error *err)
{
    const char *end = text + nbytes, *at = skip_to_content(text, end);
    *out = NULL;
    if (at == end)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "the file has no keys");
    *syntax = *at == '{' ? IMPORT_JSON : is_toml(at, end) ? IMPORT_TOML : IMPORT_YAML;
    int rc = *syntax == IMPORT_JSON   ? parse_json(path, text, nbytes, out, err)
             : *syntax == IMPORT_TOML ? import_toml(path, text, nbytes, out, err)
                                      : import_yaml(path, text, nbytes, out, err);
    if (!rc && !json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        rc = fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "keys with values are wanted, as in num_processes: 2");
    }
    return rc;
}
