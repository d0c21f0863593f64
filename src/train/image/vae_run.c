/* SPDX-License-Identifier: Apache-2.0 */
/* From latents to pixels, and back. A picture is a matrix of its pixels; three buffers of the largest size take turns.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "image/tiles.h"
#include "image/vae.h"

enum { BUFFERS = 3 };

/* A computation: the picture so far is in x; h and t are free. */
struct coder {
    const struct vae *v;
    const struct kern_device *device;
    struct kern_stream *stream;
    int64_t height, width; /* of the picture so far */
    int64_t full_height, full_width;
    struct kern_buffer memory;
    float *host; /* where pixels and latents come and go, on a device with its own memory; owned */
    void *x, *h, *t;
    void *scratch, *table; /* table: of attention's documents */
};

static int64_t npixel(const struct coder *d)
{
    return d->height * d->width;
}

static struct kern_mat mat(const struct coder *d, void *data, int64_t nchannel)
{
    return (struct kern_mat){ data, nchannel, d->v->dtype };
}

static struct kern_cmat cmat(const struct coder *d, const void *data, int64_t nchannel)
{
    return (struct kern_cmat){ data, nchannel, d->v->dtype };
}

/* y = conv(x) (+ add, with 1 × 1 taps only). */
static void conv_by(const struct coder *d, const struct vae_conv *c, const void *x, void *y, const void *add,
                    int64_t stride)
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
                                    .stride = stride,
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

static void conv(const struct coder *d, const struct vae_conv *c, const void *x, void *y, const void *add)
{
    conv_by(d, c, x, y, add, 1);
}

static void norm(const struct coder *d, const struct vae_norm *n, const void *x, void *y, bool silu)
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
static void resnet(struct coder *d, const struct vae_resnet *r)
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

/* One head over all pixels. */
static struct kern_attention_shape attention_shape(const struct coder *d, const int64_t bounds[2])
{
    const int64_t n = d->v->half.q.nout;
    return (struct kern_attention_shape){ .ntok = bounds[1],
                                          .nhead = 1,
                                          .nkv = 1,
                                          .head_dim = n,
                                          .cu_seqlens = bounds,
                                          .ndoc = 1,
                                          .scale = (float)(1 / sqrt((double)n)),
                                          .table = { .data = d->table },
                                          .full = true };
}

/* k and v take the place of h and of what lies behind it: the picture is small here. */
static void attention(struct coder *d)
{
    const struct vae *v = d->v;
    const int64_t n = v->half.q.nout, bounds[2] = { 0, npixel(d) };
    const size_t nbytes = ((size_t)(npixel(d) * n * kern_dtype_bytes(v->dtype)) + 63) / 64 * 64;
    char *q = d->t, *k = q + nbytes, *values = k + nbytes;
    norm(d, &v->half.mid_norm, d->x, d->h, false);
    conv(d, &v->half.q, d->h, q, NULL);
    conv(d, &v->half.k, d->h, k, NULL);
    conv(d, &v->half.v, d->h, values, NULL);
    struct kern_attention_shape shape = attention_shape(d, bounds);
    d->device->ops->attention_table(d->stream, &shape);
    const struct kern_attention a = { .shape = shape,
                                      .q = cmat(d, q, n),
                                      .k = cmat(d, k, n),
                                      .v = cmat(d, values, n),
                                      .o = mat(d, d->h, n),
                                      .scratch = d->scratch };
    d->device->ops->attention(d->stream, &a);
    conv(d, &v->half.o, d->h, q, d->x);
    d->device->ops->cast(d->stream, mat(d, d->x, n), cmat(d, q, n), npixel(d), n);
}

static void resnets(struct coder *d, const struct vae_stage *s)
{
    for (int64_t i = 0; i < d->v->half.nresnet; i++)
        resnet(d, &s->resnets[i]);
}

static void enlarge(struct coder *d, const struct vae_conv *c)
{
    d->device->images->enlarge(d->stream, mat(d, d->h, c->nin), cmat(d, d->x, c->nin), d->height, d->width, c->nin);
    d->height *= 2;
    d->width *= 2;
    conv(d, c, d->h, d->x, NULL);
}

