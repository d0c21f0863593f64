/* SPDX-License-Identifier: Apache-2.0 */
#include "board/hparams.h"

#include <stdio.h>
#include <string.h>

enum { DATA_START = 3, DATA_END = 4, START_HPARAMS = 1, START_GROUP = 4, START_SECONDS = 5 };
enum { END_STATUS = 1, END_SECONDS = 2, ENTRY_KEY = 1, ENTRY_VALUE = 2 };
enum { VALUE_NUMBER = 2, VALUE_STRING = 3, VALUE_BOOL = 4, DEEPEST = 4, NAME_NBYTES = 256, TEXT_NBYTES = 200 };

static void put_value(struct proto *p, const json_t *value)
{
    const char *text = json_string_value(value);
    size_t nbytes = text ? strlen(text) : 0;
    if (nbytes > TEXT_NBYTES) /* not within a character */
        for (nbytes = TEXT_NBYTES; nbytes && (text[nbytes] & 0xc0) == 0x80;)
            nbytes--;
    if (json_is_number(value))
        proto_put_double(p, VALUE_NUMBER, json_number_value(value));
    else if (json_is_boolean(value))
        proto_put_varint(p, VALUE_BOOL, json_is_true(value));
    else
        proto_put_bytes(p, VALUE_STRING, text, nbytes);
}

static void put_entry(struct proto *p, const char *name, const json_t *value)
{
    const size_t entry = proto_begin(p, START_HPARAMS);
    proto_put_text(p, ENTRY_KEY, name);
    const size_t begun = proto_begin(p, ENTRY_VALUE);
    put_value(p, value);
    proto_end(p, begun);
    proto_end(p, entry);
}

/* Lists and null have no form in hparams; a key beginning with // is a comment. */
static void put_tree(struct proto *p, const char *section, const json_t *tree, unsigned depth)
{
    char name[NAME_NBYTES];
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)tree, key, value) {
        const int n = snprintf(name, sizeof name, "%s%s%s", section, *section ? "." : "", key);
        if (n < 0 || (size_t)n >= sizeof name || strncmp(key, "//", 2) == 0)
            continue;
        if (json_is_object(value) && depth < DEEPEST)
            put_tree(p, name, value, depth + 1);
        else if (json_is_number(value) || json_is_boolean(value) || json_is_string(value))
            put_entry(p, name, value);
    }
}

void hparams_start(struct proto *p, const json_t *config, const char *group, double seconds)
{
    const size_t start = proto_begin(p, DATA_START);
    put_tree(p, "", config, 0);
    proto_put_text(p, START_GROUP, group);
    proto_put_double(p, START_SECONDS, seconds);
    proto_end(p, start);
}

void hparams_end(struct proto *p, unsigned status, double seconds)
{
    const size_t end = proto_begin(p, DATA_END);
    proto_put_varint(p, END_STATUS, status);
    proto_put_double(p, END_SECONDS, seconds);
    proto_end(p, end);
}
