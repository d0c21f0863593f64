/* SPDX-License-Identifier: Apache-2.0 */
/* Sets keys of CONFIG.json and records what became of each key of a file. */
#include "import/import.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/config_keys.h"
#include "text/utf8.h"

enum { SHOWN = 80 };

/* The value as JSON, in at most SHOWN bytes. */
static const char *show(const json_t *value, char text[SHOWN])
{
    char *all = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(15));
    const bool cut = all && strlen(all) >= SHOWN;
    snprintf(text, SHOWN, cut ? "%.70s …" : "%s", all ? all : "?");
    free(all);
    return text;
}

static void fail(struct importer *im, int rc)
{
    if (!im->rc)
        im->rc = rc;
}

/* Takes out the bytes of characters that a limit of length has cut. */
static void mend(char *text)
{
    size_t nbytes = strlen(text), at;
    while ((at = utf8_valid_prefix(text, nbytes)) < nbytes) {
        memmove(text + at, text + at + 1, nbytes - at);
        nbytes--;
    }
}

static void append(struct importer *im, const char *list, char *line)
{
    mend(line);
    if (!im->rc && json_array_append_new(json_object_get(im->file->report, list), json_string(line)))
        fail(im, fsdpck_error_nomem(im->err, 64));
}

void import_taken(struct importer *im, const char *key)
{
    char text[SHOWN], line[300];
    if (im->usual && im->beaten)
        return;
    snprintf(line, sizeof line, "%.200s%s%s", key, im->usual ? " " : "", im->usual ? show(im->usual, text) : "");
    append(im, im->usual ? "defaults" : "taken", line);
}

void import_unneeded(struct importer *im, const char *key)
{
    char line[300];
    snprintf(line, sizeof line, "%.290s", key);
    if (!im->usual)
        append(im, "unneeded", line);
}

void import_note(struct importer *im, const char *key, const json_t *value, const char *fmt, ...)
{
    char text[SHOWN], why[400], line[700];
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    if (value)
        snprintf(line, sizeof line, "%.150s %s: %s", key, show(value, text), why);
    else
        snprintf(line, sizeof line, "%.150s: %s", key, why);
    append(im, "notes", line);
}

void import_refuse(struct importer *im, const char *key, const char *fmt, ...)
{
    char why[500];
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    fail(im, fsdpck_error_set(im->err, FSDPCK_ERR_UNSUPPORTED, im->file->path, "key '%.150s': %s", key, why));
}

const json_t *import_get(const struct importer *im, const char *key)
{
    const json_t *value = json_object_get(im->file->root, key), *table;
    const char *dot = value ? NULL : strchr(key, '.');
    if (dot && (table = json_object_getn(im->file->root, key, (size_t)(dot - key))) != NULL)
        value = json_object_get(table, dot + 1);
    return json_is_null(value) ? NULL : value;
}

double import_number(const json_t *value, double otherwise)
{
    char *end;
    if (json_is_number(value))
        return json_number_value(value);
    const char *text = json_string_value(value);
    double x = text ? strtod(text, &end) : 0;
    return text && *text && !*end && isfinite(x) ? x : otherwise;
}

const char *import_word(const json_t *value, char word[64])
{
    const char *text = json_string_value(value), *dot = text ? strrchr(text, '.') : NULL;
    size_t n = 0;
    for (const char *at = dot ? dot + 1 : text; at && *at && n < 63; at++)
        word[n++] = (char)toupper((unsigned char)*at);
    word[n] = '\0';
    return word;
}

bool import_is_true(const json_t *value)
{
    char word[64];
    import_word(value, word);
    return json_is_true(value) || json_integer_value(value) == 1 || strcmp(word, "TRUE") == 0 ||
           strcmp(word, "YES") == 0 || strcmp(word, "1") == 0;
}

/* Whole numbers may stand as 3.0 or "3", and numbers as "2e-5". Takes and returns the value. */
static json_t *fit(const struct config_key *key, json_t *value)
{
    const bool is_text = json_is_string(value);
    double x = import_number(value, NAN);
    if ((key->type != KEY_U64 && key->type != KEY_NUMBER) || !isfinite(x) || json_is_integer(value))
        return value;
    if (key->type == KEY_U64 && (floor(x) != x || fabs(x) > 9007199254740992.0))
        return value;
    if (key->type == KEY_NUMBER && !is_text)
        return value;
    json_decref(value);
    return key->type == KEY_U64 ? json_integer((json_int_t)x) : json_real(x);
}

