/* SPDX-License-Identifier: Apache-2.0 */
/* An entry of the cache is named by what determines it: a text by its tokens' encoder, length and dtype; latents by the
 * bytes of the picture, its bucket, and the autoencoder. One process computes, whatever the number of ranks. */
#include "image/prepare.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "arrays/grow.h"
#include "image/listing.h"
#include "image/text_embed.h"
#include "image/vae.h"
#include "pictures/bucket.h"
#include "pictures/pixels.h"
#include "text/file.h"

struct work {
    const struct prepare *p;
    struct pipeline pipeline;
    struct listing listing;
    struct picture_set *set;
    struct bucket *buckets;   /* (n) */
    uint64_t of_text, of_vae; /* hashes of the parts */
    uint64_t done;
    uint64_t nbad, nprofile, nalpha; /* pictures left out; with a profile; with transparency, of those read now */
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

/* Of samples of all tensors and of the config of a part: another model has another one. */
static int hash_part(const struct work *w, const char *part, uint64_t *out, struct fsdpck_error *err)
{
    struct fsdpck_source *src = NULL;
    char path[PIPELINE_PATH];
    XXH3_state_t *x = XXH3_createState();
    int rc = x ? pipeline_part(&w->pipeline, part, path, err) : fsdpck_error_nomem(err, 64);
    if (!rc)
        rc = fsdpck_source_open(path, NULL, &w->p->fs, &src, err);
    if (!rc)
        XXH3_64bits_reset(x);
    for (size_t i = 0; !rc && i < fsdpck_source_ntensors(src); i++) {
        const struct fsdpck_tensor *t = fsdpck_source_tensor(src, i);
        uint64_t offset[8] = { 0 }, size[8];
        char sample[64] = { 0 };
        for (uint32_t d = 0; d < t->ndim && d < 8; d++) {
            offset[d] = t->shape[d] / 2;
            size[d] = 1;
        }
        const struct fsdpck_read read = { .tensor = t, .offset = offset, .size = size, .dst = sample };
        bool any = t->ndim < 8;
        for (uint32_t d = 0; d < t->ndim; d++)
            any = any && t->shape[d];
        if (any)
            rc = fsdpck_source_read(src, &read, 1, err);
        XXH3_64bits_update(x, t->name, strlen(t->name));
        XXH3_64bits_update(x, t->shape, t->ndim * sizeof *t->shape);
        XXH3_64bits_update(x, sample, sizeof sample);
    }
    if (!rc)
        *out = XXH3_64bits_digest(x);
    XXH3_freeState(x);
    fsdpck_source_close(src);
    return rc;
}

/* Adds the bytes of a file of the pipeline, if it is there. */
static int hash_file(const struct work *w, const char *name, uint64_t *hash, struct fsdpck_error *err)
{
    struct fsdpck_error why = { 0 };
    char path[PIPELINE_PATH], *data;
    size_t nbytes;
    int rc = pipeline_part(&w->pipeline, name, path, err);
    if (rc)
        return rc;
    rc = text_file_read(path, 1 << 28, &data, &nbytes, &why);
    if (rc == FSDPCK_ERR_MISSING)
        return 0;
    if (rc)
        return fsdpck_error_set(err, rc, path, "%s", why.message);
    *hash = XXH3_64bits_withSeed(data, nbytes, *hash);
    free(data);
    return 0;
}

static int hash_parts(struct work *w, struct fsdpck_error *err)
{
    static const char *const of_text[] = { "text_encoder/config.json", "tokenizer/tokenizer.json",
                                           "tokenizer/tokenizer_config.json", "tokenizer/special_tokens_map.json",
                                           "tokenizer/chat_template.jinja" };
    int rc = hash_part(w, "text_encoder", &w->of_text, err);
    if (!rc)
        rc = hash_part(w, "vae", &w->of_vae, err);
    for (size_t i = 0; i < sizeof of_text / sizeof of_text[0] && !rc; i++)
        rc = hash_file(w, of_text[i], &w->of_text, err);
    return rc ? rc : hash_file(w, "vae/config.json", &w->of_vae, err);
}

static uint64_t name_text(const struct work *w, const char *text)
{
    const uint64_t parts[] = { XXH3_64bits(text, strlen(text)), w->of_text, (uint64_t)w->set->ntext, is_rounded(w), 1 };
    return XXH3_64bits(parts, sizeof parts);
}

static int name_latents(const struct work *w, size_t i, uint64_t *out, struct fsdpck_error *err)
{
    const struct bucket *b = &w->buckets[i];
    char *data;
    size_t nbytes;
    int rc = text_file_read(w->listing.items[i].path, 1 << 28, &data, &nbytes, err);
    if (rc)
        return rc;
    const uint64_t parts[] = { XXH3_64bits(data, nbytes), w->of_vae,     (uint64_t)b->height,
                               (uint64_t)b->width,        is_rounded(w), 2 };
    *out = XXH3_64bits(parts, sizeof parts);
    free(data);
    return 0;
}

/* True if a picture that cannot be read is to be left out; the error is taken back then. */
static bool leaves_out(struct work *w, int rc, struct fsdpck_error *err)
{
    const bool of_picture = rc == FSDPCK_ERR_FORMAT || rc == FSDPCK_ERR_UNSUPPORTED || rc == FSDPCK_ERR_LIMIT;
    if (!of_picture || w->p->config->data.on_bad_line != TRAIN_BAD_LINE_SKIP)
        return false;
    *err = (struct fsdpck_error){ 0 };
    w->nbad++;
    return true;
}

/* Takes picture i out of all lists. */
static void leave_out(struct work *w, size_t i)
{
    struct listing *l = &w->listing;
    const struct listed gone = l->items[i];
    memmove(&l->items[i], &l->items[i + 1], (l->n - i - 1) * sizeof *l->items);
    memmove(&w->buckets[i], &w->buckets[i + 1], (l->n - i - 1) * sizeof *w->buckets);
    memmove(&w->set->entries[i], &w->set->entries[i + 1], (l->n - i - 1) * sizeof *w->set->entries);
    w->set->n = --l->n;
    free(gone.path);
    free(gone.caption);
}

static int list_one(struct work *w, size_t i, struct fsdpck_error *err)
{
    struct picture_entry *e = &w->set->entries[i];
    int64_t height, width;
    int rc = picture_size(w->listing.items[i].path, &height, &width, err);
    if (rc)
        return rc;
    w->buckets[i] = bucket_of(height, width, (int64_t)w->p->config->image.resolution, 16);
    e->height = w->buckets[i].height / 16;
    e->width = w->buckets[i].width / 16;
    e->text = name_text(w, w->listing.items[i].caption);
    return name_latents(w, i, &e->latents, err);
}

/* Sizes of all pictures, and their names in the cache. */
static int list_all(struct work *w, struct fsdpck_error *err)
{
    const struct train_config *c = w->p->config;
    struct picture_set *s = w->set;
    int rc = 0;
    w->buckets = calloc(w->listing.n, sizeof *w->buckets);
    s->entries = calloc(w->listing.n, sizeof *s->entries);
    if (!w->buckets || !s->entries)
        return fsdpck_error_nomem(err, w->listing.n * sizeof *s->entries);
    s->n = w->listing.n;
    s->no_text = name_text(w, c->image.trigger_word ? c->image.trigger_word : "");
    for (size_t i = 0; i < s->n && !rc;) {
        rc = list_one(w, i, err);
        if (rc && leaves_out(w, rc, err)) {
            leave_out(w, i);
            rc = 0;
        } else {
            i++;
        }
    }
    return rc;
}

static struct picture_matrix text_matrix(const struct work *w, uint64_t id)
{
    return (struct picture_matrix){ id, w->set->ntext, w->set->text_width, w->set->rounded };
}

/* Opens the encoder when the first text asks for it. */
static int put_text(struct work *w, struct text_embed **t, uint64_t id, const char *text, float *out,
                    struct fsdpck_error *err)
{
    const struct picture_matrix m = text_matrix(w, id);
    const struct sampler_options opt = { .dtype = is_rounded(w) ? "bf16" : "fp32",
                                         .nthreads = w->p->nthreads,
                                         .fs = w->p->fs };
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
    return rc ? rc : picture_cache_put(&w->set->cache, &m, out, err);
}

static int put_texts(struct work *w, struct fsdpck_error *err)
{
    const char *word = w->p->config->image.trigger_word;
    struct text_embed *t = NULL;
    float *out = malloc((size_t)(w->set->ntext * w->set->text_width) * sizeof *out);
    int rc = out ? put_text(w, &t, w->set->no_text, word ? word : "", out, err) : fsdpck_error_nomem(err, 1 << 20);
    for (size_t i = 0; i < w->set->n && !rc; i++) {
        rc = put_text(w, &t, w->set->entries[i].text, w->listing.items[i].caption, out, err);
        w->done++;
        if (!rc)
            rc = tell(w, err);
    }
    text_embed_close(t);
    free(out);
    return rc;
}

struct encoder {
    struct vae *vae;
    const struct kern_device *device;
    struct kern_pool *pool;
    struct kern_stream *stream;
};

static int encoder_open(const struct work *w, struct encoder *e, struct fsdpck_error *err)
{
    char message[KERN_MESSAGE_BYTES] = "no threads";
    e->device = kern_device_find("cpu", message);
    e->pool = kern_pool_new(w->p->nthreads);
    if (!e->pool || e->device->stream_new(0, e->pool, &e->stream, message) != KERN_OK)
        return fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "the kernels cannot start: %s", message);
    int rc = vae_open(&w->pipeline, true, is_rounded(w) ? KERN_BF16 : KERN_F32, &w->p->fs, &e->vae, err);
    if (!rc && (vae_unit(e->vae) != 16 || 4 * e->vae->config.nlatent != w->set->nchannel))
        rc = fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, w->pipeline.folder,
                              "the vae and the transformer do not fit: latent pixels of %lld and %lld channels",
                              (long long)(4 * e->vae->config.nlatent), (long long)w->set->nchannel);
    return rc;
}

