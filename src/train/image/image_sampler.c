/* SPDX-License-Identifier: Apache-2.0 */
/* Texts to embeddings, noise to latents, latents to pixels: each with the part of the pipeline that does it, which then
 * leaves memory. */
#include <train/image.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "arrays/normal.h"
#include "image/flow.h"
#include "image/schedule.h"
#include "image/text_embed.h"
#include "image/vae.h"
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
    return !w->pipeline.distilled && w->r.guidance > 1;
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

static int check_request(struct work *w, struct fsdpck_error *err)
{
    struct image_request *r = &w->r;
    r->height = r->height ? r->height : IMAGE_DEFAULT_SIDE;
    r->width = r->width ? r->width : IMAGE_DEFAULT_SIDE;
    r->nstep = r->nstep ? r->nstep : w->pipeline.distilled ? IMAGE_DISTILLED_STEPS : IMAGE_DEFAULT_STEPS;
    r->max_tokens = r->max_tokens ? r->max_tokens : IMAGE_DEFAULT_TOKENS;
    r->count = r->count ? r->count : 1;
    r->negative = r->negative ? r->negative : "";
    if (w->pipeline.distilled && (r->guidance > 1 || *r->negative))
        note(w, "the model is distilled: guidance and a negative prompt have no effect");
    r->guidance = r->guidance < 0 ? IMAGE_DEFAULT_GUIDANCE : r->guidance;
    if (r->height % IMAGE_UNIT || r->width % IMAGE_UNIT || r->height < IMAGE_UNIT || r->width < IMAGE_UNIT ||
        r->height > IMAGE_MOST || r->width > IMAGE_MOST)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                "a picture of %lld × %lld pixels: sides are multiples of %d, up to %d",
                                (long long)r->width, (long long)r->height, IMAGE_UNIT, IMAGE_MOST);
    if (r->nstep < 1 || r->nstep > 1000 || r->max_tokens < 1 || r->max_tokens > 1 << 16 || !isfinite(r->guidance))
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                "from 1 to 1000 steps, 1 to 65536 tokens and a finite guidance are wanted");
    return 0;
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

/* The noise of a picture depends on its seed alone. */
static void begin(const struct work *w, size_t number, float *x)
{
    const struct kern_philox rng = { .seed = w->r.seed + number, .name = 0x696d6167 };
    normal_draw(x, (uint64_t)(w->height * w->width * w->nchannel), &rng, 0);
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
    begin(w, number, latents_of(w, prompt, number));
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
        rc = flux2_forward_new(whole.alone.rank->compute, w->r.max_tokens, w->height, w->width, &f, err);
    if (!rc)
        rc = flow_all(w, f, err);
    flux2_forward_free(f);
    whole_close(&whole);
    return rc;
}

static int decode_one(const struct work *w, const struct vae *v, struct kern_stream *stream, size_t i, uint8_t *pixels,
                      struct fsdpck_error *err)
{
    const struct kern_device *device = kern_device_find("cpu", (char[KERN_MESSAGE_BYTES]){ 0 });
    const struct image image = { i / w->r.count, i % w->r.count, w->r.height, w->r.width, pixels };
    int rc = vae_decode(v, device, stream, latents_of(w, image.prompt, image.number), w->height, w->width, pixels, err);
    return rc ? rc : w->calls->made(w->calls->ctx, &image, err);
}

static int decode_all(struct work *w, const struct vae *v, struct fsdpck_error *err)
{
    const struct kern_device *device = kern_device_find("cpu", (char[KERN_MESSAGE_BYTES]){ 0 });
    struct kern_pool *pool = kern_pool_new(w->opt->nthreads ? w->opt->nthreads : fsdpck_processors());
    struct kern_stream *stream = NULL;
    char message[KERN_MESSAGE_BYTES] = "no threads";
    const size_t n = w->r.nprompts * w->r.count;
    uint8_t *pixels = malloc((size_t)(w->r.height * w->r.width * 3));
    int rc = pixels ? 0 : fsdpck_error_nomem(err, (size_t)(w->r.height * w->r.width * 3));
    if (!rc && (!pool || device->stream_new(0, pool, &stream, message) != KERN_OK))
        rc = fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "the kernels cannot start: %s", message);
    for (size_t i = 0; i < n && !rc; i++) {
        rc = decode_one(w, v, stream, i, pixels, err);
        if (!rc)
            rc = progress(w, IMAGE_DECODES, i + 1, n, err);
    }
    device->stream_free(stream);
    kern_pool_free(pool);
    free(pixels);
    return rc;
}

static int decode(struct work *w, struct fsdpck_error *err)
{
    const bool whole = w->opt->dtype && strcmp(w->opt->dtype, "fp32") == 0;
    struct vae *v;
    int rc = vae_open(&w->pipeline, false, whole ? KERN_F32 : KERN_BF16, &w->opt->fs, &v, err);
    if (!rc && (vae_unit(v) != IMAGE_UNIT || 4 * v->config.nlatent != w->nchannel))
        rc = fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, w->pipeline.folder,
                              "the vae makes %lld pixels of %lld channels, not %d of the transformer's %lld",
                              (long long)vae_unit(v), (long long)(4 * v->config.nlatent), IMAGE_UNIT,
                              (long long)w->nchannel);
    if (!rc)
        rc = decode_all(w, v, err);
    vae_close(v);
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
        rc = check_request(&w, err);
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
