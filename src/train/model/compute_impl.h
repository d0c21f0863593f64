/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of a micro-batch: views, and functions shared by its files. */
#ifndef TRAIN_COMPUTE_IMPL_H
#define TRAIN_COMPUTE_IMPL_H

#include "model/compute.h"

/* Activations: (T, pitch). */
static inline struct kern_mat mat(const struct compute *c, void *data, int64_t pitch)
{
    return (struct kern_mat){ data, pitch, c->dtype };
}

static inline struct kern_cmat cmat(const struct compute *c, const void *data, int64_t pitch)
{
    return (struct kern_cmat){ data, pitch, c->dtype };
}

/* How the head is cut. A processor's cache wants small pieces; a device of its own wants large products, as long as
 * their logits are a fraction of its memory. */
static inline int64_t head_chunk(const struct compute *c)
{
    enum { LOGITS = 1 << 27, LEAST = 128, MOST = 4096 };
    int64_t chunk = LOGITS / c->m->nvocab / LEAST * LEAST;
    return !c->device->apart ? 0 : chunk < LEAST ? LEAST : chunk > MOST ? MOST : chunk;
}

static inline int64_t head_panel(const struct compute *c)
{
    return c->device->apart ? c->m->nvocab : 0;
}

/* Gradients of parameters. */
static inline struct kern_mat grad_mat(float *data, int64_t pitch)
{
    return (struct kern_mat){ data, pitch, KERN_F32 };
}

static const struct kern_cmat no_cmat = { NULL, 0, KERN_F32 };

/* So many tokens and what pads them, as the device likes numbers of rows. */
int64_t compute_whole_units(const struct compute *c, int64_t ntok);

struct bump;
/* What DoRA wants: nothing where nothing has it. */
void compute_alloc_dora(struct compute *c, struct bump *v, int64_t ntok, bool backward);
/* DoRA's norms of a layer, to c->norms. */
void dora_norms(struct compute *c, const struct linear *lin);
/* y = (g - minus)·u + bias + add, of a layer with DoRA. bias, add: data NULL for none. */
void dora_scale(struct compute *c, const struct linear *lin, float minus, struct kern_cmat u, struct kern_cmat bias,
                struct kern_cmat add, struct kern_mat y);

/* The largest Σ r of layers that share an input. */
int64_t compute_largest_rank(const struct layout *l, int64_t nlayer);

/* Cosines and sines of ntok positions to where they belong, made by the host in fp64. */
int compute_send_rope_tables(struct compute *c, int64_t ntok, struct fsdpck_error *err);

/* The batch, padded, to where kernels read it. */
void compute_send_batch(struct compute *c);
/* batch.documents, of its ntok tokens. */
void compute_send_documents(struct compute *c, const int64_t *cu_seqlens, int64_t ndoc);

/* Whole tensors; none where there is no such parameter. */
static inline struct kern_cmat value_of(const struct compute *c, int32_t param)
{
    if (param < 0)
        return no_cmat;
    const struct param *p = &c->l->params[param];
    const struct compute_group_data *data = &c->group_data[p->group];
    return (struct kern_cmat){ data->data + (p->value_at - data->at), p->ncol, p->dtype };
}

/* NULL also where it is frozen. */
static inline float *grad_of(const struct compute *c, int32_t param)
{
    return param < 0 || !c->l->params[param].trainable ? NULL : c->grads + c->l->params[param].grad_at;
}

/* Linear layers that share their input, and what their adapters' S have in common: one (T, r) matrix, layer i's columns
 * from at[i] on. */
enum { BUNDLE = 3 };
struct bundle {
    const struct linear *layers[BUNDLE]; /* (n) */
    int64_t at[BUNDLE], r;
    int n;
    bool dora;  /* some have it */
    bool joint; /* several adapters of one scale, without dropout: their A are multiplied as one */
    float scale;
};

struct bundle bundle_of(const struct compute *c, const struct linear *const *layers, int n);
/* s: (T, r), S alone. */
void bundle_down(struct compute *c, const struct bundle *b, const void *x, void *s);
/* y[i] = x·Wᵀ + bias + adapter (+ add); s: (T, r) for the backward. */
void bundle_forward(struct compute *c, const struct bundle *b, const void *x, void *s, const void *add,
                    const struct kern_mat *y);
/* dx = Σ dy·W + adapters' (+ add), NULL: not wanted; dx may be add. Adds the gradients of the adapters' B; what is left
 * is bundle_backward_rest's, with the same dy and no other bundle in between: all that needs x, which is read only
 * where a layer trains. */
void bundle_backward(struct compute *c, const struct bundle *b, void *s, const struct kern_cmat *dy, const void *add,
                     void *dx);
void bundle_backward_rest(struct compute *c, const struct bundle *b, const void *x, void *s,
                          const struct kern_cmat *dy);

/* Whether the layer has anything to train. */
bool linear_trains(const struct compute *c, const struct linear *lin);
struct kern_dropout linear_dropout(const struct compute *c, const struct linear *lin);

void norm_forward(struct compute *c, int32_t gamma, int64_t ngroup, int64_t ncol, const void *x, void *y, float *rstd);
/* dx = the gradient of x (+ add); may be dy. */
void norm_backward(struct compute *c, int32_t gamma, int64_t ngroup, int64_t ncol, const void *x, const float *rstd,
                   const void *dy, const void *add, void *dx);

/* What the hook sees, where there is one. The end: the last norm and the head; with them the embedding's weight where
 * it is the head's. */
int compute_enter(const struct compute_hook *hook, uint32_t group, struct fsdpck_error *err);
void compute_leave(const struct compute_hook *hook, uint32_t group);
int compute_enter_end(struct compute *c, const struct compute_hook *hook, struct fsdpck_error *err);
void compute_leave_end(struct compute *c, const struct compute_hook *hook);

/* Parts of a micro-batch that are put on the stream as one, where that is worth while. */
enum replay_part { REPLAY_FORWARD, REPLAY_RECOMPUTED, REPLAY_BACKWARD, REPLAY_PARTS };
/* Puts a block's work on the stream; what it puts there depends on its number, the batch's shape and places alone. */
typedef void (*replay_work)(struct compute *c, int64_t number);
/* work, or what it put on the stream before. */
void replay(struct compute *c, enum replay_part part, int64_t number, replay_work work);
/* c->replays, NULL where the device records nothing, or blocks are large. */
int replays_new(struct compute *c, struct fsdpck_error *err);
void replays_free(struct compute *c);

/* b->x to out; NULL: only what the backward needs. */
void block_forward(struct compute *c, int64_t number, void *out);
/* c->dx: the gradient of the block's output, replaced by that of b->x; where !wants_dx it ends at the lowest thing that
 * trains. */
void block_backward(struct compute *c, int64_t number, bool wants_dx);

/* Where the backward ends: 0 where the embedding trains, else the lowest layer that has anything to train. */
int64_t compute_first_layer(const struct layout *l);

void embed_forward(struct compute *c, void *x);
void embed_backward(struct compute *c, const void *dx);

#endif
