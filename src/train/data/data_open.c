/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the data of a config: reads documents from the token cache (and builds it if it is missing), applies weights,
 * and packs documents into rows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <train/chat.h>
#include <train/lines.h>

#include "data/data_cache.h"
#include "data/data_pictures.h"
#include "data/data_columns.h"

static void note_documents(const struct data *d, const struct train_config *config, const struct fsdpck_options *opt,
                           const char *path, bool made)
{
    char line[600];
    if (!opt || !opt->note)
        return;
    snprintf(line, sizeof line, "%.160s%s: %zu document%s; %s %.200s", config->data.train,
             d->nfiles > 1 ? " and others" : "", d->ndocs, fsdpck_plural(d->ndocs), made ? "kept in" : "from", path);
    opt->note(opt->ctx, line);
}

/* Builds the cache, together with other processes if there are any, then maps it. */
static int build_cache(struct data *d, const struct data_reader *reader, const struct data_cache_id *id, bool *found,
                       bool *made, struct fsdpck_error *err)
{
    struct data_cache *cache;
    int rc = data_cache_open(d, id, &cache, found, err);
    if (rc || *found)
        return rc;
    *made = true;
    rc = data_build(reader, cache, NULL, err);
    data_cache_close(cache);
    return rc ? rc : data_cache_map(d, id, found, err);
}

static int open_cache(struct data *d, const struct data_reader *reader, const struct data_cache_id *id, bool *made,
                      struct fsdpck_error *err)
{
    bool found = false;
    int rc = data_cache_map(d, id, &found, err);
    for (int attempt = 0; attempt < 2 && !rc && !found;
         attempt++) /* parts left over from an earlier build may be damaged */
        rc = build_cache(d, reader, id, &found, made, err);
    return rc || found
               ? rc
               : fsdpck_error_set(err, FSDPCK_ERR_FORMAT, reader->config->data.train, "no line of it could be used");
}

/* Opens text through the cache. All ranks of a host share its pages. */
static int open_text(struct data *d, struct data_reader *reader, const struct fsdpck_options *opt,
                     struct fsdpck_error *err)
{
    const struct train_config *config = reader->config;
    struct chat *chat = NULL;
    char path[4096 + 64];
    struct data_cache_id id = { .path = path, .nfiles = config->data.nfiles, .nvocab = reader->nvocab };
    bool made = false;
    int rc = chat_open(config->model, &chat, err);
    reader->chat = chat;
    d->dated = !rc && chat_asks_date(chat);
    if (!rc && config->data.date)
        rc = chat_set_date(chat, config->data.date, err);
    if (!rc)
        rc = data_cache_key(reader, &id.key, err);
    if (!rc)
        rc = data_cache_path(config, id.key, path, sizeof path, err);
    if (!rc)
        rc = open_cache(d, reader, &id, &made, err);
    if (!rc)
        note_documents(d, config, opt, path, made);
    reader->chat = NULL;
    chat_close(chat);
    return rc;
}

/* Reads tokenized documents into memory. */
static int open_tokens(struct data *d, const struct data_reader *reader, struct fsdpck_error *err)
{
    bool sound = true;
    int rc = data_build(reader, NULL, d, err);
    if (!rc)
        rc = data_documents_begin(d, reader->config->data.nfiles, err);
    for (size_t i = 0; i < d->nsections && !rc && sound; i++)
        rc = data_documents_add(d, &d->sections[i], reader->nvocab, &sound, err);
    data_documents_end(d);
    if (!rc && (!sound || d->ndocs == 0))
        rc = fsdpck_error_set(err, FSDPCK_ERR_FORMAT, reader->config->data.train,
                              sound ? "no line of it could be used" : "more than 2^32 documents");
    return rc;
}

static int first_line_is_text(const struct train_config *config, const char *path, bool *out, struct fsdpck_error *err)
{
    struct fsdpck_error ignored = { 0 }; /* the reader of the line will report it */
    json_t *example;
    int rc = train_lines_first(path, &example, err);
    data_columns_apply(config->data.columns, example, &ignored);
    *out = json_is_object(example) && !json_object_get(example, "input_ids") && !json_object_get(example, "labels");
    json_decref(example);
    return rc;
}

