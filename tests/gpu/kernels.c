/* SPDX-License-Identifier: Apache-2.0 */
/* Measures a module's kernels on its first device, and a plain copy on that device for comparison. Prints one JSON
 * object per line: the median of some rounds, and the spread between fastest and slowest as a share of the median.
 * Shapes are those of an 8B Llama in bf16. Kernels that only read and write use several times the size of a cache.
 *
 *     gpu_kernels MODULE.so [SMALL [attention]]
 *
 * SMALL: divides the shapes, to try the program itself on a slow device; attention: runs only that kernel. */
#include <kernels/memory.h>
#include <kernels/module.h>
#include <kernels/ops.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WARM = 3,
    TURNS = 10,
    ROUNDS = 5,
    HIDDEN = 4096,
    INNER = 14336,
    NHEAD = 32,
    NKV = 8,
    HEAD = 128,
    NLAYER = 32,
    RANK = 16,
    NADAPTER = 14,
    SMALLEST = 64
};

static struct {
    const struct kern_device *device;
    struct kern_stream *stream;
    struct kern_event *from, *to;
    int64_t ntok, hidden, inner;
    int64_t nrow;     /* rows of the matrix for norms and RoPE, which is as large as the plain copy */
    double copy_rate; /* bytes read and written per second */
} bench;

struct timing {
    double seconds, spread; /* per call: the median round, and (slowest - fastest)/median */
};

static void must(int rc, const char *message)
{
    if (rc == KERN_OK)
        return;
    fprintf(stderr, "gpu_kernels: %s\n", message);
    exit(4);
}

static struct kern_buffer take(int64_t nelem, int64_t each)
{
    char message[KERN_MESSAGE_BYTES];
    struct kern_buffer b;
    must(bench.device->memory->alloc((struct kern_location){ .kind = KERN_MEMORY_DEVICE }, (size_t)(nelem * each), &b,
                                     message),
         message);
    return b;
}

static void finish(void)
{
    char message[KERN_MESSAGE_BYTES];
    must(bench.device->stream_sync(bench.stream, message), message);
}

/* Varied floats: zeros take less power to move and multiply, and so give the device a higher clock. */
static struct kern_buffer noise(int64_t nelem, float low, float high)
{
    struct kern_buffer b = take(nelem, 4);
    bench.device->ops->uniform(bench.stream, b.data, nelem, (struct kern_philox){ .seed = 7 }, 0, low, high);
    return b;
}

static struct kern_mat matrix(struct kern_buffer *b, int64_t nrow, int64_t ncol)
{
    struct kern_buffer floats = noise(nrow * ncol, -1, 1);
    *b = take(nrow * ncol, 2);
    const struct kern_mat m = { b->data, ncol, KERN_BF16 };
    bench.device->ops->cast(bench.stream, m, (struct kern_cmat){ floats.data, ncol, KERN_F32 }, nrow, ncol);
    finish();
    bench.device->memory->free(&floats);
    return m;
}

