/* SPDX-License-Identifier: Apache-2.0 */
/* One process computes for all ranks that it starts; those that a launcher started share the work by the files that
 * they write. */
#include "image/prepare.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <train/image.h>
#include <xxhash.h>

#include "image/entry_names.h"
#include "image/fit.h"
#include "image/listing.h"
#include "image/text_embed.h"
#include "image/vae_work.h"
#include "pictures/pixels.h"
#include "text/file.h"

struct work {
    const struct prepare *p;
    struct pipeline pipeline;
    struct listing listing;
    struct picture_set *set;
    bool *new_text, *new_latents; /* (n) the first entry that has this text; these latents */
    struct entry_names names;
    uint64_t done;
    uint64_t nbad, nprofile, nalpha; /* pictures left out; with a profile; with transparency, of those read now */
    uint64_t ncut;                   /* texts with more tokens than are read, of those embedded now */
};

static bool is_rounded(const struct work *w)
{
    return w->p->config->dtype.param == TRAIN_BF16;
}

static int tell(struct work *w, struct fsdpck_error *err)
{
    if (w->p->progress)
        w->p->progress(w->p->ctx, w->done, 2 * w->listing.n);
    return w->p->stop && *w->p->stop ? fsdpck_error_set(err, FSDPCK_ERR_STOPPED, NULL, "stopped") : 0;
}

/* True if a picture that cannot be read is to be left out; the error is taken back then. */
static bool leaves_out(struct work *w, int rc, struct fsdpck_error *err)
{
    const bool of_picture =
        rc == FSDPCK_ERR_FORMAT || rc == FSDPCK_ERR_UNSUPPORTED || rc == FSDPCK_ERR_LIMIT || rc == FSDPCK_ERR_MISSING;
    if (!of_picture || w->p->config->data.on_bad_line != TRAIN_BAD_LINE_SKIP)
        return false;
    *err = (struct fsdpck_error){ 0 };
    w->nbad++;
    return true;
}

static int measure_one(struct listed *x, struct fsdpck_error *err)
{
    char *data;
    size_t nbytes;
    int rc = picture_size(x->path, &x->height, &x->width, err);
    if (!rc)
        rc = text_file_read(x->path, 1 << 28, &data, &nbytes, err);
    if (rc)
        return rc;
    x->content = XXH3_64bits(data, nbytes);
    free(data);
    return 0;
}

/* Sizes and hashes of all pictures. */
static int measure_all(struct work *w, struct fsdpck_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < w->listing.n && !rc;) {
        rc = measure_one(&w->listing.items[i], err);
        if (rc && leaves_out(w, rc, err)) {
            listing_drop(&w->listing, i);
            rc = 0;
        } else {
            i++;
        }
    }
    return rc;
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

/* True for the first entry of each name, and false for its repeats. */
static int find_new(const struct picture_set *s, bool of_text, bool **out, struct fsdpck_error *err)
{
    struct ordered *list = malloc((s->n + 1) * sizeof *list);
    free(*out);
    *out = calloc(s->n + 1, sizeof **out);
    if (!list || !*out) {
        free(list);
        return fsdpck_error_nomem(err, s->n * sizeof *list);
    }
    for (size_t i = 0; i < s->n; i++)
        list[i] = (struct ordered){ of_text ? s->entries[i].text : s->entries[i].latents, i };
    qsort(list, s->n, sizeof *list, by_name);
    for (size_t i = 0; i < s->n; i++)
        (*out)[list[i].i] = i == 0 || list[i].name != list[i - 1].name;
    free(list);
    return 0;
}

/* The entry of each item of the listing. */
static int list_all(struct work *w, struct fsdpck_error *err)
{
    struct picture_set *s = w->set;
    const char *word = w->p->config->image.trigger_word;
    free(s->entries);
    s->entries = calloc(w->listing.n + 1, sizeof *s->entries);
    if (!s->entries)
        return fsdpck_error_nomem(err, w->listing.n * sizeof *s->entries);
    s->n = w->listing.n;
    s->no_text = entry_name_of_text(&w->names, word ? word : "");
    for (size_t i = 0; i < w->p->ntexts; i++)
        w->p->text_names[i] = entry_name_of_text(&w->names, w->p->texts[i]);
    for (size_t i = 0; i < s->n; i++) {
        const struct listed *x = &w->listing.items[i];
        const struct fit fit = fit_of(w->p->config, x);
        s->entries[i] = (struct picture_entry){ .latents = entry_name_of_latents(&w->names, x, &fit),
                                                .text = entry_name_of_text(&w->names, x->caption),
                                                .height = fit.bucket.height / IMAGE_UNIT,
                                                .width = fit.bucket.width / IMAGE_UNIT };
    }
    int rc = find_new(s, true, &w->new_text, err);
    return rc ? rc : find_new(s, false, &w->new_latents, err);
}

static struct picture_matrix latents_matrix(const struct work *w, const struct picture_entry *e)
{
    return (struct picture_matrix){ e->latents, e->height * e->width, w->set->nchannel, false };
}