static void encoder_close(struct encoder *e)
{
    vae_close(e->vae);
    if (e->device)
        e->device->stream_free(e->stream);
    kern_pool_free(e->pool);
}

static int encode(struct work *w, const struct encoder *e, size_t i, const struct picture_matrix *m,
                  struct fsdpck_error *err)
{
    const struct bucket *b = &w->buckets[i];
    struct picture_notes notes;
    struct pixels p, fitted = { 0 };
    float *latents = malloc((size_t)(m->nrow * m->ncol) * sizeof *latents);
    int rc = latents ? picture_read(w->listing.items[i].path, &p, &notes, err)
                     : fsdpck_error_nomem(err, (size_t)(m->nrow * m->ncol) * sizeof *latents);
    if (!rc) {
        w->nprofile += notes.profile;
        w->nalpha += notes.alpha;
        rc = pixels_resize(&p, b->scaled_height, b->scaled_width, &fitted, err);
        pixels_free(&p);
    }
    if (!rc) {
        pixels_crop(&fitted, b->top, b->left, b->height, b->width);
        rc = vae_encode(e->vae, e->device, e->stream, fitted.rgb, b->height, b->width, latents, err);
    }
    if (!rc)
        rc = picture_cache_put(&w->set->cache, m, latents, err);
    pixels_free(&fitted);
    free(latents);
    return rc;
}

