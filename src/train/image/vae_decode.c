/* SPDX-License-Identifier: Apache-2.0 */
/* From latents to pixels. A picture is a matrix of its pixels; three buffers of the largest size take turns. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "image/vae.h"

enum { BUFFERS = 3 };

/* A computation: the picture so far is in x; h and t are free. */
struct decoder {
    const struct vae *v;
    const struct kern_device *device;
    struct kern_stream *stream;
    int64_t height, width; /* of the picture so far */
    char *memory;
    void *x, *h, *t;
    void *scratch;
};

static int64_t npixel(const struct decoder *d)
{
    return d->height * d->width;
}

static struct kern_mat mat(const struct decoder *d, void *data, int64_t nchannel)
{
    return (struct kern_mat){ data, nchannel, d->v->dtype };
}

static struct kern_cmat cmat(const struct decoder *d, const void *data, int64_t nchannel)
{
    return (struct kern_cmat){ data, nchannel, d->v->dtype };
}

/* y = conv(x) (+ add, with 1 × 1 taps only). */
static void conv(const struct decoder *d, const struct vae_conv *c, const void *x, void *y, const void *add)
{
    const struct kern_gemm gemm = { .m = npixel(d),
                                    .n = c->nout,
                                    .k = c->nin,
                                    .a = cmat(d, x, c->nin),
                                    .b = { c->weight, c->nin, d->v->dtype },
                                    .c = mat(d, y, c->nout),
                                    .trans_b = true,
                                    .alpha = 1,
                                    .add = { add, c->nout, d->v->dtype },
                                    .bias = { c->bias, c->nout, KERN_F32 } };
    const struct kern_conv conv = { .height = d->height,
                                    .width = d->width,
                                    .nin = c->nin,
                                    .nout = c->nout,
                                    .stride = 1,
                                    .x = cmat(d, x, c->nin),
                                    .weight = c->weight,
                                    .bias = c->bias,
                                    .y = mat(d, y, c->nout),
                                    .scratch = d->scratch };
    if (c->size == 1)
        d->device->ops->gemm(d->stream, &gemm);
    else
        d->device->images->conv(d->stream, &conv);
}

static void norm(const struct decoder *d, const struct vae_norm *n, const void *x, void *y, bool silu)
{
    const struct kern_group_norm g = { .npixel = npixel(d),
                                       .nchannel = n->nchannel,
                                       .ngroup = d->v->config.ngroup,
                                       .x = cmat(d, x, n->nchannel),
                                       .gamma = n->gamma,
                                       .beta = n->beta,
                                       .eps = 1e-6f,
                                       .silu = silu,
                                       .y = mat(d, y, n->nchannel),
                                       .scratch = d->scratch };
    d->device->images->group_norm(d->stream, &g);
}

static void swap(void **a, void **b)
{
    void *was = *a;
    *a = *b;
    *b = was;
}

/* x += conv2(silu(norm2(conv1(silu(norm1(x)))))), the first x by the shortcut if there is one. */
static void resnet(struct decoder *d, const struct vae_resnet *r)
{
    const int64_t nout = r->conv2.nout;
    norm(d, &r->norm1, d->x, d->h, true);
    conv(d, &r->conv1, d->h, d->t, NULL);
    norm(d, &r->norm2, d->t, d->t, true);
    conv(d, &r->conv2, d->t, d->h, NULL);
    if (r->shortcut.nout) {
        conv(d, &r->shortcut, d->x, d->t, d->h);
        swap(&d->x, &d->t);
        return;
    }
    d->device->ops->add(d->stream, mat(d, d->x, nout), cmat(d, d->x, nout), cmat(d, d->h, nout), npixel(d), nout);
}

