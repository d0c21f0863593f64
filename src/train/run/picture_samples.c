/* SPDX-License-Identifier: Apache-2.0 */
/* Distributes prompts over ranks in waves. All ranks take part in each prediction, because it gathers parameters, and
 * know all prompts: so they know how many predictions a wave has. A rank that cannot draw its picture says so and goes
 * on taking part. */
#include "run/picture_samples.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <train/history.h>
#include <xxhash.h>

#include "image/decoder.h"
#include "image/flow.h"
#include "image/picture_prompts.h"
#include "image/schedule.h"
#include "rank/files.h"
#include "rank/gather.h"
#include "rank/memory.h"
#include "run/tracker.h"
#include "text/new_file.h"

struct picture_samples {
    struct picture_prompts prompts;
    uint64_t *names; /* (2n) of the embeddings in the cache, as prompts.texts */
    struct picture_cache cache;
    int64_t ntext, text_width, nchannel;
    bool rounded;
};

int picture_samples_open(const struct train_config *config, const struct fsdpck_options *fs,
                         struct picture_samples **out, struct fsdpck_error *err)
{
    struct picture_samples *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return fsdpck_error_nomem(err, sizeof *s);
    int rc = picture_prompts_read(config, fs, &s->prompts, err);
    if (!rc && !(s->names = calloc(2 * s->prompts.n + 1, sizeof *s->names)))
        rc = fsdpck_error_nomem(err, 2 * s->prompts.n * sizeof *s->names);
    if (!rc)
        rc = schedule_check(&s->prompts.pipeline, err);
    if (rc)
        picture_samples_free(s);
    else
        *out = s;
    return rc;
}

void picture_samples_free(struct picture_samples *s)
{
    if (!s)
        return;
    picture_prompts_free(&s->prompts);
    free(s->names);
    free(s);
}

const char *const *picture_samples_texts(struct picture_samples *s, uint64_t **names, size_t *n)
{
    *names = s->names;
    *n = 2 * s->prompts.n;
    return s->prompts.texts;
}

void picture_samples_find(struct picture_samples *s, const struct picture_set *set)
{
    s->cache = set->cache;
    s->ntext = set->ntext;
    s->text_width = set->text_width;
    s->nchannel = set->nchannel;
    s->rounded = set->rounded;
}

uint64_t picture_samples_hash(const struct picture_samples *s)
{
    uint64_t hash = s->prompts.n;
    for (size_t i = 0; i < s->prompts.n; i++) {
        const struct picture_prompt *p = &s->prompts.items[i];
        const struct image_request *r = &p->request;
        const int64_t sizes[] = { r->height, r->width, r->nstep, (int64_t)r->seed };
        hash = XXH3_64bits_withSeed(p->text, strlen(p->text) + 1, hash);
        hash = XXH3_64bits_withSeed(p->negative, strlen(p->negative) + 1, hash);
        hash = XXH3_64bits_withSeed(sizes, sizeof sizes, hash);
        hash = XXH3_64bits_withSeed(&r->guidance, sizeof r->guidance, hash);
    }
    return hash;
}

/* With the dtype and the threads of the rank. */
static struct sampler_options options_of(const struct train_config *config, unsigned nthreads)
{
    return (struct sampler_options){ .dtype = config->dtype.param == TRAIN_BF16 ? "bf16" : "fp32",
                                     .nthreads = nthreads,
                                     .vae_tiling = config->image.vae_tiling };
}

int picture_samples_count(const struct picture_samples *s, const struct train_config *config, int64_t *height,
                          int64_t *width, uint64_t *decoder_nbytes, struct fsdpck_error *err)
{
    const struct sampler_options opt = options_of(config, 1);
    int64_t most = 0;
    for (size_t i = 0; i < s->prompts.n; i++) {
        const struct image_request *r = &s->prompts.items[i].request;
        if (r->height * r->width <= most)
            continue;
        most = r->height * r->width;
        *height = r->height / IMAGE_UNIT;
        *width = r->width / IMAGE_UNIT;
    }
    return image_decoder_count(&s->prompts.pipeline, &opt, *height * IMAGE_UNIT, *width * IMAGE_UNIT, decoder_nbytes,
                               err);
}