/* True if any of the files has text. */
static int has_text(const struct train_config *config, bool *out, struct fsdpck_error *err)
{
    int rc = 0;
    *out = false;
    for (size_t i = 0; i < config->data.nfiles && !*out && !rc; i++)
        rc = first_line_is_text(config, config->data.files[i].path, out, err);
    return rc;
}

/* Reports content that the tokenizer or the template dropped from documents. */
static void note_chat_notes(const struct data *d, const struct train_config *config, const struct fsdpck_options *opt)
{
    char line[600];
    for (int i = 0; i < CHAT_NNOTES && opt && opt->note; i++) {
        if (!d->nnoted[i])
            continue;
        snprintf(line, sizeof line, "%.200s%s: %llu of %zu document%s %s %s", config->data.train,
                 d->nfiles > 1 ? " and others" : "", (unsigned long long)d->nnoted[i], d->ndocs,
                 fsdpck_plural(d->ndocs), d->nnoted[i] == 1 ? "has" : "have", chat_note_text((enum chat_note)i));
        opt->note(opt->ctx, line);
    }
}

static int open_documents(struct data *d, const struct train_config *config, int64_t nvocab,
                          const struct fsdpck_options *opt, struct fsdpck_error *err)
{
    struct data_reader reader = { .config = config, .nvocab = nvocab, .opt = opt };
    char line[400];
    bool text;
    int rc = has_text(config, &text, err);
    if (!rc)
        rc = text ? open_text(d, &reader, opt, err) : open_tokens(d, &reader, err);
    if (!rc && d->nskipped && opt && opt->note) {
        snprintf(line, sizeof line, "%.200s: %llu bad line%s left out (data.on_bad_line)", config->data.train,
                 (unsigned long long)d->nskipped, fsdpck_plural(d->nskipped));
        opt->note(opt->ctx, line);
    }
    if (!rc)
        note_chat_notes(d, config, opt);
    return rc ? rc : data_apply_weights(d, config, err);
}

int data_make_order(struct data *d, struct fsdpck_error *err)
{
    size_t nbytes = sizeof *d->order + d->groups.count * sizeof d->order->rows[0];
    d->order = malloc(nbytes);
    if (!d->order)
        return fsdpck_error_nomem(err, nbytes);
    d->order->epoch = UINT64_MAX;
    return 0;
}

int data_open(const struct train_config *config, int64_t nvocab, const struct fsdpck_options *opt, struct data **out,
              struct fsdpck_error *err)
{
    struct data *d = calloc(1, sizeof *d);
    int rc = d ? open_documents(d, config, nvocab, opt, err) : fsdpck_error_nomem(err, sizeof *d);
    if (!rc) {
        d->planned = config->data.plan != NULL;
        d->seed = config->seed;
        d->micro_rows = config->train.micro_batch_size;
        d->step_rows = config->train.global_batch_size;
        rc = d->planned ? data_read_plan(d, config->data.plan, err) : data_pack(d, config, opt, err);
    }
    if (!rc && !d->planned)
        rc = data_make_order(d, err);
    if (!rc)
        data_documents_fingerprint(d);
    if (rc) {
        data_close(d);
        d = NULL;
    }
    *out = d;
    return rc;
}

/* Frees the documents; d can be filled again. */
void data_free_documents(struct data *d)
{
    free(d->docs);
    free(d->file_ends);
    for (size_t i = 0; i < d->nsections; i++)
        data_section_free(&d->sections[i]);
    free(d->sections);
    if (d->map)
        munmap(d->map, d->map_nbytes);
    d->docs = NULL;
    d->file_ends = NULL;
    d->sections = NULL;
    d->map = NULL;
    d->ndocs = d->docs_capacity = d->nsections = d->sections_capacity = 0;
    d->nskipped = 0;
    memset(d->nnoted, 0, sizeof d->nnoted);
}

void data_close(struct data *d)
{
    if (!d)
        return;
    data_free_documents(d);
    picture_set_free(d->pictures);
    free(d->pictures);
    free(d->members);
    free(d->order);
    free(d->steps.at);
    free(d->groups.at);
    free(d);
}
