/* SPDX-License-Identifier: Apache-2.0 */
#include "image/encoding.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "arrays/grow.h"
#include "image/fit.h"
#include "model/model.h"

static int read_widths(struct encoding *e, struct fsdpck_error *err)
{
    struct model m;
    int rc = model_read(e->config->model, &(struct fsdpck_options){ 0 }, &m, err);
    e->nchannel = m.flux2.nchannel;
    e->text_width = m.flux2.text_width;
    e->ntext = (int64_t)e->config->image.max_sequence_length;
    e->rounded = e->config->dtype.param == TRAIN_BF16;
    model_free(&m);
    return rc;
}

int encoding_new(const struct train_config *config, const struct fsdpck_options *fs, bool creates,
                 struct encoding **out, struct fsdpck_error *err)
{
    struct encoding *e = calloc(1, sizeof *e);
    *out = NULL;
    if (!e)
        return fsdpck_error_nomem(err, sizeof *e);
    e->config = config;
    e->fs = *fs;
    int rc = pipeline_read(config->pipeline, &e->pipeline, err);
    if (!rc)
        rc = read_widths(e, err);
    if (!rc)
        rc = picture_cache_open(config->output_dir, creates, &e->cache, err);
    if (!rc)
        rc = picture_names_read(&e->cache, &e->found, err);
    if (rc)
        encoding_free(e);
    else
        *out = e;
    return rc;
}

static void free_entry(struct encoding_entry *x)
{
    free(x->from.path);
    free(x->from.caption);
}

static void free_list(struct encoding_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        free_entry(&l->entries[i]);
    free(l->entries);
    free(l->missing);
}

void encoding_free(struct encoding *e)
{
    if (!e)
        return;
    free_list(&e->texts);
    free_list(&e->pictures);
    picture_names_free(&e->found);
    free(e);
}

struct picture_matrix encoding_text(const struct encoding *e, uint64_t name)
{
    return (struct picture_matrix){ name, e->ntext, e->text_width, e->rounded };
}

struct picture_matrix encoding_latents(const struct encoding *e, uint64_t name, int64_t height, int64_t width)
{
    return (struct picture_matrix){ name, height * width, e->nchannel, false };
}

/* Takes the entry, whose text or path is new. */
static int add(struct encoding_list *l, struct encoding_entry x, struct fsdpck_error *err)
{
    if ((x.from.path || x.from.caption) && grow((void **)&l->entries, &l->room, l->n + 1, sizeof x)) {
        l->entries[l->n++] = x;
        return 0;
    }
    free_entry(&x);
    return fsdpck_error_nomem(err, (l->n + 1) * sizeof x);
}

int encoding_add_text(struct encoding *e, uint64_t name, const char *text, struct fsdpck_error *err)
{
    return add(&e->texts, (struct encoding_entry){ encoding_text(e, name), { .caption = strdup(text) } }, err);
}

int encoding_add_picture(struct encoding *e, const struct picture_matrix *to, const struct listed *from,
                         struct fsdpck_error *err)
{
    struct encoding_entry x = { *to, *from };
    x.from.caption = NULL;
    x.from.path = strdup(from->path);
    return add(&e->pictures, x, err);
}

struct ordered {
    uint64_t name;
    size_t i;
};

static int by_name(const void *x, const void *y)
{
    const struct ordered *a = x, *b = y;
    return a->name != b->name ? (a->name < b->name ? -1 : 1) : (a->i > b->i) - (a->i < b->i);
}

/* Drops the entries that have the name of an earlier one. */
static int settle(struct encoding_list *l, struct fsdpck_error *err)
{
    struct ordered *order = calloc(l->n + 1, sizeof *order);
    bool *repeats = calloc(l->n + 1, sizeof *repeats);
    size_t n = 0;
    int rc = order && repeats ? 0 : fsdpck_error_nomem(err, l->n * sizeof *order);
    for (size_t i = 0; i < l->n && !rc; i++)
        order[i] = (struct ordered){ l->entries[i].to.id, i };
    if (!rc && l->n)
        qsort(order, l->n, sizeof *order, by_name);
    for (size_t i = 1; i < l->n && !rc; i++)
        repeats[order[i].i] = order[i].name == order[i - 1].name;
    for (size_t i = 0; i < l->n && !rc; i++) {
        if (repeats[i])
            free_entry(&l->entries[i]);
        else
            l->entries[n++] = l->entries[i];
    }
    l->n = rc ? l->n : n;
    free(order);
    free(repeats);
    return rc;
}

