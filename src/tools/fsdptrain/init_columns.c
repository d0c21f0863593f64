/* SPDX-License-Identifier: Apache-2.0 */
/* Recognises the columns of common data sets. The first row of the table whose columns all exist is chosen. */
#include "init_columns.h"

#include <string.h>
#include <train/lines.h>

enum { MOST = 3 };

struct column {
    const char *ours, *theirs;
};

static const struct column known[][MOST] = {
    { { "messages", "conversation" } },
    { { "messages", "dialog" } },
    { { "messages", "dialogue" } },
    { { "messages", "chat" } },
    { { "instruction", "instruction" }, { "input", "context" }, { "output", "response" } }, /* as in Dolly */
    { { "prompt", "instruction" }, { "completion", "response" } },
    { { "prompt", "question" }, { "completion", "answer" } },
    { { "prompt", "question" }, { "completion", "response" } },
    { { "prompt", "query" }, { "completion", "response" } },
    { { "prompt", "problem" }, { "completion", "solution" } },
    { { "prompt", "prompt" }, { "completion", "response" } },
    { { "prompt", "input" }, { "completion", "output" } },
    { { "text", "content" } },
};

static bool has(const json_t *example, const char *name)
{
    return json_object_get(example, name) != NULL;
}

static bool is_known_form(const json_t *e)
{
    return has(e, "messages") || has(e, "conversations") || has(e, "text") || has(e, "input_ids") ||
           (has(e, "instruction") && has(e, "output")) || (has(e, "prompt") && has(e, "completion"));
}

static json_t *match(const json_t *example, const struct column *row)
{
    json_t *columns = json_object();
    for (size_t i = 0; i < MOST && row[i].ours; i++)
        if (!has(example, row[i].theirs) || json_object_set_new(columns, row[i].ours, json_string(row[i].theirs))) {
            json_decref(columns);
            return NULL;
        }
    return columns;
}

int init_columns(const char *data, json_t **out, struct fsdpck_error *err)
{
    json_t *example;
    *out = NULL;
    int rc = train_lines_first(data, &example, err);
    if (json_is_object(example) && !is_known_form(example))
        for (size_t i = 0; i < sizeof known / sizeof known[0] && !*out; i++)
            *out = match(example, known[i]);
    json_decref(example);
    return rc;
}
