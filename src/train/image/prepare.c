/* SPDX-License-Identifier: Apache-2.0 */
/* Runs in the process that starts the ranks, which must not start a device's driver. */
#include "image/prepare.h"

#include <stdio.h>
#include <stdlib.h>
#include <train/image.h>
#include <xxhash.h>

#include "image/entry_names.h"
#include "image/fit.h"
#include "pictures/pixels.h"
#include "text/file.h"

struct work {
    const struct prepare *p;
    struct encoding *encoding;
    struct listing listing;
    struct entry_names names;
    struct picture_set *set;
    uint64_t nbad; /* pictures left out */
};

static const struct train_config *config_of(const struct work *w)
{
    return w->encoding->config;
}

/* True if a picture that cannot be read is to be left out; the error is taken back then. */
static bool leaves_out(struct work *w, int rc, struct fsdpck_error *err)
{
    const bool of_picture =
        rc == FSDPCK_ERR_FORMAT || rc == FSDPCK_ERR_UNSUPPORTED || rc == FSDPCK_ERR_LIMIT || rc == FSDPCK_ERR_MISSING;
    if (!of_picture || config_of(w)->data.on_bad_line != TRAIN_BAD_LINE_SKIP)
        return false;
    *err = (struct fsdpck_error){ 0 };
    w->nbad++;
    return true;
}

static struct picture_matrix latents_of(const struct work *w, const struct listed *x)
{
    const struct fit fit = fit_of(config_of(w), x);
    return encoding_latents(w->encoding, entry_name_of_latents(&w->names, x, &fit), fit.bucket.height / IMAGE_UNIT,
                            fit.bucket.width / IMAGE_UNIT);
}

/* Its size, and the hash of its bytes. */
static int measure(struct work *w, struct listed *x, struct fsdpck_error *err)
{
    char *data;
    size_t nbytes;
    int rc = picture_size(x->path, &x->height, &x->width, err);
    if (!rc)
        rc = text_file_read(x->path, 1 << 28, &data, &nbytes, err);
    if (rc)
        return rc;
    x->content = XXH3_64bits(data, nbytes);
    x->resolution = config_of(w)->image.resolution.values[0];
    free(data);
    return 0;
}

/* Where pictures may be left out, those without latents are decoded: the ranks must know all that are trained on. */
static int check(const struct work *w, const struct listed *x, struct fsdpck_error *err)
{
    const struct picture_matrix m = latents_of(w, x);
    struct picture_notes notes;
    struct pixels pixels;
    if (w->p->on_paper || config_of(w)->data.on_bad_line != TRAIN_BAD_LINE_SKIP || encoding_may_have(w->encoding, &m))
        return 0;
    int rc = picture_read(x->path, &pixels, &notes, err);
    if (!rc)
        pixels_free(&pixels);
    return rc;
}

static int check_stop(const struct work *w, struct fsdpck_error *err)
{
    return w->p->stop && *w->p->stop ? fsdpck_error_set(err, FSDPCK_ERR_STOPPED, NULL, "stopped") : 0;
}

static int measure_all(struct work *w, struct fsdpck_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < w->listing.n && !rc;) {
        rc = measure(w, &w->listing.items[i], err);
        if (!rc)
            rc = check(w, &w->listing.items[i], err);
        if (rc && leaves_out(w, rc, err)) {
            listing_drop(&w->listing, i);
            rc = 0;
        } else {
            i++;
        }
        if (!rc)
            rc = check_stop(w, err);
    }
    return rc;
}

static int add_text(const struct work *w, const char *text, uint64_t *name, struct fsdpck_error *err)
{
    *name = entry_name_of_text(&w->names, text);
    return encoding_add_text(w->encoding, *name, text, err);
}

/* Texts that no picture has. */
static int add_other_texts(struct work *w, struct fsdpck_error *err)
{
    const char *word = config_of(w)->image.trigger_word;
    int rc = add_text(w, word ? word : "", &w->set->no_text, err);
    for (size_t i = 0; i < w->p->ntexts && !rc; i++)
        rc = add_text(w, w->p->texts[i], &w->p->text_names[i], err);
    return rc;
}

static int add_one(struct work *w, const struct listed *x, struct picture_entry *out, struct fsdpck_error *err)
{
    const struct bucket b = fit_of(config_of(w), x).bucket;
    const struct picture_matrix m = latents_of(w, x);
    *out = (struct picture_entry){ .latents = m.id, .height = b.height / IMAGE_UNIT, .width = b.width / IMAGE_UNIT };
    int rc = encoding_add_picture(w->encoding, &m, x, err);
    return rc ? rc : add_text(w, x->caption, &out->text, err);
}

static int add_all(struct work *w, struct fsdpck_error *err)
{
    struct picture_set *s = w->set;
    s->entries = calloc(w->listing.n + 1, sizeof *s->entries);
    if (!s->entries)
        return fsdpck_error_nomem(err, w->listing.n * sizeof *s->entries);
    s->n = w->listing.n;
    int rc = add_other_texts(w, err);
    for (size_t i = 0; i < s->n && !rc; i++)
        rc = add_one(w, &w->listing.items[i], &s->entries[i], err);
    return rc;
}

static void note(const struct work *w, const char *kind, uint64_t n, const char *what)
{
    const struct fsdpck_options *fs = &w->encoding->fs;
    char line[400];
    if (!n || !fs->note)
        return;
    snprintf(line, sizeof line, "%.200s: %llu %s%s %s", w->p->pictures, (unsigned long long)n, kind, fsdpck_plural(n),
             what);
    fs->note(fs->ctx, line);
}

static int report(const struct work *w, struct fsdpck_error *err)
{
    note(w, "line", w->listing.nbad, "left out: no {\"image\": path, \"caption\": text} (data.on_bad_line)");
    note(w, "picture", w->nbad, "left out, for they cannot be read (data.on_bad_line)");
    return w->set->n ? 0 : fsdpck_error_set(err, FSDPCK_ERR_FORMAT, w->p->pictures, "no picture of it can be read");
}

static void describe(struct work *w)
{
    const struct encoding *e = w->encoding;
    *w->set = (struct picture_set){ .cache = e->cache,
                                    .ntext = e->ntext,
                                    .text_width = e->text_width,
                                    .nchannel = e->nchannel,
                                    .rounded = e->rounded };
    w->names.ntext = e->ntext;
    w->names.rounded = e->rounded;
    w->names.tiled = e->config->image.vae_tiling;
}

int image_prepare(const struct prepare *p, struct encoding *encoding, struct picture_set *out, struct fsdpck_error *err)
{
    struct work w = { .p = p, .encoding = encoding, .set = out };
    describe(&w);
    int rc = listing_read(p->pictures, encoding->config, &w.listing, err);
    if (!rc)
        rc = entry_names_open(&encoding->pipeline, &encoding->fs, &w.names, err);
    if (!rc)
        rc = measure_all(&w, err);
    if (!rc)
        rc = listing_vary(&w.listing, encoding->config, p->once, err);
    if (!rc)
        rc = add_all(&w, err);
    if (!rc)
        rc = report(&w, err);
    listing_free(&w.listing);
    return rc;
}