static double round_seconds(void (*call)(void *), void *ctx)
{
    bench.device->event_record(bench.from, bench.stream);
    for (int i = 0; i < TURNS; i++)
        call(ctx);
    bench.device->event_record(bench.to, bench.stream);
    finish();
    return 1e-9 * (double)bench.device->event_elapsed_ns(bench.from, bench.to) / TURNS;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct timing timed(void (*call)(void *), void *ctx)
{
    double s[ROUNDS];
    for (int i = 0; i < WARM; i++)
        call(ctx);
    for (int i = 0; i < ROUNDS; i++)
        s[i] = round_seconds(call, ctx);
    qsort(s, ROUNDS, sizeof s[0], by_value);
    return (struct timing){ s[ROUNDS / 2], (s[ROUNDS - 1] - s[0]) / s[ROUNDS / 2] };
}

static void show_bytes(const char *name, double nbytes, struct timing t)
{
    printf("{\"kernel\": \"%s\", \"seconds\": %.6g, \"spread\": %.3f, \"gb_per_second\": %.1f, \"of_copy\": %.3f}\n",
           name, t.seconds, t.spread, 1e-9 * nbytes / t.seconds, nbytes / t.seconds / bench.copy_rate);
    fflush(stdout);
}

static void show_flops(const char *name, double flops, struct timing t)
{
    printf("{\"kernel\": \"%s\", \"seconds\": %.6g, \"spread\": %.3f, \"tflops\": %.1f}\n", name, t.seconds, t.spread,
           1e-12 * flops / t.seconds);
    fflush(stdout);
}

struct copy {
    void *to, *from;
    size_t nbytes;
};

static void copy(void *ctx)
{
    const struct copy *c = ctx;
    bench.device->memory->copy(bench.stream, c->to, c->from, c->nbytes);
}

static void measure_copy(void)
{
    const int64_t nbytes = bench.ntok * 65536;
    struct kern_buffer a = noise(nbytes / 4, -1, 1), b = take(nbytes, 1);
    struct copy c = { b.data, a.data, (size_t)nbytes };
    const struct timing t = timed(copy, &c);
    bench.copy_rate = 2 * (double)nbytes / t.seconds;
    show_bytes("copy", 2 * (double)nbytes, t);
    bench.device->memory->free(&a);
    bench.device->memory->free(&b);
}

/* Measures the lower bound of a start from the page cache. */
static void measure_pinned(void)
{
    char message[KERN_MESSAGE_BYTES];
    const int64_t nbytes = bench.ntok * 32768;
    struct kern_buffer host, b = noise(nbytes / 4, -1, 1);
    must(bench.device->memory->alloc((struct kern_location){ .kind = KERN_MEMORY_PINNED }, (size_t)nbytes, &host,
                                     message),
         message);
    struct copy there = { host.data, b.data, (size_t)nbytes }, back = { b.data, host.data, (size_t)nbytes };
    copy(&there);
    const struct timing t = timed(copy, &back);
    printf("{\"kernel\": \"pinned memory to the device\", \"spread\": %.3f, \"gb_per_second\": %.1f}\n", t.spread,
           1e-9 * (double)nbytes / t.seconds);
    fflush(stdout);
    bench.device->memory->free(&host);
    bench.device->memory->free(&b);
}

#define CALL(name, type) \
    static void call_##name(void *ctx) \
    { \
        bench.device->ops->name(bench.stream, (const type *)ctx); \
    }
CALL(rmsnorm, struct kern_rmsnorm)
CALL(rmsnorm_grad, struct kern_rmsnorm_grad)
CALL(rope, struct kern_rope_apply)
CALL(swiglu_grad, struct kern_swiglu_grad)
CALL(adamw, struct kern_adamw)
CALL(gemm, struct kern_gemm)
CALL(attention, struct kern_attention)
CALL(attention_grad, struct kern_attention_grad)

static void call_swiglu(void *ctx)
{
    const struct kern_swiglu_grad *g = ctx;
    bench.device->ops->swiglu(bench.stream, g->y, g->gate, g->up, g->nrow, g->ncol);
}

static void measure_norm(void)
{
    struct kern_buffer b[5], rstd = take(bench.nrow, 4);
    const int64_t nrow = bench.nrow, ncol = bench.hidden;
    const struct kern_mat x = matrix(&b[0], nrow, ncol), dy = matrix(&b[1], nrow, ncol), y = matrix(&b[2], nrow, ncol),
                          gamma = matrix(&b[3], 1, ncol), add = matrix(&b[4], nrow, ncol);
    const double nbytes = (double)nrow * (double)ncol * 2;
    struct kern_rmsnorm f = { .nrow = nrow,
                              .ngroup = 1,
                              .ncol = ncol,
                              .x = kern_const(x),
                              .gamma = kern_const(gamma),
                              .eps = 1e-5f,
                              .y = y,
                              .rstd = rstd.data };
    struct kern_rmsnorm_grad g = { .nrow = nrow,
                                   .ngroup = 1,
                                   .ncol = ncol,
                                   .x = kern_const(x),
                                   .dy = kern_const(dy),
                                   .gamma = kern_const(gamma),
                                   .rstd = rstd.data,
                                   .add = kern_const(add),
                                   .dx = y };
    show_bytes("RMSNorm forward", 2 * nbytes, timed(call_rmsnorm, &f));
    show_bytes("RMSNorm backward, residual added, gamma frozen", 4 * nbytes, timed(call_rmsnorm_grad, &g));
    for (int i = 0; i < 5; i++)
        bench.device->memory->free(&b[i]);
    bench.device->memory->free(&rstd);
}

/* Copies host data to the device. */
static struct kern_buffer send(const void *from, size_t nbytes)
{
    struct kern_buffer b = take((int64_t)nbytes, 1);
    bench.device->memory->copy(bench.stream, b.data, from, nbytes);
    finish();
    return b;
}

/* Documents of ntok tokens, one after another. cosines, sines: (ntok, HEAD/2); positions: (nrow). */
static void send_angles(struct kern_buffer *cosines, struct kern_buffer *sines, struct kern_buffer *positions)
{
    const struct kern_rope rope = { .kind = KERN_ROPE_DEFAULT, .dim = HEAD, .theta = 500000 };
    const size_t nbytes = (size_t)bench.ntok * HEAD / 2 * sizeof(float);
    double scratch[HEAD / 2];
    float *c = malloc(nbytes), *s = malloc(nbytes);
    int32_t *p = malloc((size_t)bench.nrow * sizeof *p);
    must(c && s && p ? KERN_OK : KERN_ERR_MEMORY, "no memory for RoPE's angles");
    kern_rope_tables(&rope, bench.ntok, c, s, scratch);
    for (int64_t i = 0; i < bench.nrow; i++)
        p[i] = (int32_t)(i % bench.ntok);
    *cosines = send(c, nbytes);
    *sines = send(s, nbytes);
    *positions = send(p, (size_t)bench.nrow * sizeof *p);
    free(c);
    free(s);
    free(p);
}

static void measure_rope(void)
{
    struct kern_buffer b, cosines, sines, positions;
    const struct kern_mat x = matrix(&b, bench.nrow, NHEAD * HEAD);
    send_angles(&cosines, &sines, &positions);
    struct kern_rope_apply r = { .nrow = bench.nrow,
                                 .nhead = NHEAD,
                                 .dim = HEAD,
                                 .rotary = HEAD,
                                 .x = x,
                                 .cosines = cosines.data,
                                 .sines = sines.data,
                                 .positions = positions.data };
    show_bytes("RoPE in place", 4.0 * (double)bench.nrow * NHEAD * HEAD, timed(call_rope, &r));
    bench.device->memory->free(&b);
    bench.device->memory->free(&cosines);
    bench.device->memory->free(&sines);
    bench.device->memory->free(&positions);
}

/* Results go to separate memory: written over operands, values would shrink from call to call. */
static void measure_swiglu(void)
{
    struct kern_buffer b[6];
    struct kern_mat m[6];
    const double nbytes = (double)bench.ntok * (double)bench.inner * 2;
    for (int i = 0; i < 6; i++)
        m[i] = matrix(&b[i], bench.ntok, bench.inner);
    struct kern_swiglu_grad g = { .nrow = bench.ntok,
                                  .ncol = bench.inner,
                                  .gate = kern_const(m[0]),
                                  .up = kern_const(m[1]),
                                  .dy = kern_const(m[2]),
                                  .dgate = m[3],
                                  .dup = m[4],
                                  .y = m[5] };
    show_bytes("SwiGLU forward", 3 * nbytes, timed(call_swiglu, &g));
    show_bytes("SwiGLU backward, with its product anew", 6 * nbytes, timed(call_swiglu_grad, &g));
    for (int i = 0; i < 6; i++)
        bench.device->memory->free(&b[i]);
}

/* Elements of all adapters of one layer; nelem: of each, A's and B's of q, k, v, o, gate, up and down. */
static int64_t size_adapters(int64_t nelem[NADAPTER])
{
    const int64_t h = bench.hidden, kv = h * NKV / NHEAD, inner = bench.inner,
                  ends[NADAPTER] = { h, h, h, kv, h, kv, h, h, h, inner, h, inner, inner, h };
    int64_t sum = 0;
    for (int i = 0; i < NADAPTER; i++)
        sum += nelem[i] = RANK * ends[i];
    return sum;
}

/* Calls it like the trainer: each adapter's A and B are separate ranges, with rounded weights. */
static void measure_adamw(void)
{
    int64_t each[NADAPTER], nelem = NLAYER * size_adapters(each), at = 0;
    struct kern_buffer p = noise(nelem, -1, 1), m = noise(nelem, -1, 1), v = noise(nelem, 0, 1),
                       grad = noise(nelem, -1, 1), rounded = take(nelem, 2);
    struct kern_adamw_range ranges[NLAYER * NADAPTER];
    for (int i = 0; i < NLAYER * NADAPTER; at += each[i++ % NADAPTER])
        ranges[i] = (struct kern_adamw_range){ .nelem = each[i % NADAPTER],
                                               .p = (float *)p.data + at,
                                               .m = (float *)m.data + at,
                                               .v = (float *)v.data + at,
                                               .grad = (const float *)grad.data + at,
                                               .rounded = (uint16_t *)rounded.data + at };
    struct kern_adamw a = { .ranges = ranges,
                            .nranges = NLAYER * NADAPTER,
                            .grad_scale = 1,
                            .lr = 1e-4,
                            .beta1 = 0.9,
                            .beta2 = 0.999,
                            .eps = 1e-8,
                            .t = 1 };
    show_bytes("AdamW, weights rounded too", 30 * (double)nelem, timed(call_adamw, &a));
    struct kern_buffer *all[] = { &p, &m, &v, &grad, &rounded };
    for (int i = 0; i < 5; i++)
        bench.device->memory->free(all[i]);
}

static void measure_gemm(void)
{
    struct kern_buffer b[3];
    const struct kern_mat x = matrix(&b[0], bench.ntok, bench.hidden), w = matrix(&b[1], bench.inner, bench.hidden),
                          y = matrix(&b[2], bench.ntok, bench.inner);
    struct kern_gemm up = { .m = bench.ntok,
                            .n = bench.inner,
                            .k = bench.hidden,
                            .a = kern_const(x),
                            .b = kern_const(w),
                            .trans_b = true,
                            .c = y,
                            .alpha = 1 };
    struct kern_gemm back = {
        .m = bench.ntok, .n = bench.hidden, .k = bench.inner, .a = kern_const(y), .b = kern_const(w), .c = x, .alpha = 1
    };
    const double flops = 2.0 * (double)bench.ntok * (double)bench.hidden * (double)bench.inner;
    show_flops("product forward", flops, timed(call_gemm, &up));
    show_flops("product backward to the input", flops, timed(call_gemm, &back));
    for (int i = 0; i < 3; i++)
        bench.device->memory->free(&b[i]);
}

static void measure_attention(int64_t length)
{
    char name[80];
    const int64_t bounds[] = { 0, length };
    struct kern_buffer b[8], lse = take(length * NHEAD, 4);
    const struct kern_mat q = matrix(&b[0], length, NHEAD * HEAD), k = matrix(&b[1], length, NKV * HEAD),
                          v = matrix(&b[2], length, NKV * HEAD), o = matrix(&b[3], length, NHEAD * HEAD),
                          d_o = matrix(&b[4], length, NHEAD * HEAD), dq = matrix(&b[5], length, NHEAD * HEAD),
                          dk = matrix(&b[6], length, NKV * HEAD), dv = matrix(&b[7], length, NKV * HEAD);
    struct kern_attention_shape shape = { .ntok = length,
                                          .nhead = NHEAD,
                                          .nkv = NKV,
                                          .head_dim = HEAD,
                                          .cu_seqlens = bounds,
                                          .ndoc = 1,
                                          .scale = 0.088388348f };
    size_t one = bench.device->ops->attention_scratch(bench.stream, &shape),
           two = bench.device->ops->attention_grad_scratch(bench.stream, &shape);
    struct kern_buffer scratch = take((int64_t)(one > two ? one : two) + 64, 1),
                       table = take((int64_t)bench.device->ops->attention_table_bytes(bench.stream, &shape), 1);
    shape.table.data = table.data;
    bench.device->ops->attention_table(bench.stream, &shape);
    struct kern_attention f = { shape, kern_const(q), kern_const(k), kern_const(v), o, lse.data, scratch.data };
    struct kern_attention_grad g = {
        shape, kern_const(q), kern_const(k), kern_const(v), kern_const(o), kern_const(d_o), lse.data, dq, dk,
        dv,    scratch.data,  NULL
    };
    const double flops = 2.0 * (double)length * (double)length * NHEAD * HEAD; /* two products of the causal half */
    snprintf(name, sizeof name, "attention forward, %lld tokens", (long long)length);
    show_flops(name, flops, timed(call_attention, &f));
    snprintf(name, sizeof name, "attention backward, %lld tokens", (long long)length);
    show_flops(name, 2.5 * flops, timed(call_attention_grad, &g));
    for (int i = 0; i < 8; i++)
        bench.device->memory->free(&b[i]);
    bench.device->memory->free(&lse);
    bench.device->memory->free(&scratch);
}

static void measure_all_but_attention(void)
{
    measure_copy();
    measure_pinned();
    measure_norm();
    measure_rope();
    measure_swiglu();
    measure_adamw();
    measure_gemm();
}

int main(int argc, char **argv)
{
    char message[KERN_MESSAGE_BYTES];
    const struct kern_module *module;
    struct kern_device_facts facts;
    int ndevices, small = argc > 2 ? atoi(argv[2]) : 1;
    const bool all = argc < 4;
    if (argc < 2 || small < 1 || (!all && strcmp(argv[3], "attention") != 0))
        return fprintf(stderr, "usage: gpu_kernels MODULE.so [SMALL [attention]]\n"), 2;
    must(kern_module_open(argv[1], &module, message), message);
    must(module->count(&ndevices, message), message);
    must(module->describe(0, &facts, message), message);
    bench.device = module->device;
    bench.ntok = 8192 / small;
    bench.nrow = 8 * bench.ntok;
    bench.hidden = HIDDEN / small < SMALLEST ? SMALLEST : HIDDEN / small;
    bench.inner = INNER / small < SMALLEST ? SMALLEST : INNER / small;
    struct kern_pool *pool = kern_pool_new(1);
    must(pool ? KERN_OK : KERN_ERR_MEMORY, "no memory for a thread");
    must(bench.device->stream_new(0, pool, &bench.stream, message), message);
    must(bench.device->event_new(0, true, &bench.from, message), message);
    must(bench.device->event_new(0, true, &bench.to, message), message);
    if (all)
        measure_all_but_attention();
    measure_attention(4096 / small);
    measure_attention(8192 / small);
    bench.device->event_free(bench.from);
    bench.device->event_free(bench.to);
    bench.device->stream_free(bench.stream);
    kern_pool_free(pool);
    return 0;
}