/* A wave of prompts on this rank. */
struct wave {
    struct rank *r;
    struct picture_samples *s;
    const struct picture_prompt *prompt; /* this rank's; NULL: none */
    size_t first, number;                /* indices of the wave's first prompt, and of this rank's */
    struct flux2_forward *forward;
    float *texts;                /* (2, ntext, text_width): the prompt, and the negative one */
    float *latents, *velocities; /* (nelem), (2, nelem) */
    float *sigmas;
    int64_t nelem;
    uint64_t npasses, done;     /* predictions of the wave */
    bool begun;                 /* a prediction has run since the parameters changed */
    struct fsdpck_error failed; /* why this rank's picture cannot be drawn */
};

static uint64_t passes_of(const struct picture_prompt *p)
{
    return (uint64_t)p->request.nstep * (p->guided ? 2 : 1);
}

static void free_buffers(struct wave *w)
{
    flux2_forward_free(w->forward);
    free(w->texts);
    free(w->latents);
    free(w->velocities);
    free(w->sigmas);
    w->forward = NULL;
    w->texts = w->latents = w->velocities = w->sigmas = NULL;
}

static int read_texts(struct wave *w, struct fsdpck_error *err)
{
    const struct picture_samples *s = w->s;
    struct picture_matrix m = { s->names[w->number], s->ntext, s->text_width, s->rounded };
    int rc = picture_cache_get(&s->cache, &m, w->texts, err);
    m.id = s->names[s->prompts.n + w->number];
    return rc || !w->prompt->guided ? rc : picture_cache_get(&s->cache, &m, w->texts + s->ntext * s->text_width, err);
}

static int prepare(struct wave *w, struct fsdpck_error *err)
{
    const struct picture_samples *s = w->s;
    const struct image_request *r = &w->prompt->request;
    const int64_t height = r->height / IMAGE_UNIT, width = r->width / IMAGE_UNIT;
    w->nelem = height * width * s->nchannel;
    w->texts = calloc((size_t)(2 * s->ntext * s->text_width), sizeof *w->texts);
    w->latents = calloc((size_t)w->nelem, sizeof *w->latents);
    w->velocities = calloc((size_t)(2 * w->nelem), sizeof *w->velocities);
    w->sigmas = calloc((size_t)r->nstep + 1, sizeof *w->sigmas);
    int rc = w->texts && w->latents && w->velocities && w->sigmas
                 ? read_texts(w, err)
                 : fsdpck_error_nomem(err, (size_t)(2 * s->ntext * s->text_width + 3 * w->nelem) * sizeof(float));
    if (!rc)
        rc = flux2_forward_new(w->r->compute, s->ntext, height, width, w->r->memory->samples, &w->forward, err);
    if (rc)
        return rc;
    schedule_sigmas(height * width, r->nstep, w->sigmas);
    image_request_noise(r, 0, w->nelem, w->latents);
    return 0;
}

/* Before each prediction of the wave, on every rank. */
static int begin_pass(void *ctx, struct fsdpck_error *err)
{
    struct wave *w = ctx;
    struct comm *comm = w->r->comm;
    uint64_t stopping = job_status_stopping(comm->job_status);
    int rc = comm->ops->sum_u64(comm, &stopping, 1, err);
    if (!rc && stopping)
        rc = fsdpck_error_set(err, FSDPCK_ERR_STOPPED, NULL, "stopped");
    if (rc)
        return rc;
    gather_begin(w->r->gather, !w->begun, false);
    w->begun = true;
    w->done++;
    return 0;
}

static int draw(struct wave *w, struct fsdpck_error *err)
{
    const struct compute_hook hook = gather_hook(w->r->gather);
    const struct flow flow = { .forward = w->forward,
                               .text = w->texts,
                               .negative = w->prompt->guided ? w->texts + w->s->ntext * w->s->text_width : NULL,
                               .guidance = (float)w->prompt->request.guidance,
                               .sigmas = w->sigmas,
                               .nstep = w->prompt->request.nstep,
                               .nelem = w->nelem,
                               .hook = &hook,
                               .before = begin_pass,
                               .ctx = w };
    return flow_run(&flow, w->latents, w->velocities, err);
}

/* The predictions of the wave in which this rank has no part. */
static int idle(struct wave *w, struct fsdpck_error *err)
{
    const struct compute_hook hook = gather_hook(w->r->gather);
    int rc = 0;
    while (w->done < w->npasses && !rc) {
        rc = begin_pass(w, err);
        if (!rc)
            rc = compute_loss_skip(w->r->compute, &hook, err);
    }
    return rc;
}

