/* SPDX-License-Identifier: Apache-2.0 */
/* Distributes entries over ranks in waves. All ranks take part in each wave: embedding a text gathers parameters, and a
 * stop must end all of them at the same place. */
#include "image/encode.h"

#include <stdio.h>
#include <stdlib.h>

#include "image/fit.h"
#include "image/vae_work.h"

struct phase {
    const struct encode *e;
    struct comm *comm;
    const struct encoding_list *list;
    uint64_t before; /* entries done in earlier phases */
    /* x NULL: this rank has no entry in the wave. */
    int (*run)(void *ctx, const struct encoding_entry *x, struct fsdpck_error *err);
    void *ctx;
};

static int agree_on_stop(struct comm *comm, struct fsdpck_error *err)
{
    uint64_t stopping = job_status_stopping(comm->job_status);
    int rc = comm->ops->sum_u64(comm, &stopping, 1, err);
    return rc || !stopping ? rc : fsdpck_error_set(err, FSDPCK_ERR_STOPPED, NULL, "stopped");
}

static void tell(const struct phase *p, uint64_t done)
{
    const struct encoding *x = p->e->encoding;
    if (p->e->progress && p->comm->rank == 0)
        p->e->progress(p->e->ctx, p->before + done, x->texts.nmissing + x->pictures.nmissing);
}

static int run_waves(const struct phase *p, struct fsdpck_error *err)
{
    const struct encoding_list *l = p->list;
    const size_t nranks = p->comm->nranks;
    int rc = 0;
    for (size_t first = 0; first < l->nmissing && !rc; first += nranks) {
        const size_t mine = first + p->comm->rank;
        comm_at(p->comm, 0, "encoding");
        tell(p, first);
        rc = agree_on_stop(p->comm, err);
        if (!rc)
            rc = p->run(p->ctx, mine < l->nmissing ? &l->entries[l->missing[mine]] : NULL, err);
    }
    if (!rc)
        tell(p, l->nmissing);
    return rc;
}

/* Notes what all ranks have counted. The sum also waits until all entries are in the cache. */
static int note_counts(const struct phase *p, uint64_t *counts, const char *const *lines, size_t n,
                       struct fsdpck_error *err)
{
    const struct fsdpck_options *fs = &p->e->options.fs;
    char line[400];
    int rc = p->comm->ops->sum_u64(p->comm, counts, n, err);
    for (size_t i = 0; i < n && !rc; i++) {
        snprintf(line, sizeof line, lines[i], (unsigned long long)counts[i], fsdpck_plural(counts[i]));
        if (counts[i] && p->comm->rank == 0 && fs->note)
            fs->note(fs->ctx, line);
    }
    return rc;
}

/* ---- texts */

struct texts {
    const struct encoding *encoding;
    struct text_embed *embed;
    float *out;    /* (ntext, text_width) */
    uint64_t ncut; /* texts with more tokens than are read */
};

static int embed_one(void *ctx, const struct encoding_entry *x, struct fsdpck_error *err)
{
    struct texts *t = ctx;
    bool cut = false;
    if (!x)
        return text_embed_skip(t->embed, err);
    int rc = text_embed_run(t->embed, x->from.caption, t->out, &cut, err);
    t->ncut += cut;
    return rc ? rc : picture_cache_put(&t->encoding->cache, &x->to, t->out, err);
}

int encode_texts(const struct encode *e, struct text_encoder *encoder, struct comm *comm, struct fsdpck_error *err)
{
    static const char *const lines[] = {
        "%llu text%s with more tokens than image.max_sequence_length: the end is left out"
    };
    const struct encoding *x = e->encoding;
    struct texts t = { .encoding = x, .out = malloc((size_t)(x->ntext * x->text_width) * sizeof *t.out) };
    const struct phase phase = { .e = e, .comm = comm, .list = &x->texts, .run = embed_one, .ctx = &t };
    int rc = t.out ? text_embed_join(&x->pipeline, encoder, comm, &t.embed, err)
                   : fsdpck_error_nomem(err, (size_t)(x->ntext * x->text_width) * sizeof *t.out);
    if (!rc)
        rc = run_waves(&phase, err);
    if (!rc)
        rc = note_counts(&phase, &t.ncut, lines, 1, err);
    text_embed_close(t.embed);
    free(t.out);
    return rc ? rc : comm->ops->barrier(comm, "encoding", err); /* ranks that share a device have its memory back */
}

/* ---- pictures */

enum { PROFILES, ALPHAS, NNOTES };

struct pictures {
    const struct encode *e;
    struct vae_work work;
    uint64_t counts[NNOTES];
};

/* Counts what of the file is not used, once for all variants of a picture. */
static void count_notes(struct pictures *p, const struct listed *x, const struct picture_notes *notes)
{
    if (x->copy || x->flip_x || x->flip_y || x->resolution != p->e->encoding->config->image.resolution.values[0])
        return;
    p->counts[PROFILES] += notes->profile;
    p->counts[ALPHAS] += notes->alpha;
}

/* The pixels that the picture gives its bucket. */
static int read_pixels(struct pictures *p, const struct listed *x, struct pixels *out, struct fsdpck_error *err)
{
    const struct fit fit = fit_of(p->e->encoding->config, x);
    struct picture_notes notes;
    struct pixels whole;
    int rc = picture_read(x->path, &whole, &notes, err);
    if (rc)
        return rc;
    count_notes(p, x, &notes);
    if (x->flip_x)
        pixels_flip_x(&whole);
    if (x->flip_y)
        pixels_flip_y(&whole);
    rc = fit_apply(&fit, &whole, out, err);
    pixels_free(&whole);
    return rc;
}

/* Opens the autoencoder for the rank's first picture. */
static int encode_one(void *ctx, const struct encoding_entry *x, struct fsdpck_error *err)
{
    struct pictures *p = ctx;
    const struct encoding *e = p->e->encoding;
    struct vae_work *w = &p->work;
    struct pixels pixels = { 0 };
    if (!x)
        return 0;
    int rc = w->vae ? 0 : vae_work_open(&e->pipeline, true, &p->e->options, p->e->local, e->nchannel, w, err);
    const size_t nbytes = (size_t)(x->to.nrow * x->to.ncol) * sizeof(float);
    float *latents = malloc(nbytes);
    if (!rc)
        rc = latents ? read_pixels(p, &x->from, &pixels, err) : fsdpck_error_nomem(err, nbytes);
    if (!rc)
        rc = vae_encode(w->vae, w->device, w->stream, pixels.rgb, pixels.height, pixels.width, latents, err);
    if (!rc)
        rc = picture_cache_put(&e->cache, &x->to, latents, err);
    pixels_free(&pixels);
    free(latents);
    return rc;
}

int encode_pictures(const struct encode *e, struct comm *comm, struct fsdpck_error *err)
{
    static const char *const lines[NNOTES] = {
        [PROFILES] = "%llu picture%s with an ICC profile: colours are taken for sRGB",
        [ALPHAS] = "%llu picture%s with transparency, which is put on white",
    };
    struct pictures p = { .e = e };
    const struct phase phase = { .e = e,
                                 .comm = comm,
                                 .list = &e->encoding->pictures,
                                 .before = e->encoding->texts.nmissing,
                                 .run = encode_one,
                                 .ctx = &p };
    int rc = run_waves(&phase, err);
    vae_work_close(&p.work);
    return rc ? rc : note_counts(&phase, p.counts, lines, NNOTES, err);
}
