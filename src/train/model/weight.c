/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of the base in products: as they are in parameter memory, or dequantized just before they are used. */
#include "model/bump.h"
#include "model/compute_impl.h"

struct kern_cmat compute_rows_of(struct compute *c, const struct param *p, const void *rows, int64_t first,
                                 int64_t nrow, int64_t at)
{
    const struct kern_mat to = { (char *)c->weights + at * kern_dtype_bytes(p->dtype), p->ncol, p->dtype };
    if (!p->packed)
        return (struct kern_cmat){ rows, p->ncol, p->dtype };
    const struct kern_dequantize d = {
        .nrow = nrow, .ncol = p->ncol, .form = p->packed->form, .first = first, .rows = rows, .to = to
    };
    c->device->ops->dequantize(c->stream, &d);
    return kern_const(to);
}

/* The quantized rows of an expert are its outputs. */
static struct kern_cmat packed_expert(struct compute *c, const struct linear *lin, int64_t at)
{
    const struct param *p = &c->l->params[lin->w];
    const char *data = value_of(c, lin->w).data;
    const struct kern_mat to = { (char *)c->weights + at * kern_dtype_bytes(p->dtype), lin->nout, p->dtype };
    const struct kern_dequantize d = { .nrow = lin->nout,
                                       .ncol = lin->nin,
                                       .form = p->packed->form,
                                       .first = lin->expert * lin->nout,
                                       .rows = data + lin->expert * param_row_nbytes(p),
                                       .turned = true,
                                       .to = to };
    c->device->ops->dequantize(c->stream, &d);
    return kern_const(to);
}

struct kern_cmat weight_of(struct compute *c, const struct linear *lin, int64_t at)
{
    const struct param *p = &c->l->params[lin->w];
    if (lin->fused && p->packed)
        return packed_expert(c, lin, at);
    if (lin->fused) {
        struct kern_cmat w = row_of(c, lin->w, lin->expert);
        w.pitch = lin->nout;
        return w;
    }
    return compute_rows_of(c, p, value_of(c, lin->w).data, 0, p->nrow, at);
}

/* Elements of the weights of layers that share an input; 0 if none is packed. */
static int64_t packed_nelem(const struct layout *l, const struct linear *const *layers, int n)
{
    int64_t sum = 0;
    bool any = false;
    for (int i = 0; i < n; i++) {
        sum += layers[i]->nin * layers[i]->nout;
        any = any || l->params[layers[i]->w].packed;
    }
    return any ? sum : 0;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void widen(void *ctx, const struct linear *const *layers, int n)
{
    struct compute *c = ctx;
    c->nweights = most(c->nweights, packed_nelem(c->l, layers, n));
}

void compute_alloc_weights(struct compute *c, struct bump *v)
{
    c->nweights = 0;
    layout_each(c->l, widen, c);
    c->weights = bump_acts(v, c->widest, c->nweights);
}
