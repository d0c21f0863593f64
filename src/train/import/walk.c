/* SPDX-License-Identifier: Apache-2.0 */
/* Walks the keys of a file along the tables of its kind. No key passes without a record. */
#include <stdio.h>
#include <string.h>

#include "import/import.h"

enum { KEY_NBYTES = 300 };

static const struct import_row *find_row(const struct import_dialect *d, const char *key)
{
    for (const struct import_row *row = d->rows; row->key; row++)
        if (strcmp(row->key, key) == 0)
            return row;
    return NULL;
}

static const struct import_idle *find_idle(const struct import_dialect *d, const char *key)
{
    for (const struct import_idle *row = d->idles; row->key; row++)
        if (strcmp(row->key, key) == 0)
            return row;
    return NULL;
}

static bool is_unneeded(const struct import_dialect *d, const char *key)
{
    for (const char *const *name = d->unneeded; *name; name++)
        if (strcmp(*name, key) == 0)
            return true;
    return false;
}

static bool is_idle(const struct import_idle *row, const json_t *value)
{
    json_t *list = json_loads(row->idle, 0, NULL), *item;
    bool found = false;
    size_t i;
    json_array_foreach (list, i, item)
        found |= json_equal(item, value) ||
                 (json_is_number(item) && json_is_number(value) && json_number_value(item) == json_number_value(value));
    json_decref(list);
    return found;
}

static void take(struct importer *im, const struct import_row *row, const char *key, const json_t *value)
{
    if (row->take)
        row->take(im, key, value);
    else if (import_put(im, key, row->to, json_deep_copy(value)))
        import_taken(im, key);
}

static void visit(struct importer *im, const char *prefix, const json_t *object)
{
    const struct import_dialect *d = im->file->dialect;
    const char *name;
    json_t *value;
    json_object_foreach ((json_t *)object, name, value) {
        char key[KEY_NBYTES];
        snprintf(key, sizeof key, "%.140s%s%.140s", prefix, *prefix ? "." : "", name);
        const struct import_row *row = find_row(d, key);
        const struct import_idle *idle = row ? NULL : find_idle(d, key);
        if (im->rc)
            return;
        if (json_is_null(value) && (row || idle))
            import_unneeded(im, key);
        else if (row)
            take(im, row, key, value);
        else if (idle && is_idle(idle, value))
            import_unneeded(im, key);
        else if (idle)
            import_note(im, key, value, "%s", idle->instead);
        else if (is_unneeded(d, key) || (json_is_object(value) && json_object_size(value) == 0))
            import_unneeded(im, key);
        else if (json_is_object(value) && !*prefix)
            visit(im, key, value);
        else
            import_note(im, key, value, "not a key that %s is known to have; nothing is taken over for it", d->kind);
    }
}

void import_walk(struct importer *im)
{
    visit(im, "", im->file->root);
}

void import_defaults(struct importer *im)
{
    for (const struct import_default *row = im->file->dialect->defaults; row->key && !im->rc; row++) {
        const struct import_row *how = find_row(im->file->dialect, row->key);
        if (import_get(im, row->key))
            continue;
        json_t *value = json_loads(row->value, JSON_DECODE_ANY, NULL);
        im->usual = value;
        im->beaten = false;
        take(im, how, row->key, value);
        im->usual = NULL;
        json_decref(value);
    }
}