/* Has the key's own check look at the value. */
static int check(struct importer *im, const char *from, const char *to, json_t *value)
{
    const char *dot = strchr(to, '.');
    struct fsdpck_error why = { 0 };
    struct train_config config = { 0 };
    json_t *section = dot ? json_object() : NULL;
    if (dot)
        json_object_set(section, dot + 1, value);
    config.root = json_object();
    char name[64];
    snprintf(name, sizeof name, "%.*s", dot ? (int)(dot - to) : 60, to);
    json_object_set(config.root, name, dot ? section : value);
    json_decref(section);
    config_keys_defaults(&config);
    int rc = config_keys_apply(NULL, &config, &why);
    train_config_free(&config);
    return rc ? fsdpck_error_set(im->err, FSDPCK_ERR_FORMAT, im->file->path, "key '%.150s': %s", from, why.message) : 0;
}

/* Where the config holds a key; creates its section. */
static json_t *section_of(struct importer *im, const char *to, const char **last)
{
    const char *dot = strchr(to, '.');
    *last = dot ? dot + 1 : to;
    if (!dot)
        return im->config;
    json_t *section = json_object_getn(im->config, to, (size_t)(dot - to));
    if (json_is_object(section))
        return section;
    section = json_object();
    return json_object_setn_new(im->config, to, (size_t)(dot - to), section) ? NULL : section;
}

/* How much a value counts: what a key that is off leaves, a default, what a file says. */
enum strength { LEFT, USUAL, SAID };

/* Looks at the value that an earlier file or key has set. Returns true if the new one must be set. */
static bool replaces(struct importer *im, const char *from, const char *to, const json_t *value, const json_t *had,
                     enum strength strength)
{
    char old_text[SHOWN], text[SHOWN];
    const char *origin = json_string_value(json_object_get(im->origins, to));
    if (!had || (!origin && strength > LEFT))
        return true;
    const bool same = json_equal(had, value) || (json_is_number(had) && json_is_number(value) &&
                                                 json_number_value(had) == json_number_value(value));
    im->beaten |= !same;
    if (!same && strength == SAID)
        fail(im, fsdpck_error_set(im->err, FSDPCK_ERR_FORMAT, im->file->path,
                                  "key '%.100s' makes %s %s, and %.200s makes it %s: take out one of the two", from, to,
                                  show(value, text), origin, show(had, old_text)));
    return false;
}

static bool put(struct importer *im, const char *from, const char *to, json_t *value, enum strength strength)
{
    const struct config_key *key = config_key_find(to);
    const char *last;
    char origin[700];
    value = im->rc || !key ? value : fit(key, value);
    if (!value || im->rc || !key) {
        if (!im->rc)
            fail(im, key ? fsdpck_error_nomem(im->err, 64)
                         : fsdpck_error_set(im->err, FSDPCK_ERR_UNSUPPORTED, im->file->path, "key '%.150s'", from));
        json_decref(value);
        return false;
    }
    if (json_is_string(value) && config_key_is_reserved(key, json_string_value(value))) {
        import_note(im, from, value, "%s: a later version of fsdptrain has it", to);
        json_decref(value);
        return false;
    }
    fail(im, check(im, from, to, value));
    json_t *section = im->rc ? NULL : section_of(im, to, &last);
    if (section && replaces(im, from, to, value, json_object_get(section, last), strength)) {
        snprintf(origin, sizeof origin, "%.400s: %.150s", im->file->path, from);
        mend(origin);
        if (json_object_set(section, last, value) ||
            (strength > LEFT && json_object_set_new(im->origins, to, json_string(origin))))
            fail(im, fsdpck_error_nomem(im->err, 64));
    }
    json_decref(value);
    return !im->rc;
}

bool import_put(struct importer *im, const char *from, const char *to, json_t *value)
{
    return put(im, from, to, value, im->usual ? USUAL : SAID);
}

void import_put_weak(struct importer *im, const char *from, const char *to, json_t *value)
{
    put(im, from, to, value, LEFT);
}