int encoding_settle(struct encoding *e, struct fsdpck_error *err)
{
    int rc = settle(&e->texts, err);
    return rc ? rc : settle(&e->pictures, err);
}

bool encoding_may_have(const struct encoding *e, const struct picture_matrix *m)
{
    return picture_names_have(&e->found, m->id) && picture_cache_may_have(&e->cache, m);
}

static uint64_t count(const struct encoding *e, const struct encoding_list *l)
{
    uint64_t n = 0;
    for (size_t i = 0; i < l->n; i++)
        n += !encoding_may_have(e, &l->entries[i].to);
    return n;
}

void encoding_count(const struct encoding *e, uint64_t *ntexts, uint64_t *npictures)
{
    *ntexts = count(e, &e->texts);
    *npictures = count(e, &e->pictures);
}

static uint64_t hash_of(const struct encoding_list *l, uint64_t hash)
{
    for (size_t i = 0; i < l->n; i++)
        hash = XXH3_64bits_withSeed(&l->entries[i].to.id, sizeof l->entries[i].to.id, hash);
    return hash;
}

uint64_t encoding_hash(const struct encoding *e)
{
    return hash_of(&e->pictures, hash_of(&e->texts, e->texts.n));
}

void encoding_largest(const struct encoding *e, int64_t *height, int64_t *width)
{
    *height = *width = 0;
    for (size_t i = 0; i < e->pictures.n; i++) {
        const struct bucket b = fit_of(e->config, &e->pictures.entries[i].from).bucket;
        if (b.height * b.width > *height * *width) {
            *height = b.height;
            *width = b.width;
        }
    }
}

/* bits: (n) those that this rank has set; then those of all ranks. */
static int share_bits(struct comm *comm, uint64_t *bits, size_t n, struct fsdpck_error *err)
{
    const size_t nwords = (n + 63) / 64;
    int rc = 0;
    for (size_t at = 0; at < nwords && !rc; at += COMM_MAX_SUM)
        rc = comm->ops->sum_u64(comm, bits + at, nwords - at < COMM_MAX_SUM ? nwords - at : COMM_MAX_SUM, err);
    return rc;
}

static int find(const struct encoding *e, struct encoding_list *l, struct comm *comm, struct fsdpck_error *err)
{
    uint64_t *bits = calloc(l->n / 64 + 1, sizeof *bits);
    free(l->missing);
    l->nmissing = 0;
    l->missing = calloc(l->n + 1, sizeof *l->missing);
    int rc = bits && l->missing ? 0 : fsdpck_error_nomem(err, l->n * sizeof *l->missing);
    for (size_t i = comm->rank; i < l->n && !rc; i += comm->nranks) {
        comm_heartbeat(comm);
        const struct picture_matrix *m = &l->entries[i].to;
        const bool has = picture_names_have(&e->found, m->id) && picture_cache_has(&e->cache, m);
        bits[i / 64] |= (uint64_t)!has << i % 64;
    }
    if (!rc)
        rc = share_bits(comm, bits, l->n, err);
    for (size_t i = 0; i < l->n && !rc; i++)
        if (bits[i / 64] >> i % 64 & 1)
            l->missing[l->nmissing++] = i;
    free(bits);
    return rc;
}

int encoding_find(struct encoding *e, struct comm *comm, struct fsdpck_error *err)
{
    picture_names_free(&e->found);
    int rc = picture_names_read(&e->cache, &e->found, err);
    if (!rc)
        rc = find(e, &e->texts, comm, err);
    return rc ? rc : find(e, &e->pictures, comm, err);
}
