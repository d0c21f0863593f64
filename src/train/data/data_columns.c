/* SPDX-License-Identifier: Apache-2.0 */
/* Renames the columns of an example. First takes out all of them, then inserts them, so that two columns can swap
 * names. */
#include "data/data_columns.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static int take_out(const json_t *columns, json_t *example, json_t *taken, struct fsdpck_error *err)
{
    const char *name;
    json_t *column;
    json_object_foreach ((json_t *)columns, name, column) {
        json_t *value = json_object_get(example, json_string_value(column));
        if (!value)
            return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL,
                                    "there is no column '%.80s', which data.columns names for '%s'",
                                    json_string_value(column), name);
        if (!json_is_null(value) && json_object_set(taken, name, value))
            return fsdpck_error_nomem(err, 64);
    }
    json_object_foreach ((json_t *)columns, name, column) {
        json_object_del(example, json_string_value(column));
        json_object_del(example, name);
    }
    return 0;
}

/* An example may have several forms. Keeps the form that data.columns names. */
static void drop_other_forms(const json_t *columns, json_t *example)
{
    static const char *const forms[][5] = { { "messages" },
                                            { "conversations" },
                                            { "instruction", "input", "output", "history" },
                                            { "prompt", "completion" },
                                            { "text" },
                                            { "input_ids", "labels" } };
    enum { NFORMS = sizeof forms / sizeof forms[0] };
    bool named[NFORMS] = { false }, any = false;
    for (size_t i = 0; i < NFORMS; i++) {
        for (size_t k = 0; forms[i][k]; k++)
            named[i] |= json_object_get(columns, forms[i][k]) != NULL;
        any |= named[i];
    }
    for (size_t i = 0; i < NFORMS && any; i++) {
        for (size_t k = 0; forms[i][k] && !named[i]; k++)
            json_object_del(example, forms[i][k]);
    }
}

int data_columns_apply(const json_t *columns, json_t *example, struct fsdpck_error *err)
{
    if (!columns || !json_is_object(example))
        return 0;
    json_t *taken = json_object();
    int rc = taken ? take_out(columns, example, taken, err) : fsdpck_error_nomem(err, 64);
    drop_other_forms(columns, example);
    if (!rc && json_object_update(example, taken))
        rc = fsdpck_error_nomem(err, 64);
    json_decref(taken);
    return rc;
}

uint64_t data_columns_hash(const json_t *columns)
{
    char *text = columns ? json_dumps(columns, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    uint64_t hash = text ? XXH3_64bits(text, strlen(text)) : 0;
    free(text);
    return hash;
}
