/* SPDX-License-Identifier: Apache-2.0 */
/* The calls that are measured. Their shapes are small, so that operands stay in caches, as those of a step mostly do;
 * what passes through memory is larger than caches. */
#include "price/probe.h"

#include <kernels/memory.h>
#include <kernels/ops.h>

enum { NTOK = 512, WIDTH = 576, INNER = 1536, HEADS = 9, KEYS = 3, DIM = 64, SHORT = 64 };
enum { ADAMW_NELEM = 4 << 20, COPY_NBYTES = 32 << 20 };

static void *take(struct prober *p, int64_t nelem, enum kern_dtype dtype)
{
    void *data = p->arena + p->at;
    p->at += ((size_t)(nelem * kern_dtype_bytes(dtype)) + 4095) / 4096 * 4096;
    return data;
}

static struct kern_mat matrix(struct prober *p, int64_t nrow, int64_t ncol, enum kern_dtype dtype)
{
    return (struct kern_mat){ take(p, nrow * ncol, dtype), ncol, dtype };
}

/* y = x·Wᵀ, or dW = dYᵀ·x. */
static void product(struct prober *p, bool gradient, int64_t m, int64_t n, int64_t k)
{
    const struct kern_gemm g = { .m = m,
                                 .n = n,
                                 .k = k,
                                 .trans_a = gradient,
                                 .trans_b = !gradient,
                                 .alpha = 1,
                                 .a = kern_const(gradient ? matrix(p, k, m, p->dtype) : matrix(p, m, k, p->dtype)),
                                 .b = kern_const(gradient ? matrix(p, k, n, p->dtype) : matrix(p, n, k, p->dtype)),
                                 .c = matrix(p, m, n, gradient ? KERN_F32 : p->dtype) };
    p->device->ops->gemm(p->stream, &g);
}

static void probe_product(struct prober *p)
{
    product(p, false, NTOK, WIDTH, WIDTH);
}

static void probe_product_thin(struct prober *p)
{
    product(p, false, NTOK, RATES_THIN, WIDTH);
    product(p, false, NTOK, WIDTH, RATES_THIN);
}

static void probe_gradient(struct prober *p)
{
    product(p, true, WIDTH, WIDTH, NTOK);
}

static void probe_gradient_thin(struct prober *p)
{
    product(p, true, RATES_THIN, WIDTH, NTOK);
    product(p, true, WIDTH, RATES_THIN, NTOK);
}

/* One long document, or several short ones. */
static struct kern_attention attention_of(struct prober *p, int64_t cu[NTOK / SHORT + 1])
{
    const int64_t ndoc = p->variant ? NTOK / SHORT : 1;
    for (int64_t d = 0; d <= ndoc; d++)
        cu[d] = d * NTOK / ndoc;
    struct kern_attention a = { .shape = { .ntok = NTOK,
                                           .nhead = HEADS,
                                           .nkv = KEYS,
                                           .head_dim = DIM,
                                           .cu_seqlens = cu,
                                           .ndoc = ndoc,
                                           .scale = 0.125f },
                                .q = kern_const(matrix(p, NTOK, HEADS * DIM, p->dtype)),
                                .k = kern_const(matrix(p, NTOK, KEYS * DIM, p->dtype)),
                                .v = kern_const(matrix(p, NTOK, KEYS * DIM, p->dtype)),
                                .o = matrix(p, NTOK, HEADS * DIM, p->dtype),
                                .lse = take(p, NTOK * HEADS, KERN_F32) };
    a.scratch = take(p, (int64_t)p->device->ops->attention_scratch(p->stream, &a.shape), KERN_BF16);
    return a;
}

static void probe_attention(struct prober *p)
{
    int64_t cu[NTOK / SHORT + 1];
    const struct kern_attention a = attention_of(p, cu);
    p->device->ops->attention(p->stream, &a);
}

