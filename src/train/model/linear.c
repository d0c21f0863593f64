/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers with bias and adapter, forward and backward, written with the table of kernels. Layers with a common
 * input form a bundle: their adapters' A are multiplied as one matrix, and the gradient of their input is one product
 * of several parts, summed as specified for kern_gemm. */
#include "model/compute_impl.h"

struct kern_dropout linear_dropout(const struct compute *c, const struct linear *lin)
{
    return (struct kern_dropout){ .p = c->dropout,
                                  .rng = { .seed = c->seed, .name = lin->dropout_name },
                                  .width = lin->nin,
                                  .rng_offset = c->on.rng_offset };
}

bool linear_trains(const struct compute *c, const struct linear *lin)
{
    return lin->r > 0 || grad_of(c, lin->w) || grad_of(c, lin->bias);
}

struct bundle bundle_of(const struct compute *c, const struct linear *const *layers, int n)
{
    struct bundle b = { .n = n };
    int nadapters = 0;
    float scale = 0;
    bool same = c->dropout == 0; /* with dropout, each layer has its own mask */
    for (int i = 0; i < n; i++) {
        b.layers[i] = layers[i];
        b.at[i] = b.r;
        b.r += layers[i]->r;
        if (layers[i]->r && nadapters++ > 0)
            same = same && layers[i]->scale == scale;
        scale = layers[i]->r ? layers[i]->scale : scale;
        b.dora = b.dora || layers[i]->magnitude >= 0;
    }
    b.joint = nadapters > 1 && same;
    b.scale = scale;
    return b;
}

struct kern_mat bundle_columns(const struct compute *c, const struct bundle *b, int i, void *data)
{
    return mat(c, (char *)data + b->at[i] * kern_dtype_bytes(c->dtype), b->r);
}

static struct kern_lora_segment segment_of(const struct compute *c, const struct linear *lin)
{
    return (struct kern_lora_segment){ .nrow = c->batch.ntok,
                                       .r = lin->r,
                                       .scale = lin->scale,
                                       .a = pair_a(c, lin),
                                       .da = pair_da(c, lin),
                                       .pitch_da = lin->nin,
                                       .pitch_db = lin->r,
                                       .dropout = linear_dropout(c, lin) };
}

static struct kern_lora lora_of(const struct compute *c, const struct linear *lin,
                                const struct kern_lora_segment *segment)
{
    return (struct kern_lora){
        .nrow = c->batch.ntok, .nin = lin->nin, .nout = lin->nout, .segments = segment, .nsegments = 1
    };
}

/* The bundle's first layer with an adapter. */
static const struct linear *first_of(const struct bundle *b)
{
    int i = 0;
    while (b->layers[i]->r == 0)
        i++;
    return b->layers[i];
}

/* All A of the bundle as one matrix: in place if their shards have no padding between them, otherwise copied. */
static struct kern_cmat joint_a(struct compute *c, const struct bundle *b)
{
    const int64_t nin = b->layers[0]->nin;
    const struct kern_cmat first = pair_a(c, first_of(b));
    bool together = first.dtype == c->dtype;
    for (int i = 0; i < b->n; i++)
        together = together &&
                   (!b->layers[i]->r || pair_a(c, b->layers[i]).data ==
                                            (const char *)first.data + b->at[i] * nin * kern_dtype_bytes(c->dtype));
    for (int i = 0; i < b->n && !together; i++) {
        struct kern_mat rows = mat(c, (char *)c->a_joint + b->at[i] * nin * kern_dtype_bytes(c->dtype), nin);
        if (b->layers[i]->r)
            c->device->ops->cast(c->stream, rows, pair_a(c, b->layers[i]), b->layers[i]->r, nin);
    }
    return together ? first : cmat(c, c->a_joint, nin);
}

/* The gradients of all A as one matrix; NULL if they are not adjacent. */
static float *joint_da(const struct compute *c, const struct bundle *b)
{
    float *first = pair_da(c, first_of(b));
    for (int i = 0; i < b->n; i++)
        if (b->layers[i]->r && pair_da(c, b->layers[i]) != first + b->at[i] * b->layers[0]->nin)
            return NULL;
    return first;
}

static struct kern_lora_segment joint_segment(const struct compute *c, const struct bundle *b)
{
    return (
        struct kern_lora_segment){ .nrow = c->batch.ntok, .r = b->r, .scale = b->scale, .pitch_da = b->layers[0]->nin };
}

