/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the kernels at the shapes of SmolLM2-135M and some larger ones: products in GFLOP/s beside one plain oneDNN
 * call with as many threads, attention, the head, and element-wise kernels in GB/s. Usage: kernels [THREADS [cpu]
 * [products]]. The best of interleaved rounds counts, because other work on the machine only makes a round slower.
 * "cpu" counts processor time: for one thread on a machine that is not idle. "products" measures nothing else. */
#include <kernels/memory.h>
#include <kernels/ops.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

extern void omp_set_num_threads(int);

static const struct kern_device *device;
static struct kern_stream *stream;
static int nthreads = 2;
static clockid_t ticking = CLOCK_MONOTONIC;

static double now(void)
{
    struct timespec ts;
    clock_gettime(ticking, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static void *buffer(int64_t nelem, enum kern_dtype dtype)
{
    struct kern_buffer b;
    char message[KERN_MESSAGE_BYTES];
    if (device->memory->alloc((struct kern_location){ .huge_pages = true }, (size_t)(nelem * kern_dtype_bytes(dtype)),
                              &b, message) != 0) {
        fprintf(stderr, "bench: %s\n", message);
        exit(4);
    }
    uint32_t x = 1;
    for (int64_t i = 0; i < nelem; i++) {
        x = x * 1664525u + 1013904223u;
        uint32_t bits = 0x3f000000u | x >> 9; /* 0.5 … 1 */
        if (x & 1)
            bits |= 0x80000000u;
        if (dtype == KERN_F32)
            ((uint32_t *)b.data)[i] = bits;
        else
            ((uint16_t *)b.data)[i] = (uint16_t)(bits >> 16);
    }
    return b.data;
}

static void release(void *data, int64_t nelem, enum kern_dtype dtype)
{
    struct kern_buffer b = { .data = data, .nbytes = (size_t)(nelem * kern_dtype_bytes(dtype)) };
    device->memory->free(&b);
}

typedef void (*job_fn)(void *ctx);

/* Seconds of the best round of a job. */
static double best_round(job_fn job, void *ctx, double best)
{
    double t0 = now(), t;
    int n = 0;
    do {
        job(ctx);
        n++;
    } while ((t = now() - t0) < 0.02);
    return t / n < best ? t / n : best;
}

enum { ROUNDS = 7 };

static double best_of(job_fn job, void *ctx)
{
    double best = 1e9;
    for (int i = 0; i < ROUNDS; i++)
        best = best_round(job, ctx, best);
    return best;
}

/* --- products --- */

struct product {
    struct kern_gemm g;
    dnnl_engine_t engine;
    dnnl_stream_t dnnl_stream;
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c;
};

static void our_product(void *ctx)
{
    struct product *p = ctx;
    device->ops->gemm(stream, &p->g);
}

static void plain_product(void *ctx)
{
    struct product *p = ctx;
    dnnl_exec_arg_t args[3] = { { DNNL_ARG_SRC, p->a }, { DNNL_ARG_WEIGHTS, p->b }, { DNNL_ARG_DST, p->c } };
    dnnl_primitive_execute(p->primitive, p->dnnl_stream, 3, args);
    dnnl_stream_wait(p->dnnl_stream);
}

#if DNNL_VERSION_MAJOR < 3
static dnnl_memory_desc_t layout(int64_t rows, int64_t cols, int64_t pitch, bool trans, enum kern_dtype dtype)
{
    dnnl_memory_desc_t md;
    dnnl_dims_t dims = { rows, cols }, strides = { trans ? 1 : pitch, trans ? pitch : 1 };
    dnnl_memory_desc_init_by_strides(&md, 2, dims, dtype == KERN_BF16 ? dnnl_bf16 : dnnl_f32, strides);
    return md;
}

static bool prepare_plain(struct product *p)
{
    const struct kern_gemm *g = &p->g;
    dnnl_memory_desc_t a = layout(g->m, g->k, g->a.pitch, g->trans_a, g->a.dtype),
                       b = layout(g->k, g->n, g->b.pitch, g->trans_b, g->b.dtype);
    dnnl_memory_desc_t c = layout(g->m, g->n, g->c.pitch, false, g->c.dtype);
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t pd;
    void *data[2];
    memcpy(&data[0], &g->a.data, sizeof(void *));
    memcpy(&data[1], &g->b.data, sizeof(void *));
    dnnl_matmul_desc_init(&desc, &a, &b, NULL, &c);
    if (dnnl_primitive_desc_create(&pd, &desc, NULL, p->engine, NULL) != dnnl_success)
        return false;
    dnnl_primitive_create(&p->primitive, pd);
    dnnl_primitive_desc_destroy(pd);
    dnnl_memory_create(&p->a, &a, p->engine, data[0]);
    dnnl_memory_create(&p->b, &b, p->engine, data[1]);
    dnnl_memory_create(&p->c, &c, p->engine, g->c.data);
    return true;
}
#else
static bool prepare_plain(struct product *p)
{
    (void)p;
    return false; /* compared with version 2 only */
}
#endif

struct shape {
    const char *what;
    int64_t m, n, k;
    char layout; /* T: y = x·Wᵀ, N: dx = dy·W, W: dW = dyᵀ·x */
};

static struct product product_of(const struct shape *s, enum kern_dtype dtype)
{
    const bool ta = s->layout == 'W', tb = s->layout == 'T';
    enum kern_dtype out = ta ? KERN_F32 : dtype;
    struct product p = { .g = { .m = s->m, .n = s->n, .k = s->k, .trans_a = ta, .trans_b = tb, .alpha = 1 } };
    p.g.a = (struct kern_cmat){ buffer(s->m * s->k, dtype), ta ? s->m : s->k, dtype };
    p.g.b = (struct kern_cmat){ buffer(s->n * s->k, dtype), tb ? s->k : s->n, dtype };
    p.g.c = (struct kern_mat){ buffer(s->m * s->n, out), s->n, out };
    return p;
}

static void free_product(struct product *p)
{
    void *data[2];
    memcpy(&data[0], &p->g.a.data, sizeof(void *));
    memcpy(&data[1], &p->g.b.data, sizeof(void *));
    release(data[0], p->g.m * p->g.k, p->g.a.dtype);
    release(data[1], p->g.n * p->g.k, p->g.b.dtype);
    release(p->g.c.data, p->g.m * p->g.n, p->g.c.dtype);
}

static void bench_product(const struct shape *s, enum kern_dtype dtype)
{
    struct product p = product_of(s, dtype);
    double ours = 1e9, plain = 1e9, flops = 2.0 * (double)s->m * (double)s->n * (double)s->k;
    omp_set_num_threads(nthreads);
    dnnl_engine_create(&p.engine, dnnl_cpu, 0);
    dnnl_stream_create(&p.dnnl_stream, p.engine, dnnl_stream_default_flags);
    bool has_plain = prepare_plain(&p);
    for (int i = 0; i < ROUNDS; i++) {
        ours = best_round(our_product, &p, ours);
        if (has_plain)
            plain = best_round(plain_product, &p, plain);
    }
    printf("%-22s %5lldx%5lldx%5lld %c %s  ours %7.1f  oneDNN %7.1f  ratio %.2f\n", s->what, (long long)s->m,
           (long long)s->n, (long long)s->k, s->layout, dtype == KERN_BF16 ? "bf16" : "fp32", flops / ours * 1e-9,
           has_plain ? flops / plain * 1e-9 : 0, has_plain ? plain / ours : 0);
    if (has_plain) {
        dnnl_primitive_destroy(p.primitive);
        dnnl_memory_destroy(p.a), dnnl_memory_destroy(p.b), dnnl_memory_destroy(p.c);
    }
    dnnl_stream_destroy(p.dnnl_stream);
    dnnl_engine_destroy(p.engine);
    free_product(&p);
}

static const struct shape shapes[] = {
    { "q, o", 2048, 576, 576, 'T' },
    { "gate, up", 2048, 1536, 576, 'T' },
    { "down", 2048, 576, 1536, 'T' },
    { "q dx", 2048, 576, 576, 'N' },
    { "gate dx", 2048, 576, 1536, 'N' },
    { "down dx", 2048, 1536, 576, 'N' },
    { "q dW", 576, 576, 2048, 'W' },
    { "gate dW", 1536, 576, 2048, 'W' },
    { "head, 256 rows", 256, 49152, 576, 'T' },
    { "head dx, 256 rows", 256, 576, 49152, 'N' },
    { "LoRA S", 2048, 16, 576, 'T' },
    { "LoRA S of q, k, v", 2048, 48, 576, 'T' },
    { "LoRA dS", 2048, 16, 576, 'N' },
    { "LoRA S·B", 2048, 576, 16, 'T' },
    { "LoRA dA", 16, 576, 2048, 'W' },
    { "LoRA dB", 576, 16, 2048, 'W' },
    { "large", 2048, 4096, 4096, 'T' },
};

/* --- the other kernels --- */

static void run_attention(void *ctx)
{
    device->ops->attention(stream, ctx);
}

static void run_attention_grad(void *ctx)
{
    device->ops->attention_grad(stream, ctx);
}

static void bench_attention(int64_t ntok, int64_t len, enum kern_dtype dtype)
{
    enum { NHEAD = 9, NKV = 3, DIM = 64 };
    int64_t cu[65] = { 0 };
    for (int64_t d = 0; d < ntok / len; d++)
        cu[d + 1] = (d + 1) * len;
    struct kern_attention_shape s = {
        .ntok = ntok, .nhead = NHEAD, .nkv = NKV, .head_dim = DIM, .cu_seqlens = cu, .ndoc = ntok / len, .scale = 0.125f
    };
    s.table.data = buffer((int64_t)device->ops->attention_table_bytes(stream, &s) / 4, KERN_F32);
    device->ops->attention_table(stream, &s);
    struct kern_attention a = { .shape = s,
                                .q = { buffer(ntok * NHEAD * DIM, dtype), NHEAD * DIM, dtype },
                                .k = { buffer(ntok * NKV * DIM, dtype), NKV * DIM, dtype },
                                .v = { buffer(ntok * NKV * DIM, dtype), NKV * DIM, dtype },
                                .o = { buffer(ntok * NHEAD * DIM, dtype), NHEAD * DIM, dtype },
                                .lse = buffer(ntok * NHEAD, KERN_F32),
                                .scratch = buffer((int64_t)device->ops->attention_scratch(stream, &s) / 4, KERN_F32) };
    struct kern_attention_grad g = { .shape = s,
                                     .q = a.q,
                                     .k = a.k,
                                     .v = a.v,
                                     .o = kern_const(a.o),
                                     .d_o = { buffer(ntok * NHEAD * DIM, dtype), NHEAD * DIM, dtype },
                                     .lse = a.lse,
                                     .dq = { buffer(ntok * NHEAD * DIM, dtype), NHEAD * DIM, dtype },
                                     .dk = { buffer(ntok * NKV * DIM, dtype), NKV * DIM, dtype },
                                     .dv = { buffer(ntok * NKV * DIM, dtype), NKV * DIM, dtype },
                                     .scratch = buffer((int64_t)device->ops->attention_grad_scratch(stream, &s) / 4,
                                                       KERN_F32) };
    double flops = 4.0 * NHEAD * DIM * (double)ntok * (double)len / 2, fwd = best_of(run_attention, &a),
           bwd = best_of(run_attention_grad, &g);
    printf("attention %lldx%lld %s  forward %.2f ms %.1f GFLOP/s  backward %.2f ms %.1f GFLOP/s\n",
           (long long)(ntok / len), (long long)len, dtype == KERN_BF16 ? "bf16" : "fp32", fwd * 1e3, flops / fwd * 1e-9,
           bwd * 1e3, 2.5 * flops / bwd * 1e-9);
}

static void run_head(void *ctx)
{
    kern_head_run(device, stream, ctx);
}

static void bench_head(enum kern_dtype dtype)
{
    enum { NTOK = 512, DIM = 576, NVOCAB = 49152 };
    int32_t target[NTOK];
    float loss[NTOK];
    for (int i = 0; i < NTOK; i++)
        target[i] = i * 90;
    struct kern_head h = { .ntok = NTOK,
                           .d = DIM,
                           .nvocab = NVOCAB,
                           .h = { buffer(NTOK * DIM, dtype), DIM, dtype },
                           .w = { buffer(NVOCAB * DIM, dtype), DIM, dtype },
                           .nrow = NTOK,
                           .target = target,
                           .grad_scale = 1,
                           .loss = loss,
                           .dh = { buffer(NTOK * DIM, dtype), DIM, dtype },
                           .compute = dtype };
    h.scratch = buffer((int64_t)kern_head_scratch(&h) / 4, KERN_F32);
    double t = best_of(run_head, &h);
    printf("head, 512 tokens, frozen %s  %.1f ms %.1f GFLOP/s\n", dtype == KERN_BF16 ? "bf16" : "fp32", t * 1e3,
           4.0 * NTOK * DIM * NVOCAB / t * 1e-9);
}

static struct kern_rmsnorm norm_args;
static struct kern_rmsnorm_grad norm_grad_args;
static struct kern_swiglu_grad swiglu_grad_args;

static void run_norm(void *ctx)
{
    device->ops->rmsnorm(stream, ctx);
}

static void run_norm_grad(void *ctx)
{
    device->ops->rmsnorm_grad(stream, ctx);
}

static void run_swiglu(void *ctx)
{
    const struct kern_swiglu_grad *s = ctx;
    device->ops->swiglu(stream, s->dgate, s->gate, s->up, s->nrow, s->ncol);
}

static void run_swiglu_grad(void *ctx)
{
    device->ops->swiglu_grad(stream, ctx);
}

static void rate(const char *what, enum kern_dtype dtype, job_fn job, void *ctx, double nbytes)
{
    double t = best_of(job, ctx);
    printf("%-14s %s  %.3f ms %.1f GB/s\n", what, dtype == KERN_BF16 ? "bf16" : "fp32", t * 1e3, nbytes / t * 1e-9);
}

static void bench_elementwise(enum kern_dtype dtype)
{
    enum { NTOK = 2048, DIM = 576, INNER = 1536 };
    const double width = (double)kern_dtype_bytes(dtype);
    struct kern_mat x = { buffer(NTOK * DIM, dtype), DIM, dtype }, y = { buffer(NTOK * DIM, dtype), DIM, dtype },
                    dy = { buffer(NTOK * DIM, dtype), DIM, dtype };
    struct kern_cmat gamma = { buffer(DIM, dtype), DIM, dtype };
    struct kern_mat m[5];
    float *rstd = buffer(NTOK, KERN_F32);
    for (int i = 0; i < 5; i++)
        m[i] = (struct kern_mat){ buffer(NTOK * INNER, dtype), INNER, dtype };
    norm_args = (struct kern_rmsnorm){ NTOK, 1, DIM, kern_const(x), gamma, 1e-5f, y, rstd };
    norm_grad_args = (struct kern_rmsnorm_grad){ .nrow = NTOK,
                                                 .ngroup = 1,
                                                 .ncol = DIM,
                                                 .x = kern_const(x),
                                                 .dy = kern_const(dy),
                                                 .gamma = gamma,
                                                 .rstd = rstd,
                                                 .dx = y };
    swiglu_grad_args = (struct kern_swiglu_grad){
        NTOK, INNER, kern_const(m[0]), kern_const(m[1]), kern_const(m[2]), m[3], m[4], { 0 }
    };
    rate("rmsnorm", dtype, run_norm, &norm_args, 2.0 * NTOK * DIM * width);
    rate("rmsnorm grad", dtype, run_norm_grad, &norm_grad_args, 3.0 * NTOK * DIM * width);
    rate("swiglu", dtype, run_swiglu, &swiglu_grad_args, 3.0 * NTOK * INNER * width);
    rate("swiglu grad", dtype, run_swiglu_grad, &swiglu_grad_args, 5.0 * NTOK * INNER * width);
}

int main(int argc, char **argv)
{
    char message[KERN_MESSAGE_BYTES];
    if (argc > 1)
        nthreads = atoi(argv[1]);
    bool only_products = false;
    for (int i = 2; i < argc; i++) {
        ticking = strcmp(argv[i], "cpu") == 0 ? CLOCK_PROCESS_CPUTIME_ID : ticking;
        only_products |= strcmp(argv[i], "products") == 0;
    }
    device = kern_device_find("cpu", message);
    struct kern_pool *pool = kern_pool_new((unsigned)nthreads);
    if (!pool || device->stream_new(0, pool, &stream, message) != 0)
        return 4;
    kern_cpu_describe(message);
    printf("%s, %d threads\n", message, nthreads);
    for (int dtype = KERN_F32; dtype <= KERN_BF16; dtype++) {
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
            bench_product(&shapes[i], (enum kern_dtype)dtype);
        if (only_products)
            continue;
        bench_attention(2048, 512, (enum kern_dtype)dtype);
        bench_attention(2048, 2048, (enum kern_dtype)dtype);
        bench_head((enum kern_dtype)dtype);
        bench_elementwise((enum kern_dtype)dtype);
    }
    if (device->stream_sync(stream, message) != 0)
        fprintf(stderr, "bench: %s\n", message);
    device->stream_free(stream);
    kern_pool_free(pool);
    return 0;
}
