/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the chat settings of a model folder: special tokens and the template. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "text/chat/impl.h"
#include "text/file.h"

enum { MAX_CONFIG = 32 << 20, PATH = 4096 };

static int join(char path[PATH], const char *folder, const char *name, struct fsdpck_error *err)
{
    int n = snprintf(path, PATH, "%s/%s", folder, name);
    return n > 0 && n < PATH ? 0 : fsdpck_error_set(err, FSDPCK_ERR_USAGE, folder, "the path is too long");
}

/* Parses a JSON file. If the file does not exist, *out is NULL. */
static int read_json(const char *folder, const char *name, json_t **out, struct fsdpck_error *err)
{
    char path[PATH], *text;
    size_t nbytes;
    json_error_t why;
    struct fsdpck_error own = { 0 };
    *out = NULL;
    int rc = join(path, folder, name, err);
    if (rc)
        return rc;
    rc = text_file_read(path, MAX_CONFIG, &text, &nbytes, &own);
    if (rc == FSDPCK_ERR_MISSING)
        return 0;
    if (rc)
        return fsdpck_error_set(err, rc, path, "%s", own.message);
    *out = json_loadb(text, nbytes, 0, &why);
    free(text);
    if (!json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "%s", why.text[0] ? why.text : "an object is wanted");
    }
    return 0;
}

/* A special token is a string or an object with its content. */
static json_t *token_text(json_t *token)
{
    return json_is_object(token) ? json_object_get(token, "content") : token;
}

static void take_special(struct chat *c, json_t *config)
{
    static const char *const names[] = { "bos_token", "eos_token", "unk_token", "sep_token",
                                         "pad_token", "cls_token", "mask_token" };
    for (size_t i = 0; config && i < sizeof names / sizeof names[0]; i++) {
        json_t *token = token_text(json_object_get(config, names[i]));
        if (json_is_string(token) && !json_object_get(c->special, names[i]))
            json_object_set(c->special, names[i], token);
    }
}

/* "chat_template" is a string, or a list of named templates; the one named "default" is used. */
static json_t *config_template(json_t *config)
{
    json_t *t = json_object_get(config, "chat_template"), *entry;
    size_t i;
    if (!json_is_array(t))
        return t;
    json_array_foreach (t, i, entry) {
        const char *name = json_string_value(json_object_get(entry, "name"));
        if (name && strcmp(name, "default") == 0)
            return json_object_get(entry, "template");
    }
    return NULL;
}

static int parse_template(struct chat *c, const char *name, const char *source, size_t nbytes, struct fsdpck_error *err)
{
    c->fingerprint = XXH3_64bits_withSeed(source, nbytes, c->fingerprint);
    return jinja_parse(name, source, nbytes, &c->jinja, err);
}

static int read_template(struct chat *c, const char *folder, json_t *config, struct fsdpck_error *err)
{
    char path[PATH], *source;
    size_t nbytes;
    struct fsdpck_error own = { 0 };
    int rc = join(path, folder, "chat_template.jinja", err);
    if (rc)
        return rc;
    rc = text_file_read(path, MAX_CONFIG, &source, &nbytes, &own);
    if (!rc) {
        rc = parse_template(c, path, source, nbytes, err);
        free(source);
        return rc;
    }
    json_t *t = config_template(config);
    if (rc != FSDPCK_ERR_MISSING)
        return fsdpck_error_set(err, rc, path, "%s", own.message);
    if (!json_is_string(t))
        return 0;
    rc = join(path, folder, "tokenizer_config.json", err);
    return rc ? rc : parse_template(c, path, json_string_value(t), json_string_length(t), err);
}

static void take_fingerprint(struct chat *c)
{
    char *special = json_dumps(c->special, JSON_SORT_KEYS | JSON_COMPACT);
    uint64_t parts[] = { tokenizer_fingerprint(c->tokenizer), c->fingerprint,
                         special ? XXH3_64bits(special, strlen(special)) : 0 };
    c->fingerprint = XXH3_64bits(parts, sizeof parts);
    free(special);
}