void bundle_down(struct compute *c, const struct bundle *b, const void *x, void *s)
{
    int64_t nin = b->layers[0]->nin;
    if (b->joint) {
        struct kern_lora_segment segment = joint_segment(c, b);
        struct kern_lora lora = lora_of(c, b->layers[0], &segment);
        segment.a = joint_a(c, b);
        lora.x = cmat(c, x, nin);
        lora.s = mat(c, s, b->r);
        c->device->ops->lora_down(c->stream, &lora);
        return;
    }
    for (int i = 0; i < b->n; i++) {
        struct kern_lora_segment segment = segment_of(c, b->layers[i]);
        struct kern_lora lora = lora_of(c, b->layers[i], &segment);
        lora.x = cmat(c, x, nin);
        lora.s = bundle_columns(c, b, i, s);
        if (b->layers[i]->r)
            c->device->ops->lora_down(c->stream, &lora);
    }
}

void bundle_forward(struct compute *c, const struct bundle *b, const void *x, void *s, const void *add,
                    const struct kern_mat *y)
{
    bundle_down(c, b, x, s);
    for (int i = 0; i < b->n; i++) {
        const struct linear *lin = b->layers[i];
        struct kern_lowrank low = { .nrow = c->batch.ntok,
                                    .r = lin->r,
                                    .s = kern_const(bundle_columns(c, b, i, s)),
                                    .b = pair_b(c, lin, 0),
                                    .trans_b = true,
                                    .alpha = 1 };
        struct kern_gemm gemm = { .m = c->batch.ntok,
                                  .n = lin->nout,
                                  .k = lin->nin,
                                  .a = cmat(c, x, lin->nin),
                                  .c = y[i],
                                  .trans_b = !lin->fused,
                                  .alpha = 1,
                                  .add = add ? cmat(c, add, lin->nout) : no_cmat,
                                  .bias = bias_of(c, lin),
                                  .lowrank = lin->r ? &low : NULL,
                                  .nlowrank = lin->r > 0 };
        if (lin->magnitude < 0 || c->dropout > 0) {
            gemm.b = weight_of(c, lin, 0);
            c->device->ops->gemm(c->stream, &gemm);
        }
        if (lin->magnitude >= 0)
            dora_forward(c, b, i, x, s, add, y[i]);
    }
}

/* Computes dB of each layer, and dS, (T, b->r), in c->ds. */
static void up_backward(struct compute *c, const struct bundle *b, void *s, const struct kern_cmat *dy)
{
    for (int i = 0; i < b->n; i++) {
        const struct linear *lin = b->layers[i];
        struct kern_lora_segment segment = segment_of(c, lin);
        struct kern_lora lora = lora_of(c, lin, &segment);
        if (!lin->r)
            continue;
        segment.b = pair_b(c, lin, 0);
        segment.db = pair_db(c, lin);
        lora.dy = dy[i];
        lora.s = bundle_columns(c, b, i, s);
        lora.ds = bundle_columns(c, b, i, c->ds);
        c->device->ops->lora_grad_b(c->stream, &lora);
        c->device->ops->lora_up_grad(c->stream, &lora);
        pair_add_db(c, lin);
    }
}

/* Adds the joint gradient of all A to the gradient of each. */
static void add_joint(struct compute *c, const struct bundle *b)
{
    for (int i = 0; i < b->n; i++) {
        const struct linear *lin = b->layers[i];
        struct kern_mat da = grad_mat(pair_da(c, lin), lin->nin);
        struct kern_mat part = grad_mat(c->da_joint + b->at[i] * lin->nin, lin->nin);
        if (lin->r)
            c->device->ops->add(c->stream, da, kern_const(da), kern_const(part), lin->r, lin->nin);
    }
}

static void down_backward(struct compute *c, const struct bundle *b, const void *x)
{
    int64_t nin = b->layers[0]->nin;
    if (b->joint) {
        struct kern_lora_segment segment = joint_segment(c, b);
        struct kern_lora lora = lora_of(c, b->layers[0], &segment);
        float *da = joint_da(c, b);
        segment.da = da ? da : c->da_joint;
        lora.x = cmat(c, x, nin);
        lora.ds = mat(c, c->ds, b->r);
        if (!da)
            c->device->memory->zero(c->stream, c->da_joint, (size_t)(b->r * nin) * sizeof(float));
        c->device->ops->lora_grad_a(c->stream, &lora);
        if (!da)
            add_joint(c, b);
        return;
    }
    for (int i = 0; i < b->n; i++) {
        struct kern_lora_segment segment = segment_of(c, b->layers[i]);
        struct kern_lora lora = lora_of(c, b->layers[i], &segment);
        lora.x = cmat(c, x, nin);
        lora.ds = bundle_columns(c, b, i, c->ds);
        if (b->layers[i]->r)
            c->device->ops->lora_grad_a(c->stream, &lora);
    }
}