static void probe_attention_grad(struct prober *p)
{
    int64_t cu[NTOK / SHORT + 1];
    const struct kern_attention a = attention_of(p, cu);
    struct kern_attention_grad g = { .shape = a.shape,
                                     .q = a.q,
                                     .k = a.k,
                                     .v = a.v,
                                     .o = kern_const(a.o),
                                     .d_o = kern_const(matrix(p, NTOK, HEADS * DIM, p->dtype)),
                                     .lse = a.lse,
                                     .dq = matrix(p, NTOK, HEADS * DIM, p->dtype),
                                     .dk = matrix(p, NTOK, KEYS * DIM, p->dtype),
                                     .dv = matrix(p, NTOK, KEYS * DIM, p->dtype) };
    g.scratch = take(p, (int64_t)p->device->ops->attention_grad_scratch(p->stream, &a.shape), KERN_BF16);
    p->device->ops->attention_grad(p->stream, &g);
}

static void probe_norm(struct prober *p)
{
    const struct kern_rmsnorm a = { .nrow = NTOK,
                                    .ngroup = 1,
                                    .ncol = WIDTH,
                                    .eps = 1e-5f,
                                    .x = kern_const(matrix(p, NTOK, WIDTH, p->dtype)),
                                    .gamma = kern_const(matrix(p, 1, WIDTH, p->dtype)),
                                    .y = matrix(p, NTOK, WIDTH, p->dtype),
                                    .rstd = take(p, NTOK, KERN_F32) };
    p->device->ops->rmsnorm(p->stream, &a);
}

static void probe_norm_grad(struct prober *p)
{
    const struct kern_rmsnorm_grad a = { .nrow = NTOK,
                                         .ngroup = 1,
                                         .ncol = WIDTH,
                                         .x = kern_const(matrix(p, NTOK, WIDTH, p->dtype)),
                                         .dy = kern_const(matrix(p, NTOK, WIDTH, p->dtype)),
                                         .add = kern_const(matrix(p, NTOK, WIDTH, p->dtype)),
                                         .gamma = kern_const(matrix(p, 1, WIDTH, p->dtype)),
                                         .rstd = take(p, NTOK, KERN_F32),
                                         .dx = matrix(p, NTOK, WIDTH, p->dtype) };
    p->device->ops->rmsnorm_grad(p->stream, &a);
}

static void probe_rope(struct prober *p)
{
    struct kern_rope_apply a = { .nrow = NTOK, .nhead = HEADS, .dim = DIM, .rotary = DIM };
    int32_t *positions = take(p, NTOK, KERN_F32);
    a.x = matrix(p, NTOK, HEADS * DIM, p->dtype);
    a.cosines = take(p, NTOK * DIM / 2, KERN_F32);
    a.sines = take(p, NTOK * DIM / 2, KERN_F32);
    a.positions = positions;
    for (int32_t i = 0; i < NTOK; i++)
        positions[i] = i;
    p->device->ops->rope(p->stream, &a);
}

static void probe_swiglu(struct prober *p)
{
    const struct kern_mat y = matrix(p, NTOK, INNER, p->dtype);
    p->device->ops->swiglu(p->stream, y, kern_const(matrix(p, NTOK, INNER, p->dtype)),
                           kern_const(matrix(p, NTOK, INNER, p->dtype)), NTOK, INNER);
}

static void probe_swiglu_grad(struct prober *p)
{
    struct kern_swiglu_grad a = { .nrow = NTOK, .ncol = INNER };
    a.gate = kern_const(matrix(p, NTOK, INNER, p->dtype));
    a.up = kern_const(matrix(p, NTOK, INNER, p->dtype));
    a.dy = kern_const(matrix(p, NTOK, INNER, p->dtype));
    a.dgate = matrix(p, NTOK, INNER, p->dtype);
    a.dup = matrix(p, NTOK, INNER, p->dtype);
    a.y = matrix(p, NTOK, INNER, p->dtype);
    p->device->ops->swiglu_grad(p->stream, &a);
}

