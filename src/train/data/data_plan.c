/* SPDX-License-Identifier: Apache-2.0 */
/* Reads data.plan, which assigns documents to the micro-batches of each step. The plan is as untrusted as the
 * documents. */
#include "data/data_impl.h"

#include <jansson.h>

#include "text/file.h"

static int plan_error(const char *path, size_t step, const char *what, struct fsdpck_error *err)
{
    return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "step %zu: %s", step, what);
}

static int add_row(struct data *d, const char *path, size_t step, json_t *row, struct fsdpck_error *err)
{
    size_t i;
    json_t *doc;
    if (json_array_size(row) == 0)
        return plan_error(path, step, "a row is a list of at least one document number", err);
    if (!grow((void **)&d->members, &d->members_capacity, d->nmembers + json_array_size(row), sizeof *d->members))
        return fsdpck_error_nomem(err, json_array_size(row) * sizeof *d->members);
    json_array_foreach (row, i, doc) {
        if (!json_is_integer(doc) || json_integer_value(doc) < 0 || (size_t)json_integer_value(doc) >= d->ndocs)
            return plan_error(path, step, "a document number is no line of data.train, counted from 0", err);
        d->members[d->nmembers++] = (uint32_t)json_integer_value(doc);
    }
    return 0;
}

static int add_step(struct data *d, const char *path, size_t step, json_t *micros, struct fsdpck_error *err)
{
    size_t i, j;
    json_t *rows, *row;
    if (json_array_size(micros) == 0)
        return plan_error(path, step, "a list of micro-batches is wanted", err);
    json_array_foreach (micros, i, rows) {
        if (json_array_size(rows) == 0)
            return plan_error(path, step, "a micro-batch is a list of rows", err);
        json_array_foreach (rows, j, row) {
            int rc = add_row(d, path, step, row, err);
            if (rc)
                return rc;
        }
        if (!lists_end(&d->groups, d->nmembers))
            return fsdpck_error_nomem(err, sizeof(size_t));
    }
    return lists_end(&d->steps, d->groups.count) ? 0 : fsdpck_error_nomem(err, sizeof(size_t));
}

int data_read_plan(struct data *d, const char *path, struct fsdpck_error *err)
{
    json_t *root, *step;
    size_t i;
    int rc = text_file_json(path, &root, err);
    json_t *steps = json_object_get(root, "steps");
    if (!rc && json_array_size(steps) == 0)
        rc = fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "key 'steps': a list of steps is wanted");
    json_array_foreach (steps, i, step) {
        if (!rc)
            rc = add_step(d, path, i, step, err);
    }
    json_decref(root);
    return rc;
}
