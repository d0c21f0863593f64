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

/* Begins to compute a group whose input (ntok, hidden) has the dtype of another one: rounds or widens it in place, by
 * way of a buffer of the same size. */
void compute_go_over(struct compute *c, uint32_t from, uint32_t to, void *x, void *by_way_of);

/* Rows per piece of the head; 0: the default. A CPU cache wants small pieces. A device with its own memory wants large
 * products, as long as their logits fit into a fraction of the memory. */
static inline int64_t head_chunk(const struct compute *c)
{
    enum { LOGITS = 1 << 27, LEAST = 128, MOST = 4096 };
    int64_t chunk = LOGITS / c->m->nvocab / LEAST * LEAST;
    return !c->device->separate_memory ? 0 : chunk < LEAST ? LEAST : chunk > MOST ? MOST : chunk;
}

static inline int64_t head_panel(const struct compute *c)
{
    return c->device->separate_memory ? c->m->nvocab : 0;
}

/* Gradients of parameters. */
static inline struct kern_mat grad_mat(float *data, int64_t pitch)
{
    return (struct kern_mat){ data, pitch, KERN_F32 };
}

static const struct kern_cmat no_cmat = { NULL, 0, KERN_F32 };

struct bump;
/* Memory of all blocks, one by one. Those below the lowest trained one need nothing for the backward pass: they share
 * one piece with the recomputed ones, as large as the largest of them. */
void compute_alloc_blocks(struct compute *c, struct bump *v,
                          void (*alloc)(struct compute *c, struct bump *v, int64_t number));

/* Rounds ntok up to a multiple of the device's row_unit. */
int64_t compute_whole_units(const struct compute *c, int64_t ntok);

/* Allocates the buffers for DoRA; nothing without DoRA. */
void compute_alloc_dora(struct compute *c, struct bump *v, int64_t ntok, bool backward);

/* True if the embedding or its adapter trains; of FLUX.2, something before the first block. */
bool compute_trains_first(const struct layout *l);

/* The largest Σ r of layers that share an input; of those of experts. */
int64_t compute_largest_rank(const struct layout *l);
int64_t compute_expert_rank(const struct layout *l, int64_t nlayer);

/* Computes cosines and sines for ntok positions on the host in fp64, and copies them to where kernels read them. */
int compute_send_rope_tables(struct compute *c, int64_t ntok, struct fsdpck_error *err);

/* Pads the batch and copies it to where kernels read it. */
void compute_send_batch(struct compute *c);
/* Copies batch.weights to where kernels read them. */
void compute_send_weights(struct compute *c);
/* Waits for n rows of the head, from `first` on, and sets their batch.losses. */
int compute_take_losses(struct compute *c, const struct kern_head *head, int64_t first, int64_t n,
                        struct fsdpck_error *err);
/* Builds batch.documents for the batch's ntok tokens. */
void compute_send_documents(struct compute *c, const int64_t *cu_seqlens, int64_t ndoc);

/* A view of a whole parameter; empty if there is no such parameter. */
static inline struct kern_cmat value_of(const struct compute *c, int32_t param)
{
    if (param < 0)
        return no_cmat;
    const struct param *p = &c->l->params[param];
    const struct compute_group_data stays = { c->values, 0 }, *data = p->owned ? &stays : &c->group_data[p->group];
    return (struct kern_cmat){ data->data + (p->value_at - data->at), p->ncol, p->dtype };
}

/* The same of one of its rows. */
static inline struct kern_cmat row_of(const struct compute *c, int32_t param, int64_t row)
{
    struct kern_cmat value = value_of(c, param);
    if (value.data)
        value.data = (const char *)value.data + row * value.pitch * kern_dtype_bytes(value.dtype);
    return value;
}

/* The bias of a layer. */
static inline struct kern_cmat bias_of(const struct compute *c, const struct linear *lin)
{
    return lin->fused ? row_of(c, lin->bias, lin->expert) : value_of(c, lin->bias);
}

/* The weight of a layer, (nout, nin), of a fused one (nin, nout): in its place, or dequantized into element `at` of
 * c->weights, where it stays until the next weight takes the place. */
struct kern_cmat weight_of(struct compute *c, const struct linear *lin, int64_t at);
/* Allocates c->weights. */
void compute_alloc_weights(struct compute *c, struct bump *v);

/* A and B of a layer's adapter (pairs.c): in their place, or B copied into element `at` of c->b_one, where it stays
 * until the next B takes the place. */
struct kern_cmat pair_a(const struct compute *c, const struct linear *lin);
struct kern_cmat pair_b(struct compute *c, const struct linear *lin, int64_t at);
/* Their gradients; NULL if frozen. Call pair_add_db() when the gradient of B has been added to the memory that
 * pair_db() returned, and before its next call. */
