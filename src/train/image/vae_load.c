/* SPDX-License-Identifier: Apache-2.0 */
/* The layers of either half, under diffusers' names. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "image/vae.h"

/* The first failure ends it. */
struct loader {
    struct vae *v;
    struct fsdpck_source *src;
    struct fsdpck_error *err;
    int rc;
};

enum { NAME = 128 };

static bool is_float(enum fsdpck_dtype dtype)
{
    return dtype == FSDPCK_FLOAT32 || dtype == FSDPCK_BFLOAT16 || dtype == FSDPCK_FLOAT16 || dtype == FSDPCK_FLOAT64;
}

/* A tensor of `nelem` elements in 1, 2 or 4 dimensions, the first of them `nfirst`. The caller frees it. */
static void *load_tensor(struct loader *l, const char *name, int64_t nfirst, int64_t nelem, enum fsdpck_dtype as)
{
    const struct fsdpck_tensor *t = l->rc ? NULL : fsdpck_source_find(l->src, name);
    uint64_t has = 1;
    if (l->rc)
        return NULL;
    for (uint32_t d = 0; t && d < t->ndim; d++)
        has *= t->shape[d];
    if (!t || t->ndim < 1 || t->shape[0] != (uint64_t)nfirst || has != (uint64_t)nelem || !is_float(t->dtype)) {
        l->rc = fsdpck_error_set(l->err, t ? FSDPCK_ERR_FORMAT : FSDPCK_ERR_MISSING, fsdpck_source_path(l->src),
                                 t ? "tensor '%s' does not have the shape or the dtype that config.json calls for"
                                   : "there is no tensor '%s', which config.json calls for",
                                 name);
        return NULL;
    }
    void *raw = malloc((size_t)has * fsdpck_dtype_info(t->dtype)->nbytes),
         *out = malloc((size_t)has * fsdpck_dtype_info(as)->nbytes);
    const struct fsdpck_read read = { .tensor = t, .dst = raw };
    l->rc = raw && out ? fsdpck_source_read(l->src, &read, 1, l->err) : fsdpck_error_nomem(l->err, (size_t)has * 8);
    if (!l->rc)
        fsdpck_dtype_cast(t->dtype, raw, as, out, has);
    free(raw);
    return out;
}

static float *load_floats(struct loader *l, const char *prefix, const char *suffix, int64_t n)
{
    char name[NAME];
    snprintf(name, sizeof name, "%.100s%.20s", prefix, suffix);
    return load_tensor(l, name, n, n, FSDPCK_FLOAT32);
}

static void load_norm(struct loader *l, struct vae_norm *n, int64_t nchannel, const char *prefix)
{
    n->nchannel = nchannel;
    n->gamma = load_floats(l, prefix, ".weight", nchannel);
    n->beta = load_floats(l, prefix, ".bias", nchannel);
}

static void load_conv(struct loader *l, struct vae_conv *c, int64_t nin, int64_t nout, int64_t size, const char *prefix)
{
    char name[NAME];
    *c = (struct vae_conv){ .nin = nin, .nout = nout, .size = size };
    snprintf(name, sizeof name, "%.100s.weight", prefix);
    c->weight = load_tensor(l, name, nout, nout * nin * size * size,
                            l->v->dtype == KERN_BF16 ? FSDPCK_BFLOAT16 : FSDPCK_FLOAT32);
    c->bias = load_floats(l, prefix, ".bias", nout);
}

static void load_resnet(struct loader *l, struct vae_resnet *r, int64_t nin, int64_t nout, const char *prefix)
{
    char name[NAME];
#define PART(text) (snprintf(name, sizeof name, "%.80s." text, prefix), name)
    load_norm(l, &r->norm1, nin, PART("norm1"));
    load_conv(l, &r->conv1, nin, nout, 3, PART("conv1"));
    load_norm(l, &r->norm2, nout, PART("norm2"));
    load_conv(l, &r->conv2, nout, nout, 3, PART("conv2"));
    if (nin != nout)
        load_conv(l, &r->shortcut, nin, nout, 1, PART("conv_shortcut"));
#undef PART
}