/* Bytes of a picture with one head of attention over all of its pixels. */
static struct kern_attention_shape attention_shape(const struct decoder *d, const int64_t bounds[2])
{
    const int64_t n = d->v->q.nout;
    return (struct kern_attention_shape){ .ntok = bounds[1],
                                          .nhead = 1,
                                          .nkv = 1,
                                          .head_dim = n,
                                          .cu_seqlens = bounds,
                                          .ndoc = 1,
                                          .scale = (float)(1 / sqrt((double)n)),
                                          .full = true };
}

/* k and v take the place of h and of what lies behind it: the picture is small here. */
static void attention(struct decoder *d)
{
    const struct vae *v = d->v;
    const int64_t n = v->q.nout, bounds[2] = { 0, npixel(d) };
    const size_t nbytes = ((size_t)(npixel(d) * n * kern_dtype_bytes(v->dtype)) + 63) / 64 * 64;
    char *q = d->t, *k = q + nbytes, *values = k + nbytes;
    norm(d, &v->mid_norm, d->x, d->h, false);
    conv(d, &v->q, d->h, q, NULL);
    conv(d, &v->k, d->h, k, NULL);
    conv(d, &v->v, d->h, values, NULL);
    const struct kern_attention a = { .shape = attention_shape(d, bounds),
                                      .q = cmat(d, q, n),
                                      .k = cmat(d, k, n),
                                      .v = cmat(d, values, n),
                                      .o = mat(d, d->h, n),
                                      .scratch = d->scratch };
    d->device->ops->attention(d->stream, &a);
    conv(d, &v->out, d->h, q, d->x);
    d->device->ops->cast(d->stream, mat(d, d->x, n), cmat(d, q, n), npixel(d), n);
}

static void stage(struct decoder *d, const struct vae_stage *s)
{
    const int64_t n = s->doubles.nout;
    for (int64_t i = 0; i < d->v->config.nresnet; i++)
        resnet(d, &s->resnets[i]);
    if (!n)
        return;
    d->device->images->enlarge(d->stream, mat(d, d->h, n), cmat(d, d->x, n), d->height, d->width, n);
    d->height *= 2;
    d->width *= 2;
    conv(d, &s->doubles, d->h, d->x, NULL);
}

/* Takes the normalization out, and makes four pixels of each: channel 4c + 2y + x is channel c of pixel (y, x). */
static void unpack(struct decoder *d, const float *latents, float *to)
{
    const struct vae *v = d->v;
    const int64_t n = v->config.nlatent, width = d->width / 2;
    for (int64_t pixel = 0; pixel < npixel(d); pixel++)
        for (int64_t c = 0; c < n; c++) {
            const int64_t y = pixel / d->width, x = pixel % d->width, channel = 4 * c + 2 * (y % 2) + x % 2,
                          from = (y / 2 * width + x / 2) * 4 * n + channel;
            to[pixel * n + c] = latents[from] * v->scale[channel] + v->mean[channel];
        }
}

static void run(struct decoder *d)
{
    const struct vae *v = d->v;
    if (v->config.post_quant) {
        conv(d, &v->post_quant, d->x, d->h, NULL);
        swap(&d->x, &d->h);
    }
    conv(d, &v->conv_in, d->x, d->h, NULL);
    swap(&d->x, &d->h);
    resnet(d, &v->mid[0]);
    attention(d);
    resnet(d, &v->mid[1]);
    for (int64_t i = 0; i < v->config.nstage; i++)
        stage(d, &v->stages[i]);
    norm(d, &v->norm_out, d->x, d->x, true);
    conv(d, &v->conv_out, d->x, d->h, NULL);
}

