/* SPDX-License-Identifier: Apache-2.0 */
/* Texts to embeddings, noise to latents, latents to pixels: each with the part of the pipeline that does it, which then
 * leaves memory. */
#include <train/image.h>

#include <stdlib.h>
#include <string.h>

#include "image/decoder.h"
#include "image/flow.h"
#include "image/request.h"
#include "image/schedule.h"
#include "image/text_embed.h"
#include "sample/whole.h"

struct work {
    struct pipeline pipeline;
    const struct sampler_options *opt;
    struct image_request r; /* with defaults filled in */
    const struct image_calls *calls;
    int64_t height, width; /* latent pixels */
    int64_t text_width, nchannel;
    float *texts;   /* (nprompts + 1, max_tokens, text_width): the last one is the negative text */
    float *latents; /* (nprompts, count, height · width, nchannel) */
};

static bool is_guided(const struct work *w)
{
    return image_request_is_guided(&w->pipeline, &w->r);
}

static int progress(const struct work *w, enum image_phase phase, uint64_t done, uint64_t total,
                    struct fsdpck_error *err)
{
    if (w->calls->progress)
        w->calls->progress(w->calls->ctx, phase, done, total);
    return w->calls->stop && w->calls->stop(w->calls->ctx) ? fsdpck_error_set(err, FSDPCK_ERR_STOPPED, NULL, "stopped")
                                                           : 0;
}

static void note(const struct work *w, const char *line)
{
    if (w->opt->fs.note)
        w->opt->fs.note(w->opt->fs.ctx, line);
}

static int read_texts(struct work *w, struct fsdpck_error *err)
{
    const size_t ntext = w->r.nprompts + is_guided(w);
    struct text_embed *t;
    int rc = progress(w, IMAGE_READS_TEXT, 0, ntext, err);
    if (!rc)
        rc = text_embed_open(&w->pipeline, w->opt, w->r.max_tokens, &t, err);
    if (rc)
        return rc;
    w->text_width = text_embed_width(t);
    w->texts = calloc(ntext * (size_t)(w->r.max_tokens * w->text_width), sizeof *w->texts);
    rc = w->texts ? 0 : fsdpck_error_nomem(err, ntext * (size_t)(w->r.max_tokens * w->text_width) * sizeof(float));
    for (size_t i = 0; i < ntext && !rc; i++) {
        const char *text = i < w->r.nprompts ? w->r.prompts[i] : w->r.negative;
        bool cut;
        rc = text_embed_run(t, text, w->texts + i * (size_t)(w->r.max_tokens * w->text_width), &cut, err);
        if (!rc && cut)
            note(w, "a prompt has more tokens than are read (--max-sequence-length): its end is left out");
        if (!rc)
            rc = progress(w, IMAGE_READS_TEXT, i + 1, ntext, err);
    }
    text_embed_close(t);
    return rc;
}

static int check_transformer(void *ctx, struct model *m, const char *path, struct fsdpck_error *err)
{
    (void)ctx;
    return !m->family ? 0 : fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, path, "a Flux2Transformer2DModel is wanted");
}

static float *texts_of(const struct work *w, size_t i)
{
    return w->texts + i * (size_t)(w->r.max_tokens * w->text_width);
}

static float *latents_of(const struct work *w, size_t prompt, size_t number)
{
    return w->latents + (prompt * w->r.count + number) * (size_t)(w->height * w->width * w->nchannel);
}

struct progress_of {
    const struct work *w;
    uint64_t before;
};

static int after_step(void *ctx, int64_t step, struct fsdpck_error *err)
{
    const struct progress_of *p = ctx;
    const struct image_request *r = &p->w->r;
    return progress(p->w, IMAGE_STEPS, p->before + (uint64_t)step, (uint64_t)r->nstep * r->nprompts * r->count, err);
}

