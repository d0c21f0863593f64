/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of the guarded device: each checks every operand, then runs the CPU's kernel. Arguments are copied, with
 * the lists that they borrow, because a command runs after its call has returned. */
#include "guarded.h"
#include "late.h"

#include <pthread.h>
#include <stdlib.h>

static void look(const char *name, const void *const *operands, size_t n)
{
    for (size_t i = 0; i < n; i++)
        guarded_must_own(name, operands[i]);
}

#define LOOK(name, ...) \
    do { \
        const void *const operands[] = { __VA_ARGS__ }; \
        look(name, operands, sizeof operands / sizeof *operands); \
    } while (0)
#define CALL(name, ...) guarded_cpu()->ops->name(__VA_ARGS__)
#define UNPACK(...)     __VA_ARGS__

/* Defines the deferred part of a kernel that takes a struct; the further arguments are its operands. */
#define RUN_STRUCT(name, type, ...) \
    static void run_##name(struct kern_stream *s, void *args) \
    { \
        const struct type *a = args; \
        LOOK(#name, __VA_ARGS__); \
        CALL(name, s, a); \
    }

#define OF_STRUCT(name, type, ...) \
    RUN_STRUCT(name, type, __VA_ARGS__) \
    static void late_##name(struct kern_stream *s, const struct type *a) \
    { \
        late_put(s, run_##name, late_copy(a, sizeof *a, NULL, 0, NULL)); \
    }

/* Defines a call of run_name whose struct borrows a list of n elements. */
#define LATE_WITH_LIST(name, type, list, n) \
    static void late_##name(struct kern_stream *s, const struct type *a) \
    { \
        void *copied; \
        struct type *args = late_copy(a, sizeof *a, a->list, (size_t)(n) * sizeof *a->list, &copied); \
        args->list = copied; \
        late_put(s, run_##name, args); \
    }

/* Defines a kernel that takes separate parameters: given as struct members, as a parameter list, as names, and as
 * arguments read from the struct. */
#define OF_LIST(name, members, params, names, arguments, ...) \
    struct name##_args { \
        UNPACK members \
    }; \
    static void run_##name(struct kern_stream *s, void *args) \
    { \
        const struct name##_args *a = args; \
        LOOK(#name, __VA_ARGS__); \
        CALL(name, s, UNPACK arguments); \
    } \
    static void late_##name(struct kern_stream *s, UNPACK params) \
    { \
        const struct name##_args args = { UNPACK names }; \
        late_put(s, run_##name, late_copy(&args, sizeof args, NULL, 0, NULL)); \
    }

/* Gather or scatter by index. */
#define OF_INDEX(name) \
    OF_LIST(name, (struct kern_mat d; struct kern_cmat x; const int32_t *at; int64_t m, n, k;), \
            (struct kern_mat d, struct kern_cmat x, const int32_t *at, int64_t m, int64_t n, int64_t k), \
            (d, x, at, m, n, k), (a->d, a->x, a->at, a->m, a->n, a->k), a->d.data, a->x.data, a->at)

OF_STRUCT(rmsnorm, kern_rmsnorm, a->x.data, a->gamma.data, a->y.data, a->rstd)
OF_STRUCT(rmsnorm_grad, kern_rmsnorm_grad, a->x.data, a->dy.data, a->gamma.data, a->rstd, a->add.data, a->dx.data,
          a->dgamma, a->scratch)
OF_STRUCT(rope, kern_rope_apply, a->x.data, a->cosines, a->sines, a->positions)
OF_STRUCT(swiglu_grad, kern_swiglu_grad, a->gate.data, a->up.data, a->dy.data, a->dgate.data, a->dup.data, a->y.data)
OF_STRUCT(dora_norm, kern_dora_norm, a->w.data, a->a.data, a->b.data, a->norm)
OF_STRUCT(dora_scale, kern_dora_scale, a->m, a->norm, a->u.data, a->bias.data, a->add.data, a->y.data)
OF_STRUCT(dora_grad, kern_dora_grad, a->dy.data, a->u.data, a->norm, a->dm, a->scratch)
OF_STRUCT(dequantize, kern_dequantize, a->rows, a->to.data)
OF_STRUCT(cross_entropy, kern_cross_entropy, a->logits.data, a->target, a->loss, a->dlogits.data, a->weights)
OF_STRUCT(attention_one, kern_attention_one, a->q.data, a->k.data, a->v.data, a->o.data, a->sinks.data)
OF_INDEX(gather_rows)
OF_INDEX(scatter_rows)
OF_INDEX(scatter_add)
OF_INDEX(gather_cols)
OF_INDEX(scatter_add_cols)
OF_LIST(swiglu, (struct kern_mat y; struct kern_cmat g, u; int64_t m, n;),
        (struct kern_mat y, struct kern_cmat g, struct kern_cmat u, int64_t m, int64_t n), (y, g, u, m, n),
        (a->y, a->g, a->u, a->m, a->n), a->y.data, a->g.data, a->u.data)
OF_LIST(cast, (struct kern_mat d; struct kern_cmat x; int64_t m, n;),
        (struct kern_mat d, struct kern_cmat x, int64_t m, int64_t n), (d, x, m, n), (a->d, a->x, a->m, a->n),
        a->d.data, a->x.data)
OF_LIST(add, (struct kern_mat d; struct kern_cmat x, y; int64_t m, n;),
        (struct kern_mat d, struct kern_cmat x, struct kern_cmat y, int64_t m, int64_t n), (d, x, y, m, n),
        (a->d, a->x, a->y, a->m, a->n), a->d.data, a->x.data, a->y.data)
OF_LIST(scale, (struct kern_mat d; struct kern_cmat x; float f; int64_t m, n;),
        (struct kern_mat d, struct kern_cmat x, float f, int64_t m, int64_t n), (d, x, f, m, n),
        (a->d, a->x, a->f, a->m, a->n), a->d.data, a->x.data)
OF_LIST(sum_rows, (float *d; struct kern_cmat x; int64_t m, n; float *scratch;),
        (float *d, struct kern_cmat x, int64_t m, int64_t n, float *scratch), (d, x, m, n, scratch),
        (a->d, a->x, a->m, a->n, a->scratch), a->d, a->x.data, a->scratch)
OF_LIST(sum, (double *d; const float *x; int64_t n;), (double *d, const float *x, int64_t n), (d, x, n),
        (a->d, a->x, a->n), a->d, a->x)
OF_LIST(uniform, (float *d; int64_t n; struct kern_philox rng; uint64_t at; float low, high;),
        (float *d, int64_t n, struct kern_philox rng, uint64_t at, float low, float high), (d, n, rng, at, low, high),
        (a->d, a->n, a->rng, a->at, a->low, a->high), a->d)

struct dropout_args {
    struct kern_mat y;
    struct kern_cmat x;
    int64_t m, n;
    struct kern_dropout how;
};

static void run_dropout(struct kern_stream *s, void *args)
{
    const struct dropout_args *a = args;
    LOOK("dropout", a->y.data, a->x.data, a->how.rng_offset);
    CALL(dropout, s, a->y, a->x, a->m, a->n, &a->how);
}

static void late_dropout(struct kern_stream *s, struct kern_mat y, struct kern_cmat x, int64_t m, int64_t n,
                         const struct kern_dropout *how)
{
    const struct dropout_args args = { y, x, m, n, *how };
    late_put(s, run_dropout, late_copy(&args, sizeof args, NULL, 0, NULL));
}

RUN_STRUCT(attention, kern_attention, a->q.data, a->k.data, a->v.data, a->o.data, a->lse, a->scratch,
           a->shape.sinks.data)
RUN_STRUCT(attention_grad, kern_attention_grad, a->q.data, a->k.data, a->v.data, a->o.data, a->d_o.data, a->lse,
           a->dq.data, a->dk.data, a->dv.data, a->scratch, a->shape.sinks.data, a->dsinks)
LATE_WITH_LIST(attention, kern_attention, shape.cu_seqlens, a->shape.ndoc + 1)
LATE_WITH_LIST(attention_grad, kern_attention_grad, shape.cu_seqlens, a->shape.ndoc + 1)

static void run_gemm(struct kern_stream *s, void *args)
{
    const struct kern_gemm *a = args;
    LOOK("gemm", a->a.data, a->b.data, a->c.data, a->add.data, a->bias.data);
    for (int i = 0; i < a->nlowrank; i++)
        LOOK("gemm, low rank", a->lowrank[i].s.data, a->lowrank[i].b.data, a->lowrank[i].dropout.rng_offset);
    CALL(gemm, s, a);
}

LATE_WITH_LIST(gemm, kern_gemm, lowrank, a->nlowrank)

static void look_lora(const char *name, const struct kern_lora *a)
{
    LOOK(name, a->x.data, a->dy.data, a->s.data, a->ds.data);
    for (int i = 0; i < a->nsegments; i++)
        LOOK(name, a->segments[i].a.data, a->segments[i].b.data, a->segments[i].da, a->segments[i].db,
             a->segments[i].dropout.rng_offset);
}

#define OF_LORA(name) \
    static void run_##name(struct kern_stream *s, void *args) \
    { \
        look_lora(#name, args); \
        CALL(name, s, args); \
    } \
    LATE_WITH_LIST(name, kern_lora, segments, a->nsegments)

OF_LORA(lora_down)
OF_LORA(lora_up_grad)
OF_LORA(lora_grad_a)
OF_LORA(lora_grad_b)

static void run_adamw(struct kern_stream *s, void *args)
{
    const struct kern_adamw *a = args;
    for (size_t i = 0; i < a->nranges; i++)
        LOOK("adamw", a->ranges[i].p, a->ranges[i].m, a->ranges[i].v, a->ranges[i].grad, a->ranges[i].rounded);
    CALL(adamw, s, a);
}

LATE_WITH_LIST(adamw, kern_adamw, ranges, a->nranges)

struct sum_squares_args {
    double *out;
    const struct kern_rows *matrices;
    size_t n;
};

static void run_sum_squares(struct kern_stream *s, void *args)
{
    const struct sum_squares_args *a = args;
    LOOK("sum_squares", a->out);
    for (size_t i = 0; i < a->n; i++)
        LOOK("sum_squares", a->matrices[i].x.data);
    CALL(sum_squares, s, a->out, a->matrices, a->n);
}

static void late_sum_squares(struct kern_stream *s, double *out, const struct kern_rows *matrices, size_t n)
{
    const struct sum_squares_args given = { out, NULL, n };
    void *list;
    struct sum_squares_args *args = late_copy(&given, sizeof given, matrices, n * sizeof *matrices, &list);
    args->matrices = list;
    late_put(s, run_sum_squares, args);
}

static void run_gemv(struct kern_stream *s, void *args)
{
    const struct kern_gemv *a = args;
    LOOK("gemv", a->x.data);
    for (int i = 0; i < a->nparts; i++) {
        const struct kern_gemv_part *p = &a->parts[i];
        LOOK("gemv", p->w.data, p->s, p->b.data, p->bias.data, p->add.data, p->y.data);
    }
    CALL(gemv, s, a);
}

/* One launch for each vector. */
static void late_gemv(struct kern_stream *s, const struct kern_gemv *a)
{
    void *copied;
    for (int i = 0; i < a->nalso; i++)
        late_gemv(s, &a->also[i]);
    struct kern_gemv *args = late_copy(a, sizeof *a, a->parts, (size_t)a->nparts * sizeof *a->parts, &copied);
    args->parts = copied;
    args->also = NULL;
    args->nalso = 0;
    late_put(s, run_gemv, args);
}

static struct kern_stream *one_thread;

static void make_one_thread(void)
{
    char message[KERN_MESSAGE_BYTES];
    if (guarded_cpu()->stream_new(0, NULL, &one_thread, message) != KERN_OK)
        guarded_die("no stream", message);
}

/* The inner stream to ask for sizes. A plan asks with a stream that is not one of these, as a device's scratch depends
 * on the shape only. */
static const struct kern_stream *any_inner(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_one_thread);
    return one_thread;
}

static size_t late_attention_table_bytes(const struct kern_stream *s, const struct kern_attention_shape *shape)
{
    (void)s;
    return guarded_cpu()->ops->attention_table_bytes(any_inner(), shape);
}

/* The CPU's table needs no memory. */
static void late_attention_table(struct kern_stream *s, struct kern_attention_shape *shape)
{
    (void)s;
    guarded_cpu()->ops->attention_table(one_thread, shape);
}

static size_t late_attention_scratch(const struct kern_stream *s, const struct kern_attention_shape *shape)
{
    (void)s;
    return guarded_cpu()->ops->attention_scratch(any_inner(), shape);
}

static size_t late_attention_grad_scratch(const struct kern_stream *s, const struct kern_attention_shape *shape)
{
    (void)s;
    return guarded_cpu()->ops->attention_grad_scratch(any_inner(), shape);
}

#define OF_IMAGES(name, type, ...) \
    static void run_image_##name(struct kern_stream *s, void *args) \
    { \
        const struct type *a = args; \
        LOOK("pictures: " #name, __VA_ARGS__); \
        guarded_cpu()->images->name(s, a); \
    } \
    static void late_image_##name(struct kern_stream *s, const struct type *a) \
    { \
        late_put(s, run_image_##name, late_copy(a, sizeof *a, NULL, 0, NULL)); \
    }

OF_IMAGES(modulate, kern_modulate, a->x.data, a->shift, a->scale, a->y.data)
OF_IMAGES(modulate_grad, kern_modulate_grad, a->x.data, a->dy.data, a->scale, a->add.data, a->dx.data)
OF_IMAGES(gate, kern_gate, a->gate, a->x.data, a->add.data, a->y.data)
OF_IMAGES(square_error, kern_square_error, a->x.data, a->target.data, a->loss, a->dx.data)
OF_IMAGES(conv, kern_conv, a->x.data, a->weight, a->bias, a->y.data, a->scratch)
OF_IMAGES(group_norm, kern_group_norm, a->x.data, a->gamma, a->beta, a->y.data, a->scratch)

struct pixels_args {
    struct kern_mat y;
    struct kern_cmat x;
    int64_t m, n, k;
};

static void run_image_silu(struct kern_stream *s, void *args)
{
    const struct pixels_args *a = args;
    LOOK("pictures: silu", a->y.data, a->x.data);
    guarded_cpu()->images->silu(s, a->y, a->x, a->m, a->n);
}

static void late_image_silu(struct kern_stream *s, struct kern_mat y, struct kern_cmat x, int64_t m, int64_t n)
{
    const struct pixels_args args = { y, x, m, n, 0 };
    late_put(s, run_image_silu, late_copy(&args, sizeof args, NULL, 0, NULL));
}

static void run_image_enlarge(struct kern_stream *s, void *args)
{
    const struct pixels_args *a = args;
    LOOK("pictures: enlarge", a->y.data, a->x.data);
    guarded_cpu()->images->enlarge(s, a->y, a->x, a->m, a->n, a->k);
}

static void late_image_enlarge(struct kern_stream *s, struct kern_mat y, struct kern_cmat x, int64_t m, int64_t n,
                               int64_t k)
{
    const struct pixels_args args = { y, x, m, n, k };
    late_put(s, run_image_enlarge, late_copy(&args, sizeof args, NULL, 0, NULL));
}

static size_t late_image_conv_scratch(struct kern_stream *s, const struct kern_conv *c)
{
    (void)s;
    return guarded_cpu()->images->conv_scratch(one_thread, c);
}

#define ROW(name, type) .name = late_image_##name,
const struct kern_image_ops guarded_image_ops = { KERN_IMAGE_OPS(ROW) };
#undef ROW

/* The operations of mixtures of experts take a struct each. */
#define RUN_EXPERTS(name, type, ...) \
    static void run_expert_##name(struct kern_stream *s, void *args) \
    { \
        const struct kern_##type *a = args; \
        LOOK("experts: " #name, __VA_ARGS__); \
        guarded_cpu()->experts->name(s, a); \
    }
#define OF_EXPERTS(name, type, ...) \
    RUN_EXPERTS(name, type, __VA_ARGS__) \
    static void late_expert_##name(struct kern_stream *s, const struct kern_##type *a) \
    { \
        late_put(s, run_expert_##name, late_copy(a, sizeof *a, NULL, 0, NULL)); \
    }

RUN_EXPERTS(route, route, a->router.bias, a->logits, a->weights, a->experts, a->rows, a->choices)
OF_EXPERTS(route_grad, route_grad, a->slopes, a->logits, a->weights, a->dweights, a->experts, a->dlogits)
OF_EXPERTS(load, expert_load, a->logits, a->experts, a->choices, a->probs, a->scratch)
OF_EXPERTS(balance, expert_balance, a->choices, a->probs, a->sum, a->slopes)
OF_EXPERTS(rows, expert_rows, a->choices, a->src.data, a->dst.data)
OF_EXPERTS(sum, expert_sum, a->rows, a->src.data, a->add.data, a->dst.data)
OF_EXPERTS(act, expert_act, a->choices, a->weights, a->gate.data, a->up.data, a->y.data)
OF_EXPERTS(act_grad, expert_act_grad, a->choices, a->weights, a->dweights, a->gate.data, a->up.data, a->dy.data,
           a->dgate.data, a->dup.data, a->y.data)
OF_EXPERTS(bias, expert_bias, a->choices, a->weights, a->bias.data, a->y.data)
OF_EXPERTS(bias_grad, expert_bias_grad, a->choices, a->weights, a->bias.data, a->dy.data, a->dweights, a->dbias,
           a->scratch)
OF_EXPERTS(gate, expert_gate, a->logits, a->weights)
OF_EXPERTS(gate_grad, expert_gate_grad, a->weights, a->dweights, a->dlogits)

#define ROW(name, type) .name = late_##name,
const struct kern_ops guarded_ops = { KERN_OPS(ROW) };
#undef ROW

/* The starts of the experts' rows are in host memory when the call returns. */
static void late_expert_route(struct kern_stream *s, const struct kern_route *a)
{
    late_put(s, run_expert_route, late_copy(a, sizeof *a, NULL, 0, NULL));
    late_run(s);
}

#define ROW(name, type) .name = late_expert_##name,
const struct kern_expert_ops guarded_expert_ops = { KERN_EXPERT_OPS(ROW) };