static int path_of(const struct wave *w, size_t number, char path[FILES_PATH], struct fsdpck_error *err)
{
    const struct train_drawn drawn = { .step = w->r->step, .prompt = number + 1 };
    char folder[FILES_PATH], name[TRAIN_DRAWN_NAME];
    train_drawn_name(&drawn, name);
    int rc = files_join(folder, w->r->job->config->output_dir, "samples", err);
    if (!rc && mkdir(folder, 0777) && errno != EEXIST)
        rc = fsdpck_error_sys(err, errno, folder, "mkdir");
    return rc ? rc : files_join(path, folder, name, err);
}

static bool put(FILE *f, const void *ctx)
{
    return image_put_png(f, ctx);
}

/* The transformer's buffers are freed before the decoder comes. */
static int decode(struct wave *w, struct fsdpck_error *err)
{
    const struct image_request *r = &w->prompt->request;
    const struct sampler_options opt = options_of(w->r->job->config, w->r->job->nthreads);
    struct image_decoder decoder;
    struct image image = { .prompt = w->number };
    char path[FILES_PATH];
    float *latents = w->latents;
    w->latents = NULL;
    free_buffers(w);
    int rc = image_decoder_open(&w->s->prompts.pipeline, &opt, w->s->nchannel, r->height, r->width, &decoder, err);
    if (!rc)
        rc = image_decoder_run(&decoder, latents, &image, err);
    if (!rc)
        rc = path_of(w, w->number, path, err);
    if (!rc)
        rc = new_file_write(path, put, &image, err);
    image_decoder_close(&decoder);
    free(latents);
    return rc;
}

static void note(const struct rank *r, const char *line)
{
    if (r->job->opt->note)
        r->job->opt->note(r->job->opt->ctx, line);
}

static void note_failure(const struct wave *w)
{
    char line[2400], text[2048];
    snprintf(line, sizeof line, "step %llu: the picture of prompt %zu could not be made: %s",
             (unsigned long long)w->r->step, w->number + 1, fsdpck_error_format(&w->failed, text, sizeof text));
    note(w->r, line);
}

/* Waits for all pictures of the wave; rank 0 hands them on. */
static int collect(struct wave *w, struct fsdpck_error *err)
{
    uint64_t made[COMM_MAX_SUM] = { 0 };
    struct comm *comm = w->r->comm;
    char path[FILES_PATH];
    if (w->failed.code)
        note_failure(w);
    made[comm->rank] = w->prompt && !w->failed.code;
    int rc = comm->ops->sum_u64(comm, made, comm->nranks, err);
    for (uint32_t q = 0; q < comm->nranks && !rc && comm->rank == 0; q++)
        if (made[q] && path_of(w, w->first + q, path, NULL) == 0)
            tracker_picture(w->r->tracker, w->first + q, path);
    return rc;
}

static int run_wave(struct wave *w, struct fsdpck_error *err)
{
    const struct picture_prompts *all = &w->s->prompts;
    const size_t end = w->first + w->r->comm->nranks;
    w->number = w->first + w->r->comm->rank;
    w->prompt = w->number < all->n ? &all->items[w->number] : NULL;
    w->failed = (struct fsdpck_error){ 0 };
    w->npasses = w->done = 0;
    for (size_t i = w->first; i < end && i < all->n; i++)
        w->npasses = passes_of(&all->items[i]) > w->npasses ? passes_of(&all->items[i]) : w->npasses;
    int rc = w->prompt && prepare(w, &w->failed) == 0 ? draw(w, err) : 0;
    if (!rc)
        rc = idle(w, err);
    if (!rc && w->prompt && !w->failed.code)
        decode(w, &w->failed);
    free_buffers(w);
    return rc ? rc : collect(w, err);
}

int picture_samples_draw(struct picture_samples *s, struct rank *r, struct fsdpck_error *err)
{
    struct wave w = { .r = r, .s = s };
    char line[120];
    int rc = 0;
    comm_at(r->comm, r->step, "sampling");
    for (; w.first < s->prompts.n && !rc; w.first += r->comm->nranks)
        rc = run_wave(&w, err);
    if (rc == FSDPCK_ERR_STOPPED) {
        snprintf(line, sizeof line, "the pictures of step %llu are left out: the run stops",
                 (unsigned long long)r->step);
        *err = (struct fsdpck_error){ 0 };
        rc = 0;
    } else {
        snprintf(line, sizeof line, "step %llu: %zu picture%s drawn, in samples/", (unsigned long long)r->step,
                 s->prompts.n, fsdpck_plural(s->prompts.n));
    }
    if (!rc && r->comm->rank == 0)
        note(r, line);
    return rc;
}