static void halve(struct coder *d, const struct vae_conv *c)
{
    conv_by(d, c, d->x, d->h, NULL, 2);
    d->height /= 2;
    d->width /= 2;
    swap(&d->x, &d->h);
}

/* Takes the normalization out, and makes four pixels of each: channel 4c + 2y + x is channel c of pixel (y, x). pitch:
 * latent pixels from one row to the next. */
static void unpack(const struct coder *d, const float *latents, int64_t pitch, float *to)
{
    const struct vae *v = d->v;
    const int64_t n = v->config.nlatent;
    for (int64_t pixel = 0; pixel < npixel(d); pixel++)
        for (int64_t c = 0; c < n; c++) {
            const int64_t y = pixel / d->width, x = pixel % d->width, channel = 4 * c + 2 * (y % 2) + x % 2,
                          from = (y / 2 * pitch + x / 2) * 4 * n + channel;
            to[pixel * n + c] = latents[from] * v->scale[channel] + v->mean[channel];
        }
}

static void middle(struct coder *d)
{
    resnet(d, &d->v->half.mid[0]);
    attention(d);
    resnet(d, &d->v->half.mid[1]);
}

/* x = c(x) */
static void replace(struct coder *d, const struct vae_conv *c)
{
    conv(d, c, d->x, d->h, NULL);
    swap(&d->x, &d->h);
}

static void run_decoder(struct coder *d)
{
    const struct vae_half *half = &d->v->half;
    if (half->quant.nout)
        replace(d, &half->quant);
    replace(d, &half->in);
    middle(d);
    for (int64_t i = 0; i < d->v->config.nstage; i++) {
        resnets(d, &half->stages[i]);
        if (half->stages[i].resizes.nout)
            enlarge(d, &half->stages[i].resizes);
    }
    norm(d, &half->norm_out, d->x, d->x, true);
    replace(d, &half->out);
}

static void run_encoder(struct coder *d)
{
    const struct vae_half *half = &d->v->half;
    replace(d, &half->in);
    for (int64_t i = 0; i < d->v->config.nstage; i++) {
        resnets(d, &half->stages[i]);
        if (half->stages[i].resizes.nout)
            halve(d, &half->stages[i].resizes);
    }
    middle(d);
    norm(d, &half->norm_out, d->x, d->x, true);
    replace(d, &half->out);
    if (half->quant.nout)
        replace(d, &half->quant);
}

/* Elements of a buffer: the largest picture of any stage, and three small ones for the attention. Channels of a stage
 * at its size, and at the next one of the decoder, which enlarges first. */
