/* SPDX-License-Identifier: Apache-2.0 */
/* Where the weights of the autoencoder are: in arrays on the host, or together in a device's memory. */
#include <stdlib.h>

#include "image/vae.h"

/* Returns the new place of a weight. */
typedef void *weight_fn(void *ctx, void *data, size_t nbytes);

struct visit {
    enum kern_dtype dtype;
    weight_fn *fn;
    void *ctx;
};

static void visit_conv(const struct visit *v, struct vae_conv *c)
{
    const int64_t nelem = c->nout * c->nin * c->size * c->size;
    if (!c->nout)
        return;
    c->weight = v->fn(v->ctx, c->weight, (size_t)(nelem * kern_dtype_bytes(v->dtype)));
    c->bias = v->fn(v->ctx, c->bias, (size_t)c->nout * sizeof *c->bias);
}

static void visit_norm(const struct visit *v, struct vae_norm *n)
{
    n->gamma = v->fn(v->ctx, n->gamma, (size_t)n->nchannel * sizeof *n->gamma);
    n->beta = v->fn(v->ctx, n->beta, (size_t)n->nchannel * sizeof *n->beta);
}

static void visit_resnet(const struct visit *v, struct vae_resnet *r)
{
    visit_norm(v, &r->norm1);
    visit_norm(v, &r->norm2);
    visit_conv(v, &r->conv1);
    visit_conv(v, &r->conv2);
    visit_conv(v, &r->shortcut);
}

static void visit_half(struct vae *vae, weight_fn *fn, void *ctx)
{
    const struct visit v = { vae->dtype, fn, ctx };
    struct vae_half *h = &vae->half;
    struct vae_conv *convs[] = { &h->quant, &h->in, &h->out, &h->q, &h->k, &h->v, &h->o };
    for (size_t i = 0; i < sizeof convs / sizeof convs[0]; i++)
        visit_conv(&v, convs[i]);
    for (int i = 0; i < 2; i++)
        visit_resnet(&v, &h->mid[i]);
    visit_norm(&v, &h->mid_norm);
    visit_norm(&v, &h->norm_out);
    for (int i = 0; i < VAE_STAGES; i++) {
        for (int j = 0; j < VAE_RESNETS; j++)
            visit_resnet(&v, &h->stages[i].resnets[j]);
        visit_conv(&v, &h->stages[i].resizes);
    }
}

enum { ALIGNMENT = 256 };

static size_t aligned(size_t nbytes)
{
    return (nbytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void *count(void *ctx, void *data, size_t nbytes)
{
    *(size_t *)ctx += aligned(nbytes);
    return data;
}

struct move {
    struct vae *v;
    struct kern_stream *stream;
    size_t at;
    int status;
    char message[KERN_MESSAGE_BYTES];
};

/* The copy has ended before its source is freed. */
static void *move_one(void *ctx, void *data, size_t nbytes)
{
    struct move *m = ctx;
    char *to = (char *)m->v->moved.data + m->at;
    if (m->status || !nbytes)
        return data;
    m->v->device->memory->copy(m->stream, to, data, nbytes);
    m->status = m->v->device->stream_sync(m->stream, m->message);
    if (m->status)
        return data;
    m->at += aligned(nbytes);
    free(data);
    return to;
}

int vae_move(struct vae *v, const struct kern_device *device, int index, struct kern_stream *stream,
             struct fsdpck_error *err)
{
    const struct kern_location where = { .kind = KERN_MEMORY_DEVICE, .index = index };
    struct move m = { .v = v, .stream = stream };
    size_t nbytes = 0;
    if (!device->separate_memory)
        return 0;
    visit_half(v, count, &nbytes);
    if (device->memory->alloc(where, nbytes, &v->moved, m.message) != KERN_OK)
        return fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "no memory for an autoencoder of %zu bytes: %s", nbytes,
                                m.message);
    v->device = device;
    v->index = index;
    visit_half(v, move_one, &m);
    return m.status ? fsdpck_error_set(err, FSDPCK_ERR_IO, NULL, "device '%s': %s", device->name, m.message) : 0;
}

/* A weight that was moved is a part of the device's buffer. */
static void *free_one(void *ctx, void *data, size_t nbytes)
{
    const struct kern_buffer *moved = ctx;
    const uintptr_t at = (uintptr_t)data, from = (uintptr_t)moved->data;
    (void)nbytes;
    if (at < from || at >= from + moved->nbytes)
        free(data);
    return NULL;
}

void vae_close(struct vae *v)
{
    if (!v)
        return;
    visit_half(v, free_one, &v->moved);
    if (v->device)
        v->device->memory->free(&v->moved);
    free(v->mean);
    free(v->scale);
    free(v);
}