/* A fused weight is (nin, nout). */
static void weight_backward(struct compute *c, const struct linear *lin, const void *x, struct kern_cmat dy)
{
    const bool fused = lin->fused;
    float *dw = fused ? grad_row_of(c, lin->w, lin->expert) : grad_of(c, lin->w),
          *dbias = fused ? grad_row_of(c, lin->bias, lin->expert) : grad_of(c, lin->bias);
    const struct kern_cmat in = cmat(c, x, lin->nin);
    const struct kern_mat to = grad_mat(dw, fused ? lin->nout : lin->nin);
    struct kern_gemm gemm = { .m = fused ? lin->nin : lin->nout,
                              .n = fused ? lin->nout : lin->nin,
                              .k = c->batch.ntok,
                              .a = fused ? in : dy,
                              .trans_a = true,
                              .b = fused ? dy : in,
                              .c = to,
                              .alpha = 1,
                              .add = kern_const(to) };
    if (dw)
        c->device->ops->gemm(c->stream, &gemm);
    if (dbias)
        c->device->ops->sum_rows(c->stream, dbias, dy, c->batch.ntok, lin->nout, c->sums);
}

/* The first layer's part is the main product; the other layers' parts and the adapters' are added to it. dropped: with
 * DoRA and dropout, the gradient of drop(x). */
static void input_backward(struct compute *c, const struct bundle *b, const struct kern_cmat *dy,
                           const struct kern_cmat *dropped, const void *add, void *dx)
{
    const struct linear *first = b->layers[0];
    struct kern_lowrank parts[3 * BUNDLE];
    struct kern_cmat w[BUNDLE];
    int n = 0;
    for (int64_t i = 0, room = 0; i < b->n; room += b->layers[i]->nin * b->layers[i]->nout, i++)
        w[i] = weight_of(c, b->layers[i], room);
    for (int i = 1; i < b->n; i++)
        parts[n++] =
            (struct kern_lowrank){ .nrow = c->batch.ntok, .r = b->layers[i]->nout, .s = dy[i], .b = w[i], .alpha = 1 };
    if (b->joint)
        parts[n++] = (struct kern_lowrank){
            .nrow = c->batch.ntok, .r = b->r, .s = cmat(c, c->ds, b->r), .b = joint_a(c, b), .alpha = 1
        };
    for (int i = 0; i < b->n && !b->joint; i++) {
        const struct linear *lin = b->layers[i];
        if (lin->r)
            parts[n++] = (struct kern_lowrank){ .nrow = c->batch.ntok,
                                                .r = lin->r,
                                                .s = kern_const(bundle_columns(c, b, i, c->ds)),
                                                .b = pair_a(c, lin),
                                                .alpha = 1,
                                                .dropout = linear_dropout(c, lin) };
    }
    for (int i = 0; i < b->n && dropped; i++) {
        const struct linear *lin = b->layers[i];
        if (lin->magnitude >= 0)
            parts[n++] = (struct kern_lowrank){ .nrow = c->batch.ntok,
                                                .r = lin->nout,
                                                .s = dropped[i],
                                                .b = w[i],
                                                .alpha = 1,
                                                .dropout = linear_dropout(c, lin) };
    }
    struct kern_gemm gemm = { .m = c->batch.ntok,
                              .n = first->nin,
                              .k = first->nout,
                              .a = dy[0],
                              .b = w[0],
                              .trans_b = first->fused,
                              .c = mat(c, dx, first->nin),
                              .alpha = 1,
                              .add = add ? cmat(c, add, first->nin) : no_cmat,
                              .lowrank = parts,
                              .nlowrank = n };
    c->device->ops->gemm(c->stream, &gemm);
}

void bundle_backward(struct compute *c, const struct bundle *b, void *s, const struct kern_cmat *dy, const void *add,
                     void *dx)
{
    struct kern_cmat scaled[BUNDLE];
    const bool drops = b->dora && c->dropout > 0;
    dora_scale_grads(c, b, 0, dy, scaled);
    up_backward(c, b, s, scaled);
    if (!dx)
        return;
    if (drops) /* the base's part uses x without dropout */
        dora_scale_grads(c, b, 1, dy, scaled);
    input_backward(c, b, drops ? dy : scaled, drops ? scaled : NULL, add, dx);
}

void bundle_backward_rest(struct compute *c, const struct bundle *b, const void *x, void *s, const struct kern_cmat *dy)
{
    if (b->r)
        down_backward(c, b, x);
    for (int i = 0; i < b->n; i++) {
        weight_backward(c, b->layers[i], x, dy[i]);
        if (b->layers[i]->magnitude >= 0)
            dora_magnitude_backward(c, b, i, x, s, dy[i]);
    }
}
