/* How fast a module's kernels are on its first device, beside a plain copy on that device: a JSON object a line. Shapes of an 8B Llama, bf16.
 *
 *     gpu_kernels MODULE.so [SMALL [attention]]     SMALL: shapes so many times smaller, to try the program itself on a slow device; attention: that alone */
#include <kernels/memory.h>
#include <kernels/module.h>
#include <kernels/ops.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARM = 3, TURNS = 10, HIDDEN = 4096, INNER = 14336, NHEAD = 32, NKV = 8, HEAD = 128, SMALLEST = 64 };

static struct {
    const struct kern_device *device;
    struct kern_stream *stream;
    struct kern_event *from, *to;
    int64_t ntok, hidden, inner;
    double copy_rate; /* bytes read and written a second */
} bench;

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
    must(bench.device->memory->alloc((struct kern_place){ .kind = KERN_PLACE_DEVICE }, (size_t)(nelem * each), &b, message), message);
    return b;
}

/* Random numbers in ±1, as products of zeros take less power and more clock. */
static struct kern_mat matrix(struct kern_buffer *b, int64_t nrow, int64_t ncol)
{
    const struct kern_philox rng = { .seed = 7 };
    struct kern_buffer floats = take(ncol, 4);
    *b = take(nrow * ncol, 2);
    for (int64_t i = 0; i < nrow; i++) {
        const struct kern_mat row = { (char *)b->data + i * ncol * 2, ncol, KERN_BF16 };
        const struct kern_cmat from = { floats.data, ncol, KERN_F32 };
        bench.device->ops->uniform(bench.stream, floats.data, ncol, rng, (uint64_t)(i * ncol), -1, 1);
        bench.device->ops->cast(bench.stream, row, from, 1, ncol);
    }
    char message[KERN_MESSAGE_BYTES];
    must(bench.device->stream_sync(bench.stream, message), message);
    bench.device->memory->free(&floats);
    return (struct kern_mat){ b->data, ncol, KERN_BF16 };
}

/* Seconds of one call. */
static double seconds(void (*call)(void *), void *ctx)
{
    char message[KERN_MESSAGE_BYTES];
    for (int i = 0; i < WARM; i++)
        call(ctx);
    bench.device->event_record(bench.from, bench.stream);
    for (int i = 0; i < TURNS; i++)
        call(ctx);
    bench.device->event_record(bench.to, bench.stream);
    must(bench.device->stream_sync(bench.stream, message), message);
    return 1e-9 * (double)bench.device->event_elapsed_ns(bench.from, bench.to) / TURNS;
}

static void show_bytes(const char *name, double nbytes, double s)
{
    printf("{\"kernel\": \"%s\", \"seconds\": %.6g, \"gb_per_second\": %.1f, \"of_copy\": %.3f}\n", name, s, 1e-9 * nbytes / s, nbytes / s / bench.copy_rate);
    fflush(stdout);
}

static void show_flops(const char *name, double flops, double s)
{
    printf("{\"kernel\": \"%s\", \"seconds\": %.6g, \"tflops\": %.1f}\n", name, s, 1e-12 * flops / s);
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
    struct kern_buffer a = take(nbytes, 1), b = take(nbytes, 1);
    struct copy c = { b.data, a.data, (size_t)nbytes };
    double s = seconds(copy, &c);
    bench.copy_rate = 2 * (double)nbytes / s;
    show_bytes("copy", 2 * (double)nbytes, s);
    bench.device->memory->free(&a);
    bench.device->memory->free(&b);
}

/* What a start from the page cache cannot be faster than. */
static void measure_pinned(void)
{
    char message[KERN_MESSAGE_BYTES];
    const int64_t nbytes = bench.ntok * 32768;
    struct kern_buffer host, b = take(nbytes, 1);
    must(bench.device->memory->alloc((struct kern_place){ .kind = KERN_PLACE_PINNED }, (size_t)nbytes, &host, message), message);
    struct copy c = { b.data, host.data, (size_t)nbytes };
    printf("{\"kernel\": \"pinned memory to the device\", \"gb_per_second\": %.1f}\n", 1e-9 * (double)nbytes / seconds(copy, &c));
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
    struct kern_buffer b[5], rstd = take(bench.ntok, 4);
    const struct kern_mat x = matrix(&b[0], bench.ntok, bench.hidden), dy = matrix(&b[1], bench.ntok, bench.hidden), y = matrix(&b[2], bench.ntok, bench.hidden),
                          gamma = matrix(&b[3], 1, bench.hidden), add = matrix(&b[4], bench.ntok, bench.hidden);
    const double nbytes = (double)bench.ntok * (double)bench.hidden * 2;
    struct kern_rmsnorm f = { .nrow = bench.ntok, .ngroup = 1, .ncol = bench.hidden, .x = kern_const(x), .gamma = kern_const(gamma), .eps = 1e-5f, .y = y, .rstd = rstd.data };
    struct kern_rmsnorm_grad g = { .nrow = bench.ntok, .ngroup = 1, .ncol = bench.hidden, .x = kern_const(x), .dy = kern_const(dy), .gamma = kern_const(gamma),
                                   .rstd = rstd.data, .add = kern_const(add), .dx = y };
    show_bytes("RMSNorm forward", 2 * nbytes, seconds(call_rmsnorm, &f));
    show_bytes("RMSNorm backward, residual added, gamma frozen", 4 * nbytes, seconds(call_rmsnorm_grad, &g));
    for (int i = 0; i < 5; i++)
        bench.device->memory->free(&b[i]);
    bench.device->memory->free(&rstd);
}

