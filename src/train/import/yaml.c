/* SPDX-License-Identifier: Apache-2.0 */
/* YAML by libyaml's events, to a JSON tree. Anchors, aliases, merge keys and tags are refused: no configuration that
 * `accelerate config` or a trainer writes has them, and aliases let a small file stand for a large one. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <yaml.h>

#include "import/read.h"

struct reader {
    const char *path;
    struct fsdpck_error *err;
    json_t *open[IMPORT_DEPTH]; /* (depth) the lists and mappings around the next value; borrowed from root */
    json_t *keys[IMPORT_DEPTH]; /* (depth) mappings: the key that waits for its value, or NULL */
    unsigned depth, ndocuments;
    json_t *root;
};

FSDPCK_PRINTF(3, 4) static int refuse(struct reader *r, size_t line, const char *fmt, ...)
{
    char text[300];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return fsdpck_error_set(r->err, FSDPCK_ERR_FORMAT, r->path, "line %zu: %s", line + 1, text);
}

/* Adds a value where the events stand. Takes the value. *added: the value as its parent holds it. */
static int add(struct reader *r, size_t line, json_t *value, json_t **added)
{
    json_t *parent = r->depth ? r->open[r->depth - 1] : NULL;
    int failed = 0;
    if (!value)
        return fsdpck_error_nomem(r->err, sizeof value);
    *added = value;
    if (!parent) {
        r->root = value;
    } else if (json_is_array(parent)) {
        failed = json_array_append_new(parent, value);
    } else if (!r->keys[r->depth - 1]) {
        bool is_key = json_is_string(value);
        r->keys[r->depth - 1] = is_key ? value : NULL;
        if (is_key && json_object_get(parent, json_string_value(value)))
            return refuse(r, line, "key '%.100s' is there twice", json_string_value(value));
        if (is_key && strcmp(json_string_value(value), "<<") == 0)
            return refuse(r, line, "a merge key ('<<'): write the keys out");
        if (is_key)
            return 0;
        json_decref(value);
        return refuse(r, line, "a key that is a list or a mapping");
    } else {
        json_t *key = r->keys[r->depth - 1];
        r->keys[r->depth - 1] = NULL;
        failed = json_object_set_new(parent, json_string_value(key), value);
        json_decref(key);
    }
    return failed ? fsdpck_error_nomem(r->err, sizeof *value) : 0;
}

static bool wants_key(const struct reader *r)
{
    return r->depth && json_is_object(r->open[r->depth - 1]) && !r->keys[r->depth - 1];
}

static int add_scalar(struct reader *r, const yaml_event_t *e)
{
    const char *text = (const char *)e->data.scalar.value, *why = NULL;
    size_t n = e->data.scalar.length;
    json_t *value = NULL, *added;
    if (memchr(text, '\0', n))
        return refuse(r, e->start_mark.line, "a NUL character in a text");
    if (e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && !wants_key(r))
        value = import_scalar(text, n, &why);
    if (why)
        return refuse(r, e->start_mark.line, "%.60s: %s", text, why);
    return add(r, e->start_mark.line, value ? value : json_stringn(text, n), &added);
}

static int open_node(struct reader *r, size_t line, json_t *node)
{
    json_t *added = NULL;
    if (r->depth == IMPORT_DEPTH) {
        json_decref(node);
        return refuse(r, line, "more than %d levels of nesting", IMPORT_DEPTH);
    }
    if (wants_key(r)) {
        json_decref(node);
        return refuse(r, line, "a key that is a list or a mapping");
    }
    int rc = add(r, line, node, &added);
    if (!rc)
        r->open[r->depth++] = added;
    return rc;
}

/* The anchor or tag of a node, which is refused. */
static int check_plain(struct reader *r, size_t line, const yaml_char_t *anchor, const yaml_char_t *tag)
{
    if (anchor)
        return refuse(r, line, "an anchor ('&%.100s'): write the value out where it is needed", (const char *)anchor);
    if (tag)
        return refuse(r, line, "a tag ('%.100s'): plain values are read, and no objects", (const char *)tag);
    return 0;
}

static int take_event(struct reader *r, const yaml_event_t *e)
{
    const size_t line = e->start_mark.line;
    int rc = 0;
    switch (e->type) {
    case YAML_DOCUMENT_START_EVENT: return r->ndocuments++ ? refuse(r, line, "a second document ('---')") : 0;
    case YAML_ALIAS_EVENT:
        return refuse(r, line, "an alias ('*%.100s'): write the value out", (const char *)e->data.alias.anchor);
    case YAML_SCALAR_EVENT:
        rc = check_plain(r, line, e->data.scalar.anchor, e->data.scalar.tag);
        return rc ? rc : add_scalar(r, e);
    case YAML_SEQUENCE_START_EVENT:
        rc = check_plain(r, line, e->data.sequence_start.anchor, e->data.sequence_start.tag);
        return rc ? rc : open_node(r, line, json_array());
    case YAML_MAPPING_START_EVENT:
        rc = check_plain(r, line, e->data.mapping_start.anchor, e->data.mapping_start.tag);
        return rc ? rc : open_node(r, line, json_object());
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT: r->depth--; return 0;
    default: return 0;
    }
}

int import_yaml(const char *path, const char *text, size_t nbytes, json_t **out, struct fsdpck_error *err)
{
    struct reader r = { .path = path, .err = err };
    yaml_parser_t parser;
    bool done = false;
    int rc = 0;
    *out = NULL;
    if (!yaml_parser_initialize(&parser))
        return fsdpck_error_nomem(err, sizeof parser);
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, nbytes);
    while (!rc && !done) {
        yaml_event_t event;
        if (!yaml_parser_parse(&parser, &event)) {
            rc =
                refuse(&r, parser.problem_mark.line, "not YAML: %s", parser.problem ? parser.problem : "out of memory");
            break;
        }
        rc = take_event(&r, &event);
        done = event.type == YAML_STREAM_END_EVENT;
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    for (unsigned i = 0; i < IMPORT_DEPTH; i++)
        json_decref(r.keys[i]);
    if (rc)
        json_decref(r.root);
    else
        *out = r.root;
    return rc;
}
