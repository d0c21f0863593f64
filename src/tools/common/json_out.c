/* SPDX-License-Identifier: Apache-2.0 */
/* Builds and prints the one JSON object of --json. It must not know the verbs. */
#include "common/json_out.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/command.h"
#include "common/text.h"

json_t *json_out_text(const char *s)
{
    if (!s)
        return json_null();
    json_t *text = json_string(s);
    if (text)
        return text;
    char *escaped = NULL;
    size_t nbytes;
    FILE *f = open_memstream(&escaped, &nbytes);
    if (!f)
        return NULL;
    text_print(f, s);
    if (fclose(f) == 0)
        text = json_string(escaped);
    free(escaped);
    return text;
}

json_t *json_out_u64(uint64_t value)
{
    return value <= INT64_MAX ? json_integer((json_int_t)value) : json_real((double)value);
}

json_t *json_out_double(double value)
{
    if (isfinite(value))
        return json_real(value);
    return json_string(isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity");
}

json_t *json_out_u64s(const uint64_t *values, size_t count)
{
    json_t *array = json_array();
    bool ok = array;
    for (size_t i = 0; i < count && ok; i++)
        ok = json_out_append(array, json_out_u64(values[i]));
    if (ok)
        return array;
    json_decref(array);
    return NULL;
}

json_t *json_out_mesh(const struct fsdpck_mesh *mesh)
{
    json_t *array = json_array();
    bool ok = array;
    for (uint32_t i = 0; i < mesh->ndim && ok; i++) {
        json_t *dim = json_object();
        ok = json_out_put(dim, "name", json_out_text(mesh->names[i]));
        ok = json_out_put(dim, "size", json_out_u64(mesh->sizes[i])) && ok;
        ok = json_out_append(array, dim) && ok;
    }
    if (ok)
        return array;
    json_decref(array);
    return NULL;
}

bool json_out_put(json_t *object, const char *key, json_t *value)
{
    return json_object_set_new(object, key, value) == 0;
}

bool json_out_append(json_t *array, json_t *value)
{
    return json_array_append_new(array, value) == 0;
}

static bool errors_wanted;

/* Escapes the unprintable character at s and returns its bytes. jansson writes valid UTF-8, and all unprintable
 * characters lie below U+10000: DEL, C1, directions. */
static size_t write_escaped(const unsigned char *s)
{
    size_t n = s[0] < 0x80 ? 1 : s[0] < 0xe0 ? 2 : 3;
    unsigned code = n == 1   ? s[0]
                    : n == 2 ? (s[0] & 0x1fu) << 6 | (s[1] & 0x3fu)
                             : (s[0] & 0x0fu) << 12 | (s[1] & 0x3fu) << 6 | (s[2] & 0x3fu);
    printf("\\u%04x", code);
    return n;
}

/* Outside of strings, JSON's only unprintable characters are white space, so any other one is inside a string and may
 * be escaped. */
bool json_out_write(const json_t *value)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    errors_wanted = false;
    if (!text)
        return false;
    for (const char *s = text; *s;) {
        size_t n = fsdpck_printable(s);
        if (n)
            fwrite(s, 1, n, stdout);
        else
            n = write_escaped((const unsigned char *)s);
        s += n;
    }
    free(text);
    return true;
}

void json_out_errors(bool on)
{
    errors_wanted = on;
}

void json_out_error(const char *message, const struct fsdpck_error *err, int exit_code)
{
    if (!errors_wanted)
        return;
    json_t *o = json_object();
    bool ok = json_out_put(o, "error", json_out_text(message));
    if (err && err->file[0])
        ok = json_out_put(o, "file", json_out_text(err->file)) && ok;
    if (err && err->has_offset)
        ok = json_out_put(o, "offset", json_out_u64(err->offset)) && ok;
    if (err && err->tensor[0])
        ok = json_out_put(o, "tensor", json_out_text(err->tensor)) && ok;
    if (err && err->hint[0])
        ok = json_out_put(o, "hint", json_out_text(err->hint)) && ok;
    ok = json_out_put(o, "exit_code", json_out_u64((uint64_t)exit_code)) && ok;
    json_out_print(o, ok, exit_code);
}

int json_out_print(json_t *object, bool complete, int done)
{
    if (!complete || !json_out_write(object)) {
        fprintf(stderr, "%s: no memory for the JSON object\n", tool_name);
        done = EXIT_SYSTEM;
    } else {
        /* main reports a failed write, with its reason, when it closes stdout */
        putchar('\n');
    }
    errors_wanted = false;
    json_decref(object);
    return done;
}