float *pair_da(const struct compute *c, const struct linear *lin);
float *pair_db(struct compute *c, const struct linear *lin);
void pair_add_db(struct compute *c, const struct linear *lin);
/* Allocates c->b_one and c->db_one. */
void compute_alloc_pairs(struct compute *c, struct bump *v, bool backward);

/* NULL if the parameter is frozen or does not exist. */
static inline float *grad_of(const struct compute *c, int32_t param)
{
    return param < 0 || !c->l->params[param].trainable ? NULL : c->grads + c->l->params[param].grad_at;
}

/* The same of one of its rows. */
static inline float *grad_row_of(const struct compute *c, int32_t param, int64_t row)
{
    float *grad = grad_of(c, param);
    return grad ? grad + row * c->l->params[param].ncol : NULL;
}

/* Linear layers that share their input. The S of their adapters form one (T, r) matrix; layer i's columns begin at
 * at[i]. */
enum { BUNDLE = 3 };
struct bundle {
    const struct linear *layers[BUNDLE]; /* (n) */
    int64_t at[BUNDLE], r;
    int n;
    bool dora;  /* some layers have DoRA */
    bool joint; /* several adapters with the same scale, without dropout: their A are multiplied as one matrix */
    float scale;
};

struct bundle bundle_of(const struct compute *c, const struct linear *const *layers, int n);
/* Computes S only; s: (T, r). */
void bundle_down(struct compute *c, const struct bundle *b, const void *x, void *s);
/* y[i] = x·Wᵀ + bias + adapter (+ add). s: (T, r), stored for the backward pass. */
void bundle_forward(struct compute *c, const struct bundle *b, const void *x, void *s, const void *add,
                    const struct kern_mat *y);
/* dx = Σ dy·W + adapters' part (+ add). dx NULL: not wanted; dx may be add. Also adds the gradients of the adapters' B.
 * bundle_backward_rest() computes all that needs x; call it with the same dy, before another bundle. It reads x only if
 * a layer trains. */
void bundle_backward(struct compute *c, const struct bundle *b, void *s, const struct kern_cmat *dy, const void *add,
                     void *dx);
void bundle_backward_rest(struct compute *c, const struct bundle *b, const void *x, void *s,
                          const struct kern_cmat *dy);

/* A layer's columns of a (T, b->r) matrix. */
struct kern_mat bundle_columns(const struct compute *c, const struct bundle *b, int i, void *data);

/* Computes DoRA's norms of a layer into c->norms. */
void dora_norms(struct compute *c, const struct linear *lin);
/* y = (g - minus)·u + bias + add, for a layer with DoRA. bias, add: data NULL for none. */
void dora_scale(struct compute *c, const struct linear *lin, float minus, struct kern_cmat u, struct kern_cmat bias,
                struct kern_cmat add, struct kern_mat y);
/* Computes the layer's output from u. With dropout, adds to y, which holds the output of plain LoRA. */
void dora_forward(struct compute *c, const struct bundle *b, int i, const void *x, void *s, const void *add,
                  struct kern_mat y);
/* out[i] = dY of each layer; for layers with DoRA times (g - minus), in c->dy. */
void dora_scale_grads(struct compute *c, const struct bundle *b, float minus, const struct kern_cmat *dy,
                      struct kern_cmat *out);
/* Computes dm; recomputes the product u. */
void dora_magnitude_backward(struct compute *c, const struct bundle *b, int i, const void *x, void *s,
                             struct kern_cmat dy);

/* True if the layer has a trainable parameter. */
bool linear_trains(const struct compute *c, const struct linear *lin);
struct kern_dropout linear_dropout(const struct compute *c, const struct linear *lin);

void norm_forward(struct compute *c, int32_t gamma, int64_t ngroup, int64_t ncol, const void *x, void *y, float *rstd);
/* dx = gradient of x (+ add). dx may be dy. */
void norm_backward(struct compute *c, int32_t gamma, int64_t ngroup, int64_t ncol, const void *x, const float *rstd,
                   const void *dy, const void *add, void *dx);

/* Calls the hook if there is one. The end is the group of the last norm and the head; plus the embedding's group if the
 * head shares its weight. */
int compute_enter(const struct compute_hook *hook, uint32_t group, struct fsdpck_error *err);
void compute_leave(const struct compute_hook *hook, uint32_t group);
int compute_enter_end(const struct compute *c, const struct compute_hook *hook, struct fsdpck_error *err);
void compute_leave_end(const struct compute *c, const struct compute_hook *hook);

/* True if the part of the block is in the group that is computed. */
static inline bool has_part(const struct compute *c, int64_t block, enum layout_part part)
{
    return c->l->blocks[block].groups[part] == c->group;
}

/* The dtype of a block's parameters and activations. */
static inline enum kern_dtype block_dtype(const struct layout *l, int64_t block)
{
    return layout_dtype(l, layout_first_group(l, block));
}