/* The tokenizer is in the model folder, or in assets/ of a checkpoint. */
static int find_folder(const char *folder, char found[PATH], struct fsdpck_error *err)
{
    char path[PATH];
    int rc = join(found, folder, "assets", err);
    if (!rc)
        rc = join(path, found, "tokenizer.json", err);
    if (!rc && access(path, R_OK) != 0)
        memcpy(found, folder, strlen(folder) + 1);
    return rc;
}

int chat_open(const char *model, struct chat **out, struct fsdpck_error *err)
{
    char path[PATH], folder[PATH];
    json_t *config = NULL, *map = NULL;
    struct chat *c = calloc(1, sizeof *c);
    *out = NULL;
    if (!c || !(c->special = json_object())) {
        free(c);
        return fsdpck_error_nomem(err, sizeof *c);
    }
    c->now = time(NULL);
    int rc = text_model_folder(model, err);
    if (!rc)
        rc = find_folder(model, folder, err);
    if (!rc)
        rc = join(path, folder, "tokenizer.json", err);
    if (!rc)
        rc = tokenizer_open(path, &c->tokenizer, err);
    if (!rc)
        rc = read_json(folder, "tokenizer_config.json", &config, err);
    if (!rc)
        rc = read_json(folder, "special_tokens_map.json", &map, err);
    if (!rc) {
        take_special(c, config);
        take_special(c, map);
        rc = read_template(c, folder, config, err);
    }
    json_decref(config);
    json_decref(map);
    if (rc) {
        chat_close(c);
        return rc;
    }
    const char *eos = json_string_value(json_object_get(c->special, "eos_token"));
    c->eos = eos ? tokenizer_id(c->tokenizer, eos) : -1;
    take_fingerprint(c);
    *out = c;
    return 0;
}

void chat_close(struct chat *c)
{
    if (!c)
        return;
    tokenizer_close(c->tokenizer);
    jinja_free(c->jinja);
    json_decref(c->special);
    free(c);
}

const struct tokenizer *chat_tokenizer(const struct chat *c)
{
    return c->tokenizer;
}

bool chat_has_template(const struct chat *c)
{
    return c->jinja != NULL;
}

bool chat_asks_date(const struct chat *c)
{
    return c->jinja && jinja_has_clock(c->jinja);
}

/* Noon: a shift for summer time cannot change the day. */
int chat_read_date(const char *date, time_t *out, struct fsdpck_error *err)
{
    struct tm day = { .tm_hour = 12, .tm_isdst = -1 };
    int n = 0;
    bool read =
        sscanf(date, "%4d-%2d-%2d%n", &day.tm_year, &day.tm_mon, &day.tm_mday, &n) == 3 && n == 10 && date[n] == '\0';
    const struct tm typed = { .tm_year = day.tm_year - 1900, .tm_mon = day.tm_mon - 1, .tm_mday = day.tm_mday };
    day.tm_year = typed.tm_year;
    day.tm_mon = typed.tm_mon;
    time_t now = read ? mktime(&day) : (time_t)-1;
    if (now == (time_t)-1 || day.tm_mday != typed.tm_mday || day.tm_mon != typed.tm_mon || day.tm_year != typed.tm_year)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "\"%.40s\" is no day; one is written YYYY-MM-DD", date);
    *out = now;
    return 0;
}

int chat_set_date(struct chat *c, const char *date, struct fsdpck_error *err)
{
    return chat_read_date(date, &c->now, err);
}

int chat_set_thinking(struct chat *c, bool on, struct fsdpck_error *err)
{
    return json_object_set_new(c->special, "enable_thinking", json_boolean(on)) ? fsdpck_error_nomem(err, 64) : 0;
}

uint64_t chat_fingerprint(const struct chat *c)
{
    struct tm day = { 0 };
    if (!chat_asks_date(c) || !localtime_r(&c->now, &day))
        return c->fingerprint;
    const int parts[] = { day.tm_year, day.tm_mon, day.tm_mday };
    return XXH3_64bits_withSeed(parts, sizeof parts, c->fingerprint);
}