/* nout: channels of the stage. */
static void load_stage(struct loader *l, const char *prefix, const char *resizes, int64_t number, int64_t nin,
                       int64_t nout)
{
    struct vae_half *h = &l->v->half;
    struct vae_stage *s = &h->stages[number];
    char name[NAME];
    for (int64_t i = 0; i < h->nresnet; i++) {
        snprintf(name, sizeof name, "%.40s.%d.resnets.%d", prefix, (int)number, (int)i);
        load_resnet(l, &s->resnets[i], i ? nout : nin, nout, name);
    }
    snprintf(name, sizeof name, "%.40s.%d.%.40s.0.conv", prefix, (int)number, resizes);
    if (number + 1 < l->v->config.nstage)
        load_conv(l, &s->resizes, nout, nout, 3, name);
}

/* n: its channels. */
static void load_middle(struct loader *l, const char *half, int64_t n)
{
    struct vae_half *h = &l->v->half;
    char name[NAME];
#define PART(text) (snprintf(name, sizeof name, "%.20s.mid_block." text, half), name)
    load_resnet(l, &h->mid[0], n, n, PART("resnets.0"));
    load_resnet(l, &h->mid[1], n, n, PART("resnets.1"));
    load_norm(l, &h->mid_norm, n, PART("attentions.0.group_norm"));
    load_conv(l, &h->q, n, n, 1, PART("attentions.0.to_q"));
    load_conv(l, &h->k, n, n, 1, PART("attentions.0.to_k"));
    load_conv(l, &h->v, n, n, 1, PART("attentions.0.to_v"));
    load_conv(l, &h->o, n, n, 1, PART("attentions.0.to_out.0"));
#undef PART
}

static void load_normalization(struct loader *l)
{
    struct vae *v = l->v;
    const int64_t n = 4 * v->config.nlatent;
    v->mean = load_floats(l, "bn", ".running_mean", n);
    v->scale = load_floats(l, "bn", ".running_var", n);
    for (int64_t i = 0; i < n && !l->rc; i++) {
        const double variance = (double)v->scale[i] + v->config.norm_eps;
        if (!(variance > 0))
            l->rc = fsdpck_error_set(l->err, FSDPCK_ERR_FORMAT, fsdpck_source_path(l->src),
                                     "tensor 'bn.running_var' has a variance that is not above 0");
        v->scale[i] = (float)__builtin_sqrt(variance);
    }
}

static void load_decoder(struct loader *l)
{
    const struct vae_config *c = &l->v->config;
    struct vae_half *h = &l->v->half;
    const int64_t top = c->channels[c->nstage - 1];
    h->nresnet = c->nresnet + 1;
    if (c->post_quant)
        load_conv(l, &h->quant, c->nlatent, c->nlatent, 1, "post_quant_conv");
    load_conv(l, &h->in, c->nlatent, top, 3, "decoder.conv_in");
    load_middle(l, "decoder", top);
    for (int64_t i = 0, nin = top; i < c->nstage && !l->rc; i++) {
        const int64_t nout = c->channels[c->nstage - 1 - i];
        load_stage(l, "decoder.up_blocks", "upsamplers", i, nin, nout);
        nin = nout;
    }
    load_norm(l, &h->norm_out, c->channels[0], "decoder.conv_norm_out");
    load_conv(l, &h->out, c->channels[0], 3, 3, "decoder.conv_out");
}

static void load_encoder(struct loader *l)
{
    const struct vae_config *c = &l->v->config;
    struct vae_half *h = &l->v->half;
    const int64_t top = c->encoder_channels[c->nstage - 1];
    h->nresnet = c->nresnet;
    load_conv(l, &h->in, 3, c->encoder_channels[0], 3, "encoder.conv_in");
    for (int64_t i = 0, nin = c->encoder_channels[0]; i < c->nstage && !l->rc; i++) {
        load_stage(l, "encoder.down_blocks", "downsamplers", i, nin, c->encoder_channels[i]);
        nin = c->encoder_channels[i];
    }
    load_middle(l, "encoder", top);
    load_norm(l, &h->norm_out, top, "encoder.conv_norm_out");
    load_conv(l, &h->out, top, 2 * c->nlatent, 3, "encoder.conv_out");
    if (c->quant)
        load_conv(l, &h->quant, 2 * c->nlatent, 2 * c->nlatent, 1, "quant_conv");
}

int vae_load(struct vae *v, bool encoder, struct fsdpck_source *src, struct fsdpck_error *err)
{
    struct loader l = { .v = v, .src = src, .err = err };
    load_normalization(&l);
    if (encoder)
        load_encoder(&l);
    else
        load_decoder(&l);
    return l.rc;
}