/* Elements of a buffer: the largest picture of any stage, and three small ones for the attention. */
static int64_t largest(const struct decoder *d)
{
    const struct vae_config *c = &d->v->config;
    int64_t n = npixel(d), most = n * (3 * c->channels[c->nstage - 1] + 64);
    for (int64_t i = 0; i < c->nstage; i++) {
        const int64_t nout = c->channels[c->nstage - 1 - i];
        n *= i ? 4 : 1; /* enlarged with the channels of the stage before */
        const int64_t widest = i && c->channels[c->nstage - i] > nout ? c->channels[c->nstage - i] : nout;
        most = n * widest > most ? n * widest : most;
    }
    return most;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t conv_scratch(const struct decoder *d, const struct vae_conv *c)
{
    const struct kern_conv conv = { .nin = c->nin, .nout = c->nout, .stride = 1, .x.dtype = d->v->dtype };
    return c->size == 3 ? d->device->images->conv_scratch(d->stream, &conv) : 0;
}

static size_t scratch_nbytes(const struct decoder *d)
{
    const struct vae_config *c = &d->v->config;
    const int64_t bounds[2] = { 0, npixel(d) }, unit = (int64_t)1 << (c->nstage - 1);
    const struct kern_attention_shape shape = attention_shape(d, bounds);
    size_t most = larger(d->device->ops->attention_scratch(d->stream, &shape),
                         larger(conv_scratch(d, &d->v->conv_in), conv_scratch(d, &d->v->conv_out)));
    for (int64_t i = 0; i < c->nstage; i++) {
        most = larger(most, conv_scratch(d, &d->v->stages[i].doubles));
        for (int64_t j = 0; j < c->nresnet; j++) {
            most = larger(most, conv_scratch(d, &d->v->stages[i].resnets[j].conv1));
            most = larger(most, conv_scratch(d, &d->v->stages[i].resnets[j].conv2));
        }
        most = larger(most, conv_scratch(d, &d->v->mid[0].conv1));
        most = larger(most, (size_t)kern_group_norm_scratch(npixel(d) * unit * unit, c->channels[i], c->ngroup) *
                                sizeof(double));
    }
    return most;
}

/* As torchvision and diffusers round: to the nearest, half to even. */
static void store(const float *values, int64_t n, uint8_t *pixels)
{
    for (int64_t i = 0; i < n; i++) {
        const float x = values[i] / 2 + 0.5f;
        pixels[i] = (uint8_t)lrintf(255 * (x < 0 || x != x ? 0 : x > 1 ? 1 : x));
    }
}

static int finish(struct decoder *d, uint8_t *pixels, struct fsdpck_error *err)
{
    char message[KERN_MESSAGE_BYTES];
    float *values = d->t; /* as large as a picture of many channels */
    d->device->ops->cast(d->stream, (struct kern_mat){ values, 3, KERN_F32 }, cmat(d, d->h, 3), npixel(d), 3);
    if (d->device->stream_sync(d->stream, message) != KERN_OK)
        return fsdpck_error_set(err, FSDPCK_ERR_IO, NULL, "a kernel failed on device '%s': %s", d->device->name,
                                message);
    store(values, 3 * npixel(d), pixels);
    return 0;
}

int vae_decode(const struct vae *v, const struct kern_device *device, struct kern_stream *stream, const float *latents,
               int64_t height, int64_t width, uint8_t *pixels, struct fsdpck_error *err)
{
    struct decoder d = { .v = v, .device = device, .stream = stream, .height = 2 * height, .width = 2 * width };
    const size_t nbytes = ((size_t)largest(&d) * sizeof(float) + 4095) / 4096 * 4096, scratch = scratch_nbytes(&d),
                 all = BUFFERS * nbytes + (scratch + 4095) / 4096 * 4096;
    d.memory = aligned_alloc(4096, all);
    if (!d.memory)
        return fsdpck_error_nomem(err, all);
    d.x = d.memory;
    d.h = d.memory + nbytes;
    d.t = d.memory + 2 * nbytes;
    d.scratch = d.memory + BUFFERS * nbytes;
    unpack(&d, latents, d.h);
    device->ops->cast(stream, mat(&d, d.x, v->config.nlatent), (struct kern_cmat){ d.h, v->config.nlatent, KERN_F32 },
                      npixel(&d), v->config.nlatent);
    run(&d);
    int rc = finish(&d, pixels, err);
    free(d.memory);
    return rc;
}
