/* A linear layer with bias and adapter, and RMSNorm: forward and backward over the kernel table. */
#include "model/compute_impl.h"

struct kern_dropout linear_dropout(const struct compute *c, const struct linear *lin)
{
    return (struct kern_dropout){ .p = c->dropout, .rng = { .seed = c->seed, .step = c->batch.step, .name = lin->dropout_name },
                                  .token0 = c->batch.token0, .width = lin->nin };
}

static struct kern_lora_segment segment_of(const struct compute *c, const struct linear *lin)
{
    return (struct kern_lora_segment){
        .row0 = 0, .nrow = c->batch.ntok, .r = lin->r, .scale = lin->scale,
        .a = value_of(c, lin->a), .b = value_of(c, lin->b),
        .da = grad_of(c, lin->a), .db = grad_of(c, lin->b), .pitch_da = lin->nin, .pitch_db = lin->r,
        .dropout = linear_dropout(c, lin),
    };
}

static struct kern_lora lora_of(const struct compute *c, const struct linear *lin, const struct kern_lora_segment *segment)
{
    return (struct kern_lora){ .nrow = c->batch.ntok, .nin = lin->nin, .nout = lin->nout, .segments = segment, .nsegments = 1 };
}

void linear_forward(struct compute *c, const struct linear *lin, const void *x, void *s, const void *add, struct kern_mat y)
{
    const struct kern_ops *ops = c->device->ops;
    struct kern_lowrank low = { .nrow = c->batch.ntok, .r = lin->r, .s = cmat(c, s, lin->r), .b = value_of(c, lin->b), .trans_b = true,
                                .alpha = lin->scale };
    struct kern_gemm gemm = { .m = c->batch.ntok, .n = lin->nout, .k = lin->nin, .a = cmat(c, x, lin->nin), .b = value_of(c, lin->w),
                              .c = y, .trans_b = true, .alpha = 1, .add = add ? cmat(c, add, lin->nout) : no_cmat,
                              .bias = value_of(c, lin->bias), .lowrank = lin->r ? &low : NULL, .nlowrank = lin->r > 0 };
    if (lin->r) {
        struct kern_lora_segment segment = segment_of(c, lin);
        struct kern_lora lora = lora_of(c, lin, &segment);
        lora.x = cmat(c, x, lin->nin);
        lora.s = mat(c, s, lin->r);
        ops->lora_down(c->stream, &lora);
    }
    ops->gemm(c->stream, &gemm);
}

static void adapter_backward(struct compute *c, const struct linear *lin, const void *x, void *s, const void *dy)
{
    const struct kern_ops *ops = c->device->ops;
    struct kern_lora_segment segment = segment_of(c, lin);
    struct kern_lora lora = lora_of(c, lin, &segment);
    lora.x = cmat(c, x, lin->nin);
    lora.dy = cmat(c, dy, lin->nout);
    lora.s = mat(c, s, lin->r);
    lora.ds = mat(c, c->ds, lin->r);
    ops->lora_grad_b(c->stream, &lora);
    ops->lora_up_grad(c->stream, &lora);
    ops->lora_grad_a(c->stream, &lora);
}

static void weight_backward(struct compute *c, const struct linear *lin, const void *x, const void *dy)
{
    float *dw = grad_of(c, lin->w), *dbias = grad_of(c, lin->bias);
    struct kern_gemm gemm = { .m = lin->nout, .n = lin->nin, .k = c->batch.ntok, .a = cmat(c, dy, lin->nout), .trans_a = true, .b = cmat(c, x, lin->nin),
                              .c = grad_mat(dw, lin->nin), .alpha = 1, .add = kern_const(grad_mat(dw, lin->nin)) };
    if (dw)
        c->device->ops->gemm(c->stream, &gemm);
    if (dbias)
        c->device->ops->sum_rows(c->stream, dbias, cmat(c, dy, lin->nout), c->batch.ntok, lin->nout, c->sums);
}

void linear_backward(struct compute *c, const struct linear *lin, const void *x, void *s, const void *dy, const void *add, void *dx)
{
    struct kern_lowrank low = { .nrow = c->batch.ntok, .r = lin->r, .s = cmat(c, c->ds, lin->r), .b = value_of(c, lin->a), .alpha = 1,
                                .dropout = linear_dropout(c, lin) };
    struct kern_gemm gemm = { .m = c->batch.ntok, .n = lin->nin, .k = lin->nout, .a = cmat(c, dy, lin->nout), .b = value_of(c, lin->w),
                              .c = mat(c, dx, lin->nin), .alpha = 1, .add = add ? cmat(c, add, lin->nin) : no_cmat,
                              .lowrank = lin->r ? &low : NULL, .nlowrank = lin->r > 0 };
    if (lin->r)
        adapter_backward(c, lin, x, s, dy);
    weight_backward(c, lin, x, dy);
    if (dx)
        c->device->ops->gemm(c->stream, &gemm);
}

void norm_forward(struct compute *c, int32_t gamma, int64_t ngroup, int64_t ncol, const void *x, void *y, float *rstd)
{
    struct kern_rmsnorm norm = { .nrow = c->batch.ntok, .ngroup = ngroup, .ncol = ncol, .x = cmat(c, x, ngroup * ncol), .gamma = value_of(c, gamma),
                                 .eps = c->m->eps, .y = mat(c, y, ngroup * ncol), .rstd = rstd };
    c->device->ops->rmsnorm(c->stream, &norm);
}

void norm_backward(struct compute *c, int32_t gamma, int64_t ngroup, int64_t ncol, const void *x, const float *rstd, const void *dy, const void *add,
                   void *dx)
{
    struct kern_rmsnorm_grad norm = { .nrow = c->batch.ntok, .ngroup = ngroup, .ncol = ncol, .x = cmat(c, x, ngroup * ncol), .dy = cmat(c, dy, ngroup * ncol),
                                      .gamma = value_of(c, gamma), .rstd = rstd, .add = add ? cmat(c, add, ngroup * ncol) : no_cmat,
                                      .dx = mat(c, dx, ngroup * ncol), .dgamma = grad_of(c, gamma), .scratch = c->sums };
    c->device->ops->rmsnorm_grad(c->stream, &norm);
}