static int64_t largest(int64_t height, int64_t width, const struct vae_config *c, const int64_t *channels)
{
    int64_t n = height * width, most = 0;
    for (int64_t i = 0; i < c->nstage; i++, n /= 4) {
        const int64_t below = i + 1 < c->nstage ? channels[i + 1] : 0,
                      widest = channels[i] > below ? channels[i] : below;
        most = n * widest > most ? n * widest : most;
        if (i + 1 == c->nstage && n * (3 * channels[i] + 64) > most)
            most = n * (3 * channels[i] + 64);
    }
    return most;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* At the full size, which no stage exceeds. */
static size_t conv_scratch(const struct coder *d, const struct vae_conv *c)
{
    const struct kern_conv conv = { .height = d->full_height,
                                    .width = d->full_width,
                                    .nin = c->nin,
                                    .nout = c->nout,
                                    .stride = 1,
                                    .x.dtype = d->v->dtype };
    return c->size == 3 ? d->device->images->conv_scratch(d->stream, &conv) : 0;
}

static size_t resnet_scratch(const struct coder *d, const struct vae_resnet *r)
{
    return larger(conv_scratch(d, &r->conv1), conv_scratch(d, &r->conv2));
}

static size_t scratch_nbytes(const struct coder *d, const int64_t *channels)
{
    const struct vae_config *c = &d->v->config;
    const struct vae_half *h = &d->v->half;
    const int64_t npixel = d->full_height * d->full_width, bounds[2] = { 0, npixel >> 2 * (c->nstage - 1) };
    const struct kern_attention_shape shape = attention_shape(d, bounds);
    size_t most = larger(d->device->ops->attention_scratch(d->stream, &shape),
                         larger(conv_scratch(d, &h->in), conv_scratch(d, &h->out)));
    most = larger(most, resnet_scratch(d, &h->mid[0]));
    for (int64_t i = 0; i < c->nstage; i++) {
        const int64_t doubles = kern_group_norm_scratch(npixel, channels[i], c->ngroup);
        most = larger(most, larger(conv_scratch(d, &h->stages[i].resizes), (size_t)doubles * sizeof(double)));
        for (int64_t j = 0; j < h->nresnet; j++)
            most = larger(most, resnet_scratch(d, &h->stages[i].resnets[j]));
    }
    return most;
}

/* Bytes of the pixels or the latents, which come and go in fp32. height, width: of the full size. */
static size_t ends_nbytes(int64_t height, int64_t width, const struct vae_config *c)
{
    const int64_t side = (int64_t)1 << (c->nstage - 1), latents = height / side * (width / side) * 2 * c->nlatent;
    return (size_t)(latents > 3 * height * width ? latents : 3 * height * width) * sizeof(float);
}

static size_t whole_pages(size_t nbytes)
{
    return (nbytes + 4095) / 4096 * 4096;
}

/* Bytes of a buffer. */
static size_t buffer_nbytes(int64_t height, int64_t width, enum kern_dtype dtype, const struct vae_config *c,
                            const int64_t *channels)
{
    const size_t inside = (size_t)largest(height, width, c, channels) * (size_t)kern_dtype_bytes(dtype);
    return whole_pages(larger(inside, ends_nbytes(height, width, c)));
}

uint64_t vae_buffers(int64_t height, int64_t width, enum kern_dtype dtype, const struct vae_config *c,
                     const int64_t *channels)
{
    return BUFFERS * (uint64_t)buffer_nbytes(height, width, dtype, c, channels);
}

static void free_buffers(struct coder *d)
{
    d->device->memory->free(&d->memory);
    free(d->host);
}

/* The caller calls free_buffers(), also after a failure. */
static int allocate(struct coder *d, const int64_t *channels, struct fsdpck_error *err)
{
    const struct kern_location where = { .kind = KERN_MEMORY_DEVICE, .index = d->v->index, .huge_pages = true };
    const struct kern_attention_shape one = { .ndoc = 1 };
    const size_t ends = ends_nbytes(d->full_height, d->full_width, &d->v->config),
                 nbytes = buffer_nbytes(d->full_height, d->full_width, d->v->dtype, &d->v->config, channels),
                 scratch = whole_pages(scratch_nbytes(d, channels)),
                 all = BUFFERS * nbytes + scratch + d->device->ops->attention_table_bytes(d->stream, &one);
    char message[KERN_MESSAGE_BYTES], *at;
    if (d->device->memory->alloc(where, all, &d->memory, message) != KERN_OK)
        return fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "no memory for a picture of %lld × %lld (%zu bytes): %s",
                                (long long)d->full_width, (long long)d->full_height, all, message);
    if (d->device->separate_memory && !(d->host = malloc(ends)))
        return fsdpck_error_nomem(err, ends);
    at = d->memory.data;
    d->x = at;
    d->h = at + nbytes;
    d->t = at + 2 * nbytes;
    d->scratch = at + BUFFERS * nbytes;
    d->table = at + BUFFERS * nbytes + scratch;
    return 0;
}

/* As torchvision and diffusers round: to the nearest, half to even. */
static void store(const float *values, int64_t n, uint8_t *pixels)
{
    for (int64_t i = 0; i < n; i++) {
        const float x = values[i] / 2 + 0.5f;
        pixels[i] = (uint8_t)lrintf(255 * (x < 0 || x != x ? 0 : x > 1 ? 1 : x));
    }
}