/* Parts of a micro-batch that may be recorded and replayed as a whole. */
enum replay_part { REPLAY_FORWARD, REPLAY_RECOMPUTED, REPLAY_BACKWARD, REPLAY_PARTS };
/* Enqueues the work of c->group, in a block, which may depend only on both, and on the shape and the addresses of the
 * batch. */
typedef void (*replay_work)(struct compute *c, int64_t number);
/* Runs `work`, or replays its recording. */
void replay(struct compute *c, enum replay_part part, int64_t number, replay_work work);
/* Sets c->replays; NULL if the device cannot record, or if blocks are large. */
int replays_new(struct compute *c, struct fsdpck_error *err);
void replays_free(struct compute *c);

/* Row `row` of a matrix of activations without gaps. */
static inline void *compute_row(const struct compute *c, void *data, int64_t row, int64_t ncol)
{
    return (char *)data + row * ncol * kern_dtype_bytes(c->dtype);
}

/* The mixture of experts of a block: from c->h, the output of norm2, to the block's output. out as in
 * block_forward(). */
void experts_forward(struct compute *c, int64_t number, void *out);
/* c->dx: in, gradient of the block's output; out, gradient of x2 if `through`. */
void experts_backward(struct compute *c, int64_t number, bool through);
/* True if the router or an expert has a trainable parameter. */
bool experts_train(const struct compute *c, const struct layer *layer);
/* Its steps: rows [first, first + n) of a routing are those of one expert. */
void experts_route(struct compute *c, const struct layer *layer, const void *h, struct routed *r);
void experts_gather(struct compute *c, const struct routed *r, int64_t first, int64_t n, const void *src, void *dst);
/* up NULL: gate has gate and up in turn. */
void experts_act(struct compute *c, const struct routed *r, int64_t first, int64_t n, const void *gate, const void *up,
                 void *y);
/* y += weight·bias of an expert of the layer; nothing if its experts have none. */
void experts_bias(struct compute *c, const struct layer *layer, int64_t expert, int64_t first, int64_t n,
                  const struct routed *r, void *y);
/* dst = sum over a token's experts of c->expert_rows (+ add). */
void experts_sum(struct compute *c, const struct routed *r, const void *add, void *dst);
/* The load balancing loss (balance.c), if it is added: begins a micro-batch, adds a layer's routing, adds the loss to
 * c->loss_sum and makes the gradients for the layers' routers. */
void balance_begin(struct compute *c);
void balance_add(struct compute *c, const struct routed *r);
void balance_end(struct compute *c);
/* NULL: the routers have no gradient from it. */
const float *balance_slopes(const struct compute *c);
void balance_alloc(struct compute *c, struct bump *v, int64_t ntok);
/* The most rows that one expert has, and that all have together; 0 without experts. */
int64_t experts_one(const struct compute *c, int64_t ntok);
int64_t experts_all(const struct compute *c, int64_t ntok);
void routed_alloc(const struct compute *c, struct bump *v, int64_t ntok, struct routed *r);
/* Allocates the buffers that blocks share. */
void experts_alloc(struct compute *c, struct bump *v, int64_t ntok, bool backward);

/* The expert that every token shares (shared.c): c->dx = b->x2 + its output, from c->h. wants_y: else only what the
 * backward pass needs. */
void shared_forward(struct compute *c, int64_t number, bool wants_y);
/* From c->dx, the gradient of the block's output; adds the gradient of c->h to c->dh if `through`. */
void shared_backward(struct compute *c, int64_t number, bool through);
bool shared_trains(const struct compute *c, const struct layer *layer);
void shared_alloc(const struct compute *c, struct bump *v, const struct layer *layer, struct shared *s);
void shared_weigh(struct compute *c, int64_t ntok, const float *logits, float *weights);
/* y = weight·silu(gate)·up for every token; weights NULL: all are 1. */
void shared_act(struct compute *c, const float *weights, const void *gate, const void *up, void *y);

/* Computes a block's output from b->x. out NULL: computes only what the backward pass needs. */
void block_forward(struct compute *c, int64_t number, void *out);
/* c->dx: in, gradient of the block's output; out, gradient of b->x. In the first layer that trains, stops at the lowest
 * parameter that trains. */
void block_backward(struct compute *c, int64_t number);
/* The part of it, and of the recomputation before it, that a rank without a micro-batch takes in exchanges of tokens.
 */
void block_serve_backward(struct compute *c, int64_t number);

/* The layer where the backward pass ends: 0 if the embedding trains, else the lowest layer that trains. */
int64_t compute_first_layer(const struct layout *l);

void embed_forward(struct compute *c, void *x);
void embed_backward(struct compute *c, const void *dx);

#endif