static struct picture_matrix text_matrix(const struct work *w, uint64_t id)
{
    return (struct picture_matrix){ id, w->set->ntext, w->set->text_width, w->set->rounded };
}

static struct sampler_options options_of(const struct work *w)
{
    return (struct sampler_options){ .dtype = is_rounded(w) ? "bf16" : "fp32",
                                     .nthreads = w->p->nthreads,
                                     .vae_tiling = w->p->config->image.vae_tiling,
                                     .fs = w->p->fs };
}

/* Opens the encoder when the first text asks for it. */
static int put_text(struct work *w, struct text_embed **t, uint64_t id, const char *text, float *out,
                    struct fsdpck_error *err)
{
    const struct picture_matrix m = text_matrix(w, id);
    const struct sampler_options opt = options_of(w);
    bool cut;
    if (picture_cache_has(&w->set->cache, &m))
        return 0;
    int rc = *t ? 0 : text_embed_open(&w->pipeline, &opt, w->set->ntext, t, err);
    if (!rc && text_embed_width(*t) != w->set->text_width)
        rc = fsdpck_error_set(err, FSDPCK_ERR_FORMAT, w->pipeline.folder,
                              "the text encoder gives %lld features, and the transformer takes %lld",
                              (long long)text_embed_width(*t), (long long)w->set->text_width);
    if (!rc)
        rc = text_embed_run(*t, text, out, &cut, err);
    w->ncut += !rc && cut;
    return rc ? rc : picture_cache_put(&w->set->cache, &m, out, err);
}

/* True for an entry of this process's part. */
static bool is_mine(const struct work *w, uint64_t name)
{
    return w->p->nsharing < 2 || name % w->p->nsharing == w->p->share;
}

/* Texts that no picture has. */
static int put_other_texts(struct work *w, bool mine, struct text_embed **t, float *out, struct fsdpck_error *err)
{
    const char *word = w->p->config->image.trigger_word;
    int rc = is_mine(w, w->set->no_text) == mine ? put_text(w, t, w->set->no_text, word ? word : "", out, err) : 0;
    for (size_t i = 0; i < w->p->ntexts && !rc; i++)
        if (is_mine(w, w->p->text_names[i]) == mine)
            rc = put_text(w, t, w->p->text_names[i], w->p->texts[i], out, err);
    return rc;
}

static int put_captions(struct work *w, bool mine, struct text_embed **t, float *out, struct fsdpck_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < w->set->n && !rc; i++) {
        if (is_mine(w, w->set->entries[i].text) != mine)
            continue;
        if (w->new_text[i])
            rc = put_text(w, t, w->set->entries[i].text, w->listing.items[i].caption, out, err);
        w->done++;
        if (!rc)
            rc = tell(w, err);
    }
    return rc;
}

static int put_texts(struct work *w, struct fsdpck_error *err)
{
    const size_t nelem = (size_t)(w->set->ntext * w->set->text_width);
    struct text_embed *t = NULL;
    float *out = malloc(nelem * sizeof *out);
    int rc = out ? 0 : fsdpck_error_nomem(err, nelem * sizeof *out);
    for (int others = 0; others < 2 && !rc; others++) {
        rc = put_other_texts(w, !others, &t, out, err);
        if (!rc)
            rc = put_captions(w, !others, &t, out, err);
    }
    text_embed_close(t);
    free(out);
    return rc;
}

/* Notes what of the file is not used, once for all variants of a picture. */
static void count_notes(struct work *w, const struct listed *x, const struct picture_notes *notes)
{
    if (x->copy || x->flip_x || x->flip_y || x->resolution != w->p->config->image.resolution.values[0])
        return;
    w->nprofile += notes->profile;
    w->nalpha += notes->alpha;
}

/* The pixels that the item gives its bucket. */
static int read_pixels(struct work *w, const struct listed *x, struct pixels *out, struct fsdpck_error *err)
{
    const struct fit fit = fit_of(w->p->config, x);
    struct picture_notes notes;
    struct pixels p;
    int rc = picture_read(x->path, &p, &notes, err);
    if (rc)
        return rc;
    count_notes(w, x, &notes);
    if (x->flip_x)
        pixels_flip_x(&p);
    if (x->flip_y)
        pixels_flip_y(&p);
    rc = fit_apply(&fit, &p, out, err);
    pixels_free(&p);
    return rc;
}

static int encode(struct work *w, const struct vae_work *e, const struct listed *x, const struct picture_matrix *m,
                  struct fsdpck_error *err)
{
    struct pixels p = { 0 };
    float *latents = malloc((size_t)(m->nrow * m->ncol) * sizeof *latents);
    int rc =
        latents ? read_pixels(w, x, &p, err) : fsdpck_error_nomem(err, (size_t)(m->nrow * m->ncol) * sizeof *latents);
    if (!rc)
        rc = vae_encode(e->vae, e->device, e->stream, p.rgb, p.height, p.width, latents, err);
    if (!rc)
        rc = picture_cache_put(&w->set->cache, m, latents, err);
    pixels_free(&p);
    free(latents);
    return rc;
}

