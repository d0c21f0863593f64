/* SPDX-License-Identifier: Apache-2.0 */
/* Converts a line of JSONL to a document: from token ids, or from text with the model's tokenizer and chat template.
 * Lines are untrusted. They count from 1. */
#include "data/data_impl.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <train/chat.h>

#include "data/data_columns.h"
#include "data/data_parts.h"

enum { MAX_DOCUMENT = 1 << 24 };

/* Reserves a document of n tokens. Returns its entry; NULL: out of memory. */
static struct data_section_doc *new_document(struct data_section *d, size_t n)
{
    size_t room = d->tok_capacity;
    if (!grow((void **)&d->ids, &d->tok_capacity, d->ntok + n, sizeof *d->ids) ||
        !grow((void **)&d->labels, &room, d->ntok + n, sizeof *d->labels) ||
        !grow((void **)&d->docs, &d->docs_capacity, d->ndocs + 1, sizeof *d->docs))
        return NULL;
    struct data_section_doc *doc = &d->docs[d->ndocs++];
    *doc = (struct data_section_doc){ .ntok = (uint32_t)n };
    return doc;
}

static int add_tokens(struct data_section *d, const char *path, uint64_t line, json_t *ids, json_t *labels,
                      int64_t nvocab, struct fsdpck_error *err)
{
    size_t n = json_array_size(ids);
    if (n == 0 || n > MAX_DOCUMENT || json_array_size(labels) != n)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path,
                                "line %llu: input_ids has %zu %s and labels %zu; as many are wanted, and at least one",
                                (unsigned long long)line, n, n == 1 ? "entry" : "entries", json_array_size(labels));
    struct data_section_doc *doc = new_document(d, n);
    if (!doc)
        return fsdpck_error_nomem(err, n * sizeof *d->ids);
    for (size_t i = 0; i < n; i++) {
        json_t *id = json_array_get(ids, i), *label = json_array_get(labels, i);
        json_int_t a = json_integer_value(id), b = json_integer_value(label);
        if (!json_is_integer(id) || !json_is_integer(label) || a < 0 || a >= nvocab ||
            (b != -100 && (b < 0 || b >= nvocab)))
            return fsdpck_error_set(
                err, FSDPCK_ERR_FORMAT, path,
                "line %llu, token %zu: ids are whole numbers below the vocabulary's %lld, labels too, or -100",
                (unsigned long long)line, i, (long long)nvocab);
        d->ids[d->ntok] = (int32_t)a;
        d->labels[d->ntok++] = b == -100 ? -1 : (int32_t)b;
        doc->nsupervised += i > 0 && b != -100; /* no token predicts the first one of a document */
    }
    return 0;
}

static int add_text(struct data_section *d, const struct data_reader *reader, struct chat_coder *coder,
                    const char *path, uint64_t line, json_t *root, struct fsdpck_error *err)
{
    char why[1400];
    struct chat_tokens tokens;
    struct fsdpck_error own = { 0 };
    int rc = chat_encode(coder, root, reader->config->data.loss_on, &tokens, &own);
    if (rc) {
        rc = fsdpck_error_set(err, rc, path, "line %llu: %.600s", (unsigned long long)line,
                              fsdpck_error_format(&own, why, sizeof why));
        if (own.hint[0])
            fsdpck_error_hint(err, "%s", own.hint);
        return rc;
    }
    if (tokens.count == 0 || tokens.count > MAX_DOCUMENT)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "line %llu: its text has %zu tokens; 1 to %d are wanted",
                                (unsigned long long)line, tokens.count, MAX_DOCUMENT);
    struct data_section_doc *doc = new_document(d, tokens.count);
    if (!doc)
        return fsdpck_error_nomem(err, tokens.count * sizeof *d->ids);
    for (int i = 0; i < CHAT_NNOTES; i++)
        d->nnoted[i] += tokens.notes >> i & 1;
    for (size_t i = 0; i < tokens.count; i++) {
        if (tokens.ids[i] >= (uint64_t)reader->nvocab)
            return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path,
                                    "line %llu: token %u of the tokenizer, and the model has a vocabulary of %lld",
                                    (unsigned long long)line, tokens.ids[i], (long long)reader->nvocab);
        d->ids[d->ntok] = (int32_t)tokens.ids[i];
        d->labels[d->ntok++] = tokens.supervised[i] ? (int32_t)tokens.ids[i] : -1;
        doc->nsupervised += i > 0 && tokens.supervised[i];
    }
    return 0;
}

static int add_root(struct data_section *d, const struct data_reader *reader, struct chat_coder *coder,
                    const char *path, uint64_t line, json_t *root, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    int rc = data_columns_apply(reader->config->data.columns, root, &own);
    json_t *ids = json_object_get(root, "input_ids"), *labels = json_object_get(root, "labels");
    if (!json_is_object(root))
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "line %llu: an object is wanted",
                                (unsigned long long)line);
    if (rc)
        return fsdpck_error_set(err, rc, path, "line %llu: %s", (unsigned long long)line, own.message);
    if (ids || labels || !coder) {
        if (!json_is_array(ids) || !json_is_array(labels))
            return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path,
                                    "line %llu: {\"input_ids\":[…],\"labels\":[…]} is wanted%s",
                                    (unsigned long long)line, coder ? "" : ", as in the first line of every file");
        return add_tokens(d, path, line, ids, labels, reader->nvocab, err);
    }
    return add_text(d, reader, coder, path, line, root, err);
}

static bool is_blank(const char *text, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++) {
        if (!text[i] || !strchr(" \t\r\n", text[i]))
            return false;
    }
    return true;
}

int data_add_line(struct data_section *d, const struct data_reader *reader, struct chat_coder *coder, const char *path,
                  uint64_t line, const char *text, size_t nbytes, struct fsdpck_error *err)
{
    json_error_t why;
    const struct data_section before = *d;
    if (nbytes > DATA_MAX_LINE)
        return fsdpck_error_set(err, FSDPCK_ERR_LIMIT, path, "line %llu is longer than %d bytes",
                                (unsigned long long)line, DATA_MAX_LINE);
    if (is_blank(text, nbytes))
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "line %llu is empty", (unsigned long long)line);
    json_t *root = json_loadb(text, nbytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    int rc = root ? add_root(d, reader, coder, path, line, root, err)
                  : fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "line %llu: %s", (unsigned long long)line, why.text);
    json_decref(root);
    if (rc) { /* drop the partial document of a bad line */
        d->ndocs = before.ndocs;
        d->ntok = before.ntok;
        memcpy(d->nnoted, before.nnoted, sizeof d->nnoted);
    }
    return rc;
}