static int put_latents(struct work *w, struct fsdpck_error *err)
{
    struct encoder e = { 0 };
    int rc = 0;
    for (size_t i = 0; i < w->set->n && !rc;) {
        const struct picture_entry *entry = &w->set->entries[i];
        const struct picture_matrix m = { entry->latents, entry->height * entry->width, w->set->nchannel, false };
        if (!picture_cache_has(&w->set->cache, &m)) {
            rc = e.vae ? 0 : encoder_open(w, &e, err);
            if (!rc)
                rc = encode(w, &e, i, &m, err);
        }
        w->done++;
        if (rc && leaves_out(w, rc, err)) {
            leave_out(w, i);
            rc = 0;
        } else {
            i++;
        }
        if (!rc)
            rc = tell(w, err);
    }
    encoder_close(&e);
    return rc;
}

static void note(const struct work *w, uint64_t n, const char *what)
{
    char line[400];
    if (!n || !w->p->fs.note)
        return;
    snprintf(line, sizeof line, "%.200s: %llu picture%s %s", w->p->pictures, (unsigned long long)n, fsdpck_plural(n),
             what);
    w->p->fs.note(w->p->fs.ctx, line);
}

/* Of the pictures that were read now; those in the cache were told of before. */
static int report(const struct work *w, struct fsdpck_error *err)
{
    note(w, w->nbad, "left out, for they cannot be read (data.on_bad_line)");
    note(w, w->nprofile, "with an ICC profile: colours are taken for sRGB");
    note(w, w->nalpha, "with transparency, which is put on white");
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
        rc = hash_parts(&w, err);
    if (!rc)
        rc = list_all(&w, err);
    if (!rc && !p->on_paper)
        rc = picture_cache_open(p->config->output_dir, &out->cache, err);
    if (!rc && !p->on_paper)
        rc = put_texts(&w, err);
    if (!rc && !p->on_paper)
        rc = put_latents(&w, err);
    if (!rc)
        rc = report(&w, err);
    listing_free(&w.listing);
    free(w.buckets);
    return rc;
}