static void measure_rope(void)
{
    struct kern_buffer b, tables = take(bench.ntok * HEAD, 4), positions = take(bench.ntok, 4);
    const struct kern_mat x = matrix(&b, bench.ntok, NHEAD * HEAD);
    struct kern_rope_apply r = { .nrow = bench.ntok, .nhead = NHEAD, .dim = HEAD, .x = x, .cosines = tables.data, .sines = tables.data, .positions = positions.data };
    show_bytes("RoPE in place", 4.0 * (double)bench.ntok * NHEAD * HEAD, seconds(call_rope, &r));
    bench.device->memory->free(&b);
    bench.device->memory->free(&tables);
    bench.device->memory->free(&positions);
}

static void measure_swiglu(void)
{
    struct kern_buffer b[4];
    struct kern_mat m[4];
    const double nbytes = (double)bench.ntok * (double)bench.inner * 2;
    for (int i = 0; i < 4; i++)
        m[i] = matrix(&b[i], bench.ntok, bench.inner);
    struct kern_swiglu_grad g = { .nrow = bench.ntok, .ncol = bench.inner, .gate = kern_const(m[0]), .up = kern_const(m[1]), .dy = kern_const(m[2]), .dgate = m[0], .dup = m[1],
                                  .y = m[3] };
    show_bytes("SwiGLU forward", 3 * nbytes, seconds(call_swiglu, &g));
    show_bytes("SwiGLU backward, with its product anew", 6 * nbytes, seconds(call_swiglu_grad, &g));
    for (int i = 0; i < 4; i++)
        bench.device->memory->free(&b[i]);
}

static void measure_adamw(void)
{
    const int64_t nelem = bench.ntok * 5120; /* adapters of r 16 on all linears of 8B: 42 million */
    struct kern_buffer b[4];
    for (int i = 0; i < 4; i++)
        b[i] = take(nelem, 4);
    const struct kern_adamw_range range = { .nelem = nelem, .p = b[0].data, .m = b[1].data, .v = b[2].data, .grad = b[3].data };
    struct kern_adamw a = { .ranges = &range, .nranges = 1, .grad_scale = 1, .lr = 1e-4, .beta1 = 0.9,
                            .beta2 = 0.999, .eps = 1e-8, .t = 1 };
    show_bytes("AdamW", 28 * (double)nelem, seconds(call_adamw, &a));
    for (int i = 0; i < 4; i++)
        bench.device->memory->free(&b[i]);
}

static void measure_gemm(void)
{
    struct kern_buffer b[3];
    const struct kern_mat x = matrix(&b[0], bench.ntok, bench.hidden), w = matrix(&b[1], bench.inner, bench.hidden), y = matrix(&b[2], bench.ntok, bench.inner);
    struct kern_gemm up = { .m = bench.ntok, .n = bench.inner, .k = bench.hidden, .a = kern_const(x), .b = kern_const(w), .trans_b = true, .c = y, .alpha = 1 };
    struct kern_gemm back = { .m = bench.ntok, .n = bench.hidden, .k = bench.inner, .a = kern_const(y), .b = kern_const(w), .c = x, .alpha = 1 };
    const double flops = 2.0 * (double)bench.ntok * (double)bench.hidden * (double)bench.inner;
    show_flops("product forward", flops, seconds(call_gemm, &up));
    show_flops("product backward to the input", flops, seconds(call_gemm, &back));
    for (int i = 0; i < 3; i++)
        bench.device->memory->free(&b[i]);
}

static void measure_attention(int64_t length)
{
    char name[80];
    const int64_t bounds[] = { 0, length };
    struct kern_buffer b[8], lse = take(length * NHEAD, 4);
    const struct kern_mat q = matrix(&b[0], length, NHEAD * HEAD), k = matrix(&b[1], length, NKV * HEAD), v = matrix(&b[2], length, NKV * HEAD),
                          o = matrix(&b[3], length, NHEAD * HEAD), d_o = matrix(&b[4], length, NHEAD * HEAD), dq = matrix(&b[5], length, NHEAD * HEAD),
                          dk = matrix(&b[6], length, NKV * HEAD), dv = matrix(&b[7], length, NKV * HEAD);
    struct kern_attention_shape shape = { .ntok = length, .nhead = NHEAD, .nkv = NKV, .head_dim = HEAD, .cu_seqlens = bounds, .ndoc = 1, .scale = 0.088388348f };
    size_t one = bench.device->ops->attention_scratch(bench.stream, &shape), two = bench.device->ops->attention_grad_scratch(bench.stream, &shape);
    struct kern_buffer scratch = take((int64_t)(one > two ? one : two) + 64, 1), table = take((int64_t)bench.device->ops->attention_table_bytes(bench.stream, &shape), 1);
    shape.table.data = table.data;
    bench.device->ops->attention_table(bench.stream, &shape);
    struct kern_attention f = { shape, kern_const(q), kern_const(k), kern_const(v), o, lse.data, scratch.data };
    struct kern_attention_grad g = { shape, kern_const(q), kern_const(k), kern_const(v), kern_const(o), kern_const(d_o), lse.data, dq, dk, dv, scratch.data };
    const double flops = 2.0 * (double)length * (double)length * NHEAD * HEAD; /* two products of the causal half */
    snprintf(name, sizeof name, "attention forward, %lld tokens", (long long)length);
    show_flops(name, flops, seconds(call_attention, &f));
    snprintf(name, sizeof name, "attention backward, %lld tokens", (long long)length);
    show_flops(name, 2.5 * flops, seconds(call_attention_grad, &g));
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
