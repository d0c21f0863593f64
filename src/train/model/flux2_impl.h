/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files that compute FLUX.2's transformer. Rows are tokens, those of the text before those of the image,
 * so that what takes both needs no copies. What depends on the time alone is one row, in fp32. */
#ifndef TRAIN_FLUX2_IMPL_H
#define TRAIN_FLUX2_IMPL_H

#include "model/bump.h"
#include "model/compute_impl.h"

enum { FLUX2_TEXT, FLUX2_IMAGE, FLUX2_STREAMS };

/* Activations of a block that its backward pass needs; a forward pass alone computes in place, and has one for all
 * blocks. n tokens, D = hidden. S as in struct block. */
struct flux2_kept {
    void *z, *z2;               /* (n, D) the input; after the attention of a block of the first kind */
    void *q_raw, *k_raw;        /* before the norms of heads; equal to q and k in a forward pass alone. First kind: */
    void *q, *k, *v, *o;        /* (n, D) after norms and RoPE; v and o of the first kind only */
    float *rstd_q, *rstd_k;     /* (n, heads); NULL: not wanted */
    float *lse;                 /* (heads, n); NULL: not wanted */
    void *wide;                 /* (n, 2 · inner) gate and up; second kind (n, 3D + 2 · inner): q, k, v, gate, up */
    void *both;                 /* second kind: (n, D + inner) o and the MLP's activation */
    void *s_qkv[FLUX2_STREAMS]; /* (rows, Σ r) of each stream; second kind: [0] of `in` */
    void *s_out[FLUX2_STREAMS], *s_mlp_in[FLUX2_STREAMS], *s_mlp_out[FLUX2_STREAMS];
};

/* The embedding of a number: of the time, or of the strength of guidance. */
struct flux2_embedding {
    float *features;          /* (2 · FLUX2_FREQUENCIES) */
    float *inner, *act, *out; /* (D) of linear_1, its SiLU, of linear_2 */
    void *s[2];               /* S of both */
};

/* Shifts, scales and gates, which a linear layer makes of SiLU of the embedding of the time. */
struct flux2_modulation {
    const struct linear *layer;
    int64_t width; /* times D */
    float *value;  /* (width · D) */
    float *grad;   /* the same; NULL: not wanted */
    void *s;
};

/* What the blocks share. */
struct flux2_run {
    struct compute *c;
    int64_t ntext, nimage, n, height, width; /* of the present sample; height, width in latent pixels */
    struct flux2_embedding time, guidance;   /* time.out is the sum of both if the model is guided */
    float *time_act;                         /* (D) SiLU of it */
    struct flux2_modulation of_text, of_image, of_single, of_last;
    float *last_given;                 /* (2D) of_last as its layer gives it */
    float *d_time;                     /* (3D) gradient of time_act; the rest is scratch */
    float *ones, *zeros;               /* (D) of a backward pass */
    int32_t *positions;                /* (n) 0, 1, …: each token has a row in the tables */
    float *raw;                        /* (largest input) an input, as the host has it */
    void *rows, *context;              /* (nimage, nchannel), (ntext, text_width) in the dtype of the activations */
    float *velocity;                   /* (nimage, nchannel) */
    void *h, *act;                     /* (n, D); (n, inner) */
    void *last;                        /* (n, D) after the last block */
    void *s_context, *s_rows, *s_head; /* S of context_embedder, x_embedder and proj_out */
    void *dz, *dh;                     /* (n, D), of a backward pass; so are: */
    void *dwide, *dboth;               /* (n, 3D + 2 · inner); (n, D + inner) */
};

/* The embedding of the time, and the modulations of all blocks. sigma, guidance: as in flux2_forward.h. */
void flux2_time_alloc(struct flux2_run *r, struct bump *v, bool backward);
void flux2_modulations(struct flux2_run *r, float sigma, float guidance);
void flux2_last_modulation(struct flux2_run *r);
/* Their backward pass: begin, before any block's; the last one; when all blocks have added to the gradients, the
 * others. */
void flux2_time_begin_backward(struct flux2_run *r);
void flux2_last_modulation_backward(struct flux2_run *r);
void flux2_modulations_backward(struct flux2_run *r);

/* Allocates what does not belong to a block, for the sizes in r. */
void flux2_alloc(struct flux2_run *r, struct bump *v, bool backward);
/* Writes the tables of RoPE and attention for the sizes in r. */
int flux2_send_tables(struct flux2_run *r, struct fsdpck_error *err);
/* text: (ntext, text_width) in host memory. */
void flux2_send_text(struct flux2_run *r, const float *text);

/* Both sequences at the width of the blocks, in z, and all modulations. x: (nimage, nchannel) noisy latents in host
 * memory; sigma, guidance: as in flux2_forward.h. */
void flux2_first(struct flux2_run *r, const float *x, float sigma, float guidance, void *z);
/* Rows from `token` on of (n, pitch). */
static inline void *flux2_row(const struct flux2_run *r, void *data, int64_t token, int64_t pitch)
{
    return compute_row(r->c, data, token, pitch);
}

static inline struct kern_mat flux2_rows(const struct flux2_run *r, void *data, int64_t token, int64_t pitch)
{
    return mat(r->c, flux2_row(r, data, token, pitch), pitch);
}

/* r->h = LN(z)·(1 + scale) + shift, of n rows from `first` on. Shift and scale are at D·`at` of m, one after the
 * other. */
void flux2_modulate(struct flux2_run *r, const struct flux2_modulation *m, int64_t at, void *z, int64_t first,
                    int64_t n);
/* r->dz += the gradient of z from that of the modulated norm, in r->dh; the gradients of shift and scale are added to
 * those of m. Overwrites r->h if they are wanted. */
void flux2_modulate_backward(struct flux2_run *r, const struct flux2_modulation *m, int64_t at, void *z, int64_t first,
                             int64_t n);

/* From k->z to out, which may be k->z; NULL: only what the backward pass needs. */
void flux2_block(struct flux2_run *r, int64_t number, const struct flux2_kept *k, void *out);
/* The velocity, from r->last. Leaves its input in r->h. */
void flux2_end(struct flux2_run *r);

/* r->dz: in, gradient of the block's output; out, of its input if wants_dz. Adds the gradients of adapters. */
void flux2_block_backward(struct flux2_run *r, int64_t number, const struct flux2_kept *k, bool wants_dz);
/* From the gradient of the velocity, (nimage, nchannel) in the dtype of the activations, to r->dz. */
void flux2_end_backward(struct flux2_run *r, const void *dvelocity);
/* From r->dz, the gradient of the first block's input. */
void flux2_first_backward(struct flux2_run *r);

#endif
