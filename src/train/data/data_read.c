/* Reads documents (JSONL of input_ids and labels) and data.plan. Everything in these files is untrusted; lines are counted from 1. */
#include "data/data_impl.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LINE = 1 << 28, MAX_DOCUMENT = 1 << 24 };

static int add_tokens(struct data *d, const char *path, uint64_t line, json_t *ids, json_t *labels, int64_t nvocab, struct fsdpck_error *err)
{
    size_t n = json_array_size(ids), room = d->tok_capacity;
    if (n == 0 || n > MAX_DOCUMENT || json_array_size(labels) != n)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "line %llu: input_ids has %zu entries and labels %zu; as many are wanted, and at least one",
                                (unsigned long long)line, n, json_array_size(labels));
    if (!data_grow((void **)&d->ids, &d->tok_capacity, d->ntok + n, sizeof *d->ids) || !data_grow((void **)&d->labels, &room, d->ntok + n, sizeof *d->labels) ||
        !data_grow((void **)&d->docs, &d->docs_capacity, d->ndocs + 1, sizeof *d->docs))
        return fsdpck_error_nomem(err, n * sizeof *d->ids);
    struct document *doc = &d->docs[d->ndocs++];
    *doc = (struct document){ .first = d->ntok, .ntok = (uint32_t)n };
    for (size_t i = 0; i < n; i++) {
        json_t *id = json_array_get(ids, i), *label = json_array_get(labels, i);
        json_int_t a = json_integer_value(id), b = json_integer_value(label);
        if (!json_is_integer(id) || !json_is_integer(label) || a < 0 || a >= nvocab || (b != -100 && (b < 0 || b >= nvocab)))
            return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "line %llu, token %zu: ids are whole numbers below the vocabulary's %lld, labels too, or -100",
                                    (unsigned long long)line, i, (long long)nvocab);
        d->ids[d->ntok] = (int32_t)a;
        d->labels[d->ntok++] = b == -100 ? -1 : (int32_t)b;
        doc->nsupervised += i > 0 && b != -100; /* nothing predicts a document's first token */
    }
    return 0;
}

static int add_line(struct data *d, const char *path, uint64_t line, const char *text, size_t nbytes, int64_t nvocab, struct fsdpck_error *err)
{
    json_error_t why;
    json_t *root = json_loadb(text, nbytes, JSON_REJECT_DUPLICATES, &why);
    int rc = 0;
    json_t *ids = json_object_get(root, "input_ids"), *labels = json_object_get(root, "labels");
    if (!root)
        rc = fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "line %llu: %s", (unsigned long long)line, why.text);
    else if (json_object_get(root, "messages") || json_object_get(root, "prompt") || json_object_get(root, "text"))
        rc = fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, path, "line %llu is text; this version trains on tokenized lines {\"input_ids\":[…],\"labels\":[…]} only",
                              (unsigned long long)line);
    else if (!json_is_array(ids) || !json_is_array(labels))
        rc = fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "line %llu: {\"input_ids\":[…],\"labels\":[…]} is wanted", (unsigned long long)line);
    else
        rc = add_tokens(d, path, line, ids, labels, nvocab, err);
    json_decref(root);
    return rc;
}

static bool is_blank(const char *text)
{
    return text[strspn(text, " \t\r\n")] == '\0';
}

int data_read_documents(struct data *d, const char *path, int64_t nvocab, struct fsdpck_error *err)
{
    FILE *f = fopen(path, "re");
    char *text = NULL;
    size_t capacity = 0;
    ssize_t nbytes;
    int rc = f ? 0 : fsdpck_error_sys(err, errno, path, "open");
    for (uint64_t line = 1; !rc && (nbytes = getline(&text, &capacity, f)) >= 0; line++) {
        if (nbytes > MAX_LINE)
            rc = fsdpck_error_set(err, FSDPCK_ERR_LIMIT, path, "line %llu is longer than %d bytes", (unsigned long long)line, MAX_LINE);
        else if (is_blank(text) && strlen(text) == (size_t)nbytes)
            rc = fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "line %llu is empty", (unsigned long long)line);
        else
            rc = add_line(d, path, line, text, (size_t)nbytes, nvocab, err);
    }
    if (!rc && ferror(f))
        rc = fsdpck_error_sys(err, errno, path, "read");
    if (!rc && d->ndocs == 0)
        rc = fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "no document in it");
    free(text);
    if (f)
        fclose(f);
    return rc;
}

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
    if (!data_grow((void **)&d->members, &d->members_capacity, d->nmembers + json_array_size(row), sizeof *d->members))
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
    json_error_t why;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &why), *steps = json_object_get(root, "steps"), *step;
    size_t i;
    int rc = 0;
    if (!root)
        rc = fsdpck_error_set(err, why.line < 1 ? FSDPCK_ERR_MISSING : FSDPCK_ERR_FORMAT, path, "%s", why.text);
    else if (json_array_size(steps) == 0)
        rc = fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "key 'steps': a list of steps is wanted");
    json_array_foreach (steps, i, step) {
        if (!rc)
            rc = add_step(d, path, i, step, err);
    }
    json_decref(root);
    return rc;
}
