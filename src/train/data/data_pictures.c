/* SPDX-License-Identifier: Apache-2.0 */
#include "data/data_pictures.h"

#include <kernels/random.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "arrays/normal.h"
#include "data/data_impl.h"

void picture_set_free(struct picture_set *s)
{
    if (s)
        free(s->entries);
}

bool data_has_pictures(const struct data *d)
{
    return d->pictures != NULL;
}

/* A document for each, a row for each document. */
static int add_documents(struct data *d, struct fsdpck_error *err)
{
    const struct picture_set *s = d->pictures;
    d->docs = calloc(s->n, sizeof *d->docs);
    d->members = calloc(s->n, sizeof *d->members);
    if (!d->docs || !d->members)
        return fsdpck_error_nomem(err, s->n * sizeof *d->docs);
    d->ndocs = d->nmembers = s->n;
    for (size_t i = 0; i < s->n; i++) {
        const struct picture_entry *e = &s->entries[i];
        d->docs[i] = (struct document){ .ntok = (uint32_t)(s->ntext + e->height * e->width), .nsupervised = 1 };
        d->members[i] = (uint32_t)i;
        if (!lists_end(&d->groups, i + 1))
            return fsdpck_error_nomem(err, s->n * sizeof *d->groups.at);
    }
    d->content[0] = XXH3_64bits(s->entries, s->n * sizeof *s->entries);
    d->content[1] = s->no_text;
    return 0;
}

int data_open_pictures(const struct train_config *config, struct picture_set *set, struct data **out,
                       struct fsdpck_error *err)
{
    struct data *d = calloc(1, sizeof *d);
    *out = NULL;
    if (!d)
        return fsdpck_error_nomem(err, sizeof *d);
    d->pictures = malloc(sizeof *d->pictures);
    if (d->pictures) {
        *d->pictures = *set;
        *set = (struct picture_set){ 0 };
    }
    d->seed = config->seed;
    d->micro_rows = 1;
    d->step_rows = config->train.global_batch_size;
    int rc = d->pictures ? add_documents(d, err) : fsdpck_error_nomem(err, sizeof *d->pictures);
    if (!rc)
        rc = data_make_order(d, err);
    if (rc) {
        data_close(d);
        return rc;
    }
    data_documents_fingerprint(d);
    *out = d;
    return 0;
}

/* The random numbers for one purpose and one picture, by its number in the run. */
static struct kern_philox stream_of(const struct data *d, const char *purpose, uint64_t number)
{
    return (struct kern_philox){ .seed = d->seed ^ number >> 32 << 32,
                                 .name = XXH32(purpose, strlen(purpose), 0),
                                 .step = (uint32_t)number };
}

static double uniform(const struct data *d, const char *purpose, uint64_t number)
{
    const struct kern_philox p = stream_of(d, purpose, number);
    const uint32_t key[2] = { (uint32_t)p.seed, (uint32_t)(p.seed >> 32) }, counter[4] = { 0, 0, p.step, p.name };
    uint32_t out[4];
    kern_philox4x32(counter, key, out);
    return out[0] / 4294967296.0;
}

/* As K and A shift it: by a number that grows with the picture, 0.5 at 256 latent pixels, 1.15 at 4096. */
static double shift(double t, int64_t npixel)
{
    const double mu = 0.5 + (1.15 - 0.5) / (4096 - 256) * (double)(npixel - 256), e = exp(mu);
    return t * e / (1 + (e - 1) * t);
}

static double draw_sigma(const struct data *d, const struct train_config *config, uint64_t number, int64_t npixel)
{
    float normal;
    const struct kern_philox p = stream_of(d, "image.time", number);
    if (config->image.timestep == TRAIN_TIMESTEP_UNIFORM)
        return 1 - uniform(d, "image.time", number); /* never 0 */
    normal_draw(&normal, 1, &p, 0);
    const double t = 1 / (1 + exp(-(double)normal));
    return config->image.timestep == TRAIN_TIMESTEP_SHIFT ? shift(t, npixel) : t;
}

/* As in diffusers (compute_loss_weighting_for_sd3). */
static double weight_of(const struct train_config *config, double sigma)
{
    switch (config->image.weighting) {
    case TRAIN_WEIGHTING_SIGMA_SQRT: return 1 / (sigma * sigma);
    case TRAIN_WEIGHTING_COSMAP: return 2 / (M_PI * (1 - 2 * sigma + 2 * sigma * sigma));
    default: return 1;
    }
}

void data_picture_size(const struct data *d, const struct micro_batch *m, int64_t *height, int64_t *width)
{
    const struct picture_entry *e = &d->pictures->entries[m->docs[0]];
    *height = e->height;
    *width = e->width;
}

int data_fill_picture(const struct data *d, const struct micro_batch *m, const struct train_config *config,
                      uint64_t step, struct picture_sample *out, struct fsdpck_error *err)
{
    const struct picture_set *s = d->pictures;
    const struct picture_entry *e = &s->entries[m->docs[0]];
    const bool evaluates = step == UINT64_MAX;
    const uint64_t number = evaluates ? m->docs[0] : step * d->step_rows + m->number;
    const int64_t npixel = e->height * e->width;
    const bool silent = !evaluates && uniform(d, "image.caption", number) < config->image.caption_dropout_rate;
    const struct picture_matrix latents = { e->latents, npixel, s->nchannel, false },
                                text = { silent ? s->no_text : e->text, s->ntext, s->text_width, s->rounded };
    const struct kern_philox noise = stream_of(d, evaluates ? "image.eval" : "image.noise", number);
    const double sigma = evaluates ? ((double)(number % 8) + 0.5) / 8 : draw_sigma(d, config, number, npixel);
    out->height = e->height;
    out->width = e->width;
    out->sigma = (float)sigma;
    out->weight = evaluates ? 1 : (float)weight_of(config, (double)out->sigma);
    normal_draw(out->noise, (uint64_t)(npixel * s->nchannel), &noise, 0);
    int rc = picture_cache_get(&s->cache, &latents, out->latents, err);
    return rc ? rc : picture_cache_get(&s->cache, &text, out->text, err);
}