/* x as fp32, in host memory, after all that was computed. */
static int finish(struct coder *d, int64_t nchannel, const float **out, struct fsdpck_error *err)
{
    char message[KERN_MESSAGE_BYTES];
    d->device->ops->cast(d->stream, (struct kern_mat){ d->t, nchannel, KERN_F32 }, cmat(d, d->x, nchannel), npixel(d),
                         nchannel);
    if (d->host)
        d->device->memory->copy(d->stream, d->host, d->t, (size_t)(npixel(d) * nchannel) * sizeof *d->host);
    *out = d->host ? d->host : d->t;
    return d->device->stream_sync(d->stream, message) == KERN_OK
               ? 0
               : fsdpck_error_set(err, FSDPCK_ERR_IO, NULL, "a kernel failed on device '%s': %s", d->device->name,
                                  message);
}

/* The place for fp32 in host memory that begin() takes. */
static float *place_of_input(const struct coder *d)
{
    return d->host ? d->host : d->h;
}

/* From there to x. */
static void begin(struct coder *d, int64_t nchannel)
{
    if (d->host)
        d->device->memory->copy(d->stream, d->h, d->host, (size_t)(npixel(d) * nchannel) * sizeof *d->host);
    d->device->ops->cast(d->stream, mat(d, d->x, nchannel), (struct kern_cmat){ d->h, nchannel, KERN_F32 }, npixel(d),
                         nchannel);
}

/* A picture to decode or to encode, whole or in tiles. */
struct picture_work {
    const struct vae *v;
    const struct kern_device *device;
    struct kern_stream *stream;
    int64_t height, width; /* latent pixels of the decoder, pixels of the encoder */
    const float *latents;  /* the decoder's: */
    uint8_t *pixels;
    const uint8_t *given; /* the encoder's: */
    float *moments;
};

static struct coder coder_of(const struct picture_work *w, int64_t height, int64_t width)
{
    return (struct coder){ .v = w->v,
                           .device = w->device,
                           .stream = w->stream,
                           .height = height,
                           .width = width,
                           .full_height = height,
                           .full_width = width };
}

/* Values of a rectangle: (unit · height, unit · width, 3), until free_buffers(), which the caller calls. */
static int decode(const struct picture_work *w, int64_t row, int64_t col, int64_t height, int64_t width,
                  struct coder *d, const float **values, struct fsdpck_error *err)
{
    const int64_t unit = vae_unit(w->v);
    *d = coder_of(w, unit * height, unit * width);
    d->height = 2 * height;
    d->width = 2 * width;
    int rc = allocate(d, w->v->config.channels, err);
    if (rc)
        return rc;
    unpack(d, w->latents + (row * w->width + col) * 4 * w->v->config.nlatent, w->width, place_of_input(d));
    begin(d, w->v->config.nlatent);
    run_decoder(d);
    return finish(d, 3, values, err);
}

/* Moments of a rectangle: two for each channel of a pixel, of which there are two on each side of a latent one. */
static int encode(const struct picture_work *w, int64_t row, int64_t col, int64_t height, int64_t width,
                  struct coder *d, const float **moments, struct fsdpck_error *err)
{
    *d = coder_of(w, height, width);
    int rc = allocate(d, w->v->config.encoder_channels, err);
    if (rc)
        return rc;
    for (int64_t y = 0; y < height; y++)
        for (int64_t i = 0; i < 3 * width; i++)
            place_of_input(d)[3 * y * width + i] = (float)w->given[3 * ((row + y) * w->width + col) + i] / 127.5f - 1;
    begin(d, 3);
    run_encoder(d);
    return finish(d, 2 * w->v->config.nlatent, moments, err);
}

static int decode_tile(void *ctx, int64_t row, int64_t col, int64_t height, int64_t width, float *out,
                       struct fsdpck_error *err)
{
    struct coder d;
    const float *values;
    int rc = decode(ctx, row, col, height, width, &d, &values, err);
    if (!rc)
        memcpy(out, values, (size_t)(3 * npixel(&d)) * sizeof *out);
    free_buffers(&d);
    return rc;
}