static int put_one(struct work *w, struct vae_work *e, size_t i, struct fsdpck_error *err)
{
    const struct picture_entry *entry = &w->set->entries[i];
    const struct picture_matrix m = latents_matrix(w, entry);
    if (!w->new_latents[i] || picture_cache_has(&w->set->cache, &m))
        return 0;
    const struct sampler_options opt = options_of(w);
    int rc = e->vae ? 0 : vae_work_open(&w->pipeline, true, &opt, w->set->nchannel, e, err);
    return rc ? rc : encode(w, e, &w->listing.items[i], &m, err);
}

static int put_pictures(struct work *w, bool mine, struct vae_work *e, struct fsdpck_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < w->listing.n && !rc;) {
        if (is_mine(w, w->set->entries[i].latents) != mine) {
            i++;
            continue;
        }
        rc = put_one(w, e, i, err);
        w->done++;
        if (rc && leaves_out(w, rc, err)) {
            listing_drop(&w->listing, i);
            rc = list_all(w, err);
        } else {
            i++;
        }
        if (!rc)
            rc = tell(w, err);
    }
    return rc;
}

static int put_latents(struct work *w, struct fsdpck_error *err)
{
    struct vae_work e = { 0 };
    int rc = put_pictures(w, true, &e, err);
    if (!rc)
        rc = put_pictures(w, false, &e, err);
    vae_work_close(&e);
    return rc;
}

static void note(const struct work *w, const char *kind, uint64_t n, const char *what)
{
    char line[400];
    if (!n || !w->p->fs.note)
        return;
    snprintf(line, sizeof line, "%.200s: %llu %s%s %s", w->p->pictures, (unsigned long long)n, kind, fsdpck_plural(n),
             what);
    w->p->fs.note(w->p->fs.ctx, line);
}

static void count_missing(struct work *w)
{
    for (size_t i = 0; i < w->set->n; i++) {
        const struct picture_matrix latents = latents_matrix(w, &w->set->entries[i]),
                                    text = text_matrix(w, w->set->entries[i].text);
        w->set->nto_encode += (w->new_latents[i] && !picture_cache_may_have(&w->set->cache, &latents)) +
                              (w->new_text[i] && !picture_cache_may_have(&w->set->cache, &text));
    }
}

/* Of the pictures that were read now; those in the cache were told of before. */
static int report(const struct work *w, struct fsdpck_error *err)
{
    note(w, "line", w->listing.nbad, "left out: no {\"image\": path, \"caption\": text} (data.on_bad_line)");
    note(w, "picture", w->nbad, "left out, for they cannot be read (data.on_bad_line)");
    note(w, "picture", w->nprofile, "with an ICC profile: colours are taken for sRGB");
    note(w, "picture", w->nalpha, "with transparency, which is put on white");
    note(w, "text", w->ncut, "with more tokens than image.max_sequence_length: the end is left out");
    return w->set->n ? 0 : fsdpck_error_set(err, FSDPCK_ERR_FORMAT, w->p->pictures, "no picture of it can be read");
}

static int read_widths(struct work *w, struct fsdpck_error *err)
{
    struct model m;
    int rc = model_read(w->p->config->model, &(struct fsdpck_options){ 0 }, &m, err);
    w->set->nchannel = m.flux2.nchannel;
    w->set->text_width = m.flux2.text_width;
    w->set->ntext = (int64_t)w->p->config->image.max_sequence_length;
    w->set->rounded = is_rounded(w);
    w->names.ntext = w->set->ntext;
    w->names.rounded = w->set->rounded;
    w->names.tiled = w->p->config->image.vae_tiling;
    model_free(&m);
    return rc;
}

int image_prepare(const struct prepare *p, struct picture_set *out, struct fsdpck_error *err)
{
    struct work w = { .p = p, .set = out };
    *out = (struct picture_set){ 0 };
    int rc = pipeline_read(p->config->pipeline, &w.pipeline, err);
    if (!rc)
        rc = read_widths(&w, err);
    if (!rc)
        rc = listing_read(p->pictures, p->config, &w.listing, err);
    if (!rc)
        rc = entry_names_open(&w.pipeline, &p->fs, &w.names, err);
    if (!rc)
        rc = measure_all(&w, err);
    if (!rc)
        rc = listing_vary(&w.listing, p->config, p->once, err);
    if (!rc)
        rc = list_all(&w, err);
    if (!rc)
        rc = picture_cache_open(p->config->output_dir, !p->on_paper, &out->cache, err);
    if (!rc && p->on_paper)
        count_missing(&w);
    if (!rc && !p->on_paper)
        rc = put_texts(&w, err);
    if (!rc && !p->on_paper)
        rc = put_latents(&w, err);
    if (!rc)
        rc = report(&w, err);
    listing_free(&w.listing);
    free(w.new_text);
    free(w.new_latents);
    return rc;
}