static int32_t *indices(struct prober *p, int32_t n)
{
    int32_t *index = take(p, n, KERN_F32);
    for (int32_t i = 0; i < n; i++)
        index[i] = i;
    return index;
}

static void probe_loss(struct prober *p)
{
    const struct kern_cross_entropy a = { .nrow = NTOK,
                                          .ncol = INNER,
                                          .target = indices(p, NTOK),
                                          .grad_scale = 1,
                                          .loss = take(p, NTOK, KERN_F32),
                                          .logits = kern_const(matrix(p, NTOK, INNER, p->dtype)),
                                          .dlogits = matrix(p, NTOK, INNER, p->dtype) };
    p->device->ops->cross_entropy(p->stream, &a);
}

static void probe_rows(struct prober *p)
{
    const struct kern_mat to = matrix(p, NTOK, WIDTH, p->dtype);
    p->device->ops->gather_rows(p->stream, to, kern_const(matrix(p, NTOK, WIDTH, p->dtype)), indices(p, NTOK), NTOK,
                                WIDTH, NTOK);
}

static void probe_elements(struct prober *p)
{
    const struct kern_mat to = matrix(p, NTOK, INNER, p->dtype);
    p->device->ops->add(p->stream, to, kern_const(matrix(p, NTOK, INNER, p->dtype)),
                        kern_const(matrix(p, NTOK, INNER, p->dtype)), NTOK, INNER);
}

void probe_adamw(struct prober *p)
{
    const int64_t n = ADAMW_NELEM;
    const struct kern_adamw_range range = { .nelem = n,
                                            .p = take(p, n, KERN_F32),
                                            .m = take(p, n, KERN_F32),
                                            .v = take(p, n, KERN_F32),
                                            .grad = take(p, n, KERN_F32),
                                            .rounded = take(p, n, KERN_BF16) };
    const struct kern_adamw a = {
        .ranges = &range, .nranges = 1, .grad_scale = 1, .lr = 1e-6, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .t = 9
    };
    p->device->ops->adamw(p->stream, &a);
}

void probe_squares(struct prober *p)
{
    const struct kern_rows x = { kern_const(matrix(p, ADAMW_NELEM / WIDTH, WIDTH, KERN_F32)), ADAMW_NELEM / WIDTH,
                                 WIDTH };
    p->device->ops->sum_squares(p->stream, take(p, 2 * ADAMW_NELEM / WIDTH, KERN_F32), &x, 1);
}

void probe_memory(struct prober *p)
{
    void *to = take(p, COPY_NBYTES / 4, KERN_F32);
    p->device->memory->copy(p->stream, to, take(p, COPY_NBYTES / 4, KERN_F32), COPY_NBYTES);
}

void probe_calls(struct prober *p)
{
    const struct kern_mat x = matrix(p, 1, RATES_THIN, KERN_F32);
    p->device->ops->scale(p->stream, x, kern_const(x), 1, 1, RATES_THIN);
}

probe_fn *const probe_typed[RATES_NTYPED] = { [RATES_PRODUCT] = probe_product,
                                              [RATES_PRODUCT_THIN] = probe_product_thin,
                                              [RATES_GRADIENT] = probe_gradient,
                                              [RATES_GRADIENT_THIN] = probe_gradient_thin,
                                              [RATES_ATTENTION] = probe_attention,
                                              [RATES_ATTENTION_GRAD] = probe_attention_grad,
                                              [RATES_NORM] = probe_norm,
                                              [RATES_NORM_GRAD] = probe_norm_grad,
                                              [RATES_ROPE] = probe_rope,
                                              [RATES_SWIGLU] = probe_swiglu,
                                              [RATES_SWIGLU_GRAD] = probe_swiglu_grad,
                                              [RATES_LOSS] = probe_loss,
                                              [RATES_ROWS] = probe_rows,
                                              [RATES_ELEMENTS] = probe_elements };