static int encode_tile(void *ctx, int64_t row, int64_t col, int64_t height, int64_t width, float *out,
                       struct fsdpck_error *err)
{
    const struct picture_work *w = ctx;
    struct coder d;
    const float *moments;
    int rc = encode(w, row, col, height, width, &d, &moments, err);
    if (!rc)
        memcpy(out, moments, (size_t)(2 * w->v->config.nlatent * npixel(&d)) * sizeof *out);
    free_buffers(&d);
    return rc;
}

static void put_pixels(void *ctx, int64_t row, int64_t col, int64_t n, const float *values)
{
    const struct picture_work *w = ctx;
    store(values, 3 * n, w->pixels + 3 * (row * vae_unit(w->v) * w->width + col));
}

static void put_moments(void *ctx, int64_t row, int64_t col, int64_t n, const float *values)
{
    const struct picture_work *w = ctx;
    const int64_t each = 2 * w->v->config.nlatent, width = w->width / (vae_unit(w->v) / 2);
    memcpy(w->moments + (row * width + col) * each, values, (size_t)(n * each) * sizeof *values);
}

int64_t vae_tile(const struct vae_config *c, int64_t height, int64_t width)
{
    return c->tile && (height > c->tile || width > c->tile) ? c->tile : 0;
}

int vae_decode(const struct vae *v, const struct kern_device *device, struct kern_stream *stream, const float *latents,
               int64_t height, int64_t width, uint8_t *pixels, struct fsdpck_error *err)
{
    struct picture_work w = { v, device, stream, height, width, .latents = latents, .pixels = pixels };
    const int64_t unit = vae_unit(v), tile = vae_tile(&v->config, unit * height, unit * width);
    const struct tiles tiles = { height, width, tile / unit, tile, 3, decode_tile, put_pixels, &w };
    struct coder d;
    const float *values;
    if (tile)
        return tiles_run(&tiles, err);
    int rc = decode(&w, 0, 0, height, width, &d, &values, err);
    if (!rc)
        store(values, 3 * npixel(&d), pixels);
    free_buffers(&d);
    return rc;
}

/* The other way round: the first half of the channels is the mean. width: of the moments. */
static void pack(const struct vae *v, const float *moments, int64_t count, int64_t width, float *latents)
{
    const int64_t n = v->config.nlatent;
    for (int64_t pixel = 0; pixel < count; pixel++)
        for (int64_t c = 0; c < n; c++) {
            const int64_t y = pixel / width, x = pixel % width, channel = 4 * c + 2 * (y % 2) + x % 2;
            latents[(y / 2 * (width / 2) + x / 2) * 4 * n + channel] =
                (moments[pixel * 2 * n + c] - v->mean[channel]) / v->scale[channel];
        }
}

static int encode_in_tiles(struct picture_work *w, int64_t tile, float *latents, struct fsdpck_error *err)
{
    const int64_t side = vae_unit(w->v) / 2, each = 2 * w->v->config.nlatent,
                  count = w->height / side * (w->width / side);
    const struct tiles tiles = { w->height, w->width, tile, tile / side, each, encode_tile, put_moments, w };
    w->moments = malloc((size_t)(count * each) * sizeof *w->moments);
    int rc = w->moments ? tiles_run(&tiles, err) : fsdpck_error_nomem(err, (size_t)(count * each) * sizeof(float));
    if (!rc)
        pack(w->v, w->moments, count, w->width / side, latents);
    free(w->moments);
    return rc;
}

int vae_encode(const struct vae *v, const struct kern_device *device, struct kern_stream *stream, const uint8_t *pixels,
               int64_t height, int64_t width, float *latents, struct fsdpck_error *err)
{
    struct picture_work w = { v, device, stream, height, width, .given = pixels };
    const int64_t tile = vae_tile(&v->config, height, width);
    struct coder d;
    const float *moments;
    if (tile)
        return encode_in_tiles(&w, tile, latents, err);
    int rc = encode(&w, 0, 0, height, width, &d, &moments, err);
    if (!rc)
        pack(v, moments, npixel(&d), d.width, latents);
    free_buffers(&d);
    return rc;
}