static int flow_one(const struct work *w, struct flux2_forward *forward, size_t i, const float *sigmas,
                    float *velocities, struct fsdpck_error *err)
{
    const size_t prompt = i / w->r.count, number = i % w->r.count;
    struct progress_of p = { w, i * (uint64_t)w->r.nstep };
    const struct flow flow = { .forward = forward,
                               .text = texts_of(w, prompt),
                               .negative = is_guided(w) ? texts_of(w, w->r.nprompts) : NULL,
                               .guidance = (float)w->r.guidance,
                               .sigmas = sigmas,
                               .nstep = w->r.nstep,
                               .nelem = w->height * w->width * w->nchannel,
                               .after = after_step,
                               .ctx = &p };
    image_request_noise(&w->r, number, flow.nelem, latents_of(w, prompt, number));
    return flow_run(&flow, latents_of(w, prompt, number), velocities, err);
}

static int check_widths(struct work *w, const struct model *m, const char *path, struct fsdpck_error *err)
{
    if (m->flux2.text_width != w->text_width)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path,
                                "key 'joint_attention_dim': %lld; the text encoder gives %lld",
                                (long long)m->flux2.text_width, (long long)w->text_width);
    w->nchannel = m->flux2.nchannel;
    return 0;
}

static int flow_all(struct work *w, struct flux2_forward *f, struct fsdpck_error *err)
{
    const size_t n = (size_t)(w->height * w->width * w->nchannel);
    float *sigmas = calloc((size_t)w->r.nstep + 1, sizeof *sigmas), *v = calloc(2 * n, sizeof *v);
    w->latents = calloc(w->r.nprompts * w->r.count * n, sizeof *w->latents);
    int rc = sigmas && v && w->latents
                 ? progress(w, IMAGE_STEPS, 0, w->r.nprompts * w->r.count * (size_t)w->r.nstep, err)
                 : fsdpck_error_nomem(err, (2 + w->r.nprompts * w->r.count) * n * sizeof *v);
    if (!rc)
        schedule_sigmas(w->height * w->width, w->r.nstep, sigmas);
    for (size_t i = 0; i < w->r.nprompts * w->r.count && !rc; i++)
        rc = flow_one(w, f, i, sigmas, v, err);
    free(sigmas);
    free(v);
    return rc;
}

static int run_transformer(struct work *w, struct fsdpck_error *err)
{
    const struct whole_choice choice = { .check = check_transformer };
    struct whole whole = { 0 };
    struct flux2_forward *f = NULL;
    char path[PIPELINE_PATH];
    int rc = pipeline_part(&w->pipeline, "transformer", path, err);
    if (!rc)
        rc = whole_open(path, w->opt, &choice, &whole, err);
    if (!rc)
        rc = check_widths(w, &whole.job.model, path, err);
    if (!rc)
        rc = flux2_forward_new(whole.alone.rank->compute, w->r.max_tokens, w->height, w->width, NULL, &f, err);
    if (!rc)
        rc = flow_all(w, f, err);
    flux2_forward_free(f);
    whole_close(&whole);
    return rc;
}

static int decode(struct work *w, struct fsdpck_error *err)
{
    const size_t n = w->r.nprompts * w->r.count;
    struct image_decoder decoder;
    int rc = image_decoder_open(&w->pipeline, w->opt, w->nchannel, w->r.height, w->r.width, &decoder, err);
    for (size_t i = 0; i < n && !rc; i++) {
        struct image image = { .prompt = i / w->r.count, .number = i % w->r.count };
        rc = image_decoder_run(&decoder, latents_of(w, image.prompt, image.number), &image, err);
        if (!rc)
            rc = w->calls->made(w->calls->ctx, &image, err);
        if (!rc)
            rc = progress(w, IMAGE_DECODES, i + 1, n, err);
    }
    image_decoder_close(&decoder);
    return rc;
}

int image_sample(const char *pipeline, const struct sampler_options *opt, const struct image_request *request,
                 const struct image_calls *calls, struct fsdpck_error *err)
{
    struct work w = { .opt = opt, .r = *request, .calls = calls };
    int rc = pipeline_read(pipeline, &w.pipeline, err);
    if (!rc)
        rc = schedule_check(&w.pipeline, err);
    if (!rc)
        rc = image_request_complete(&w.pipeline, &opt->fs, &w.r, err);
    w.height = w.r.height / IMAGE_UNIT;
    w.width = w.r.width / IMAGE_UNIT;
    if (!rc)
        rc = read_texts(&w, err);
    if (!rc)
        rc = run_transformer(&w, err);
    if (!rc)
        rc = decode(&w, err);
    free(w.texts);
    free(w.latents);
    return rc;
}
