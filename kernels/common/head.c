/* SPDX-License-Identifier: Apache-2.0 */
/* The output head, in chunks of rows. It calls the operations of the device, so all devices share this code. */
#include <kernels/loss.h>
#include <kernels/memory.h>
#include <kernels/ops.h>

/* Rows per chunk. The logits of a chunk take some ten megabytes; the rows are enough to amortise reading W in each
 * product. */
int64_t kern_head_chunk(int64_t nvocab)
{
    const int64_t wanted = ((int64_t)24 << 20) / (nvocab > 0 ? nvocab : 1) / 64 * 64;
    return wanted < 128 ? 128 : wanted > 1024 ? 1024 : wanted;
}

/* Rows of W per block in dX = dY·W. A block stays in the processor's cache while every tile reads it, so W is read from
 * memory once. */
enum { PANEL = 2048 };

static int64_t panel_of(const struct kern_head *h)
{
    return h->panel ? h->panel : PANEL;
}

/* Layout of scratch; each part is aligned to 64 bytes. */
struct parts {
    void *logits,
        *dlogits; /* (chunk, pitch); the gradient shares the memory of the logits if its elements are no larger */
    void *h;      /* (chunk, d): gathered rows */
    float *dh;    /* (chunk, d): their gradient, accumulated in fp32 */
    void *s, *ds; /* (chunk, r) */
};

struct head_work {
    const struct kern_ops *ops;
    struct kern_stream *stream;
    const struct kern_head *head;
    int64_t chunk;
    struct parts parts;
};

static int64_t chunk_of(const struct kern_head *h)
{
    int64_t chunk = h->chunk ? h->chunk : kern_head_chunk(h->nvocab);
    return chunk < h->nrow ? chunk : h->nrow;
}

static void *take(char *base, size_t *at, int64_t nelem, enum kern_dtype dtype)
{
    void *part = base ? base + *at : NULL;
    *at += ((size_t)(nelem * kern_dtype_bytes(dtype)) + 63) / 64 * 64;
    return part;
}

/* Pitch of the logits: nvocab rounded up to 32, plus 32. Without the extra 32, rows of a round vocabulary all start at
 * the same page offset and compete for one cache set. */
static int64_t pitch_of(const struct kern_head *h)
{
    return (h->nvocab + 31) / 32 * 32 + 32;
}

static size_t split_scratch(const struct kern_head *h, char *base, struct parts *p)
{
    size_t at = 0;
    const int64_t chunk = chunk_of(h);
    p->logits = take(base, &at, chunk * pitch_of(h), h->output);
    p->dlogits = kern_dtype_bytes(h->compute) <= kern_dtype_bytes(h->output)
                     ? p->logits
                     : take(base, &at, chunk * pitch_of(h), h->compute);
    p->h = take(base, &at, h->rows ? chunk * h->d : 0, h->h.dtype);
    p->dh = take(base, &at, chunk * h->d, KERN_F32);
    p->s = take(base, &at, chunk * h->lora.r, h->compute);
    p->ds = take(base, &at, chunk * h->lora.r, h->compute);
    return at;
}

size_t kern_head_scratch(const struct kern_head *head)
{
    struct parts p;
    return split_scratch(head, NULL, &p);
}

/* The matrices of one chunk. */
struct chunk {
    int64_t row, n;
    struct kern_cmat h;
    struct kern_mat dh, logits, dlogits, s, ds;
    struct kern_lora_segment segment;
};

static void *row_at(void *data, int64_t pitch, enum kern_dtype dtype, int64_t row)
{
    return (char *)data + row * pitch * kern_dtype_bytes(dtype);
}

static struct chunk chunk_at(const struct head_work *w, int64_t row)
{
    const struct kern_head *h = w->head;
    struct chunk c = { .row = row, .n = h->nrow - row < w->chunk ? h->nrow - row : w->chunk };
    c.logits = (struct kern_mat){ w->parts.logits, pitch_of(h), h->output };
    c.dlogits = (struct kern_mat){ w->parts.dlogits, pitch_of(h), h->compute };
    if (w->parts.dlogits == w->parts.logits) /* rows start where those of the logits do */
        c.dlogits.pitch = pitch_of(h) * kern_dtype_bytes(h->output) / kern_dtype_bytes(h->compute);
    c.s = (struct kern_mat){ w->parts.s, h->lora.r, h->compute };
    c.ds = (struct kern_mat){ w->parts.ds, h->lora.r, h->compute };
    c.dh = (struct kern_mat){ w->parts.dh, h->d, KERN_F32 };
    c.h = (struct kern_cmat){ w->parts.h, h->d, h->h.dtype };
    if (!h->rows) {
        c.h = h->h;
        c.h.data = (const char *)h->h.data + row * h->h.pitch * kern_dtype_bytes(h->h.dtype);
    }
    c.segment = (struct kern_lora_segment){ .nrow = c.n,
                                            .r = h->lora.r,
                                            .scale = h->lora.scale,
                                            .a = h->lora.a,
                                            .b = h->lora.b,
                                            .da = h->lora.da,
                                            .db = h->lora.db,
                                            .pitch_da = h->d,
                                            .pitch_db = h->lora.r,
                                            .dropout = h->lora.dropout };
    c.segment.dropout.token0 += row;
    return c;
}

static struct kern_lora lora_of(const struct head_work *w, const struct chunk *c)
{
    return (struct kern_lora){ .nrow = c->n,
                               .nin = w->head->d,
                               .nout = w->head->nvocab,
                               .segments = &c->segment,
                               .nsegments = 1,
                               .x = c->h,
                               .dy = kern_const(c->dlogits),
                               .s = c->s,
                               .ds = c->ds };
}

static void logits_forward(const struct head_work *w, const struct chunk *c)
{
    const struct kern_head *h = w->head;
    struct kern_lora lora = lora_of(w, c);
    struct kern_lowrank low = {
        .nrow = c->n, .r = h->lora.r, .s = kern_const(c->s), .b = h->lora.b, .trans_b = true, .alpha = 1
    };
    struct kern_gemm g = {
        .m = c->n, .n = h->nvocab, .k = h->d, .a = c->h, .b = h->w, .trans_b = true, .c = c->logits, .alpha = 1
    };
    if (h->lora.r) {
        w->ops->lora_down(w->stream, &lora);
        g.lowrank = &low;
        g.nlowrank = 1;
    }
    w->ops->gemm(w->stream, &g);
}

static void entropy(const struct head_work *w, const struct chunk *c, bool gradient)
{
    const struct kern_head *h = w->head;
    struct kern_cross_entropy e = { .nrow = c->n,
                                    .ncol = h->nvocab,
                                    .logits = kern_const(c->logits),
                                    .target = h->target + c->row,
                                    .grad_scale = h->grad_scale,
                                    .weights = h->weights ? h->weights + c->row : NULL,
                                    .loss = h->loss + c->row };
    if (gradient)
        e.dlogits = c->dlogits;
    w->ops->cross_entropy(w->stream, &e);
}

static void weight_grads(const struct head_work *w, const struct chunk *c)
{
    const struct kern_head *h = w->head;
    struct kern_lora lora = lora_of(w, c);
    if (h->dw) {
        struct kern_mat dw = { h->dw, h->d, KERN_F32 };
        struct kern_gemm g = { .m = h->nvocab,
                               .n = h->d,
                               .k = c->n,
                               .a = kern_const(c->dlogits),
                               .trans_a = true,
                               .b = c->h,
                               .c = dw,
                               .alpha = 1,
                               .add = kern_const(dw) };
        w->ops->gemm(w->stream, &g);
    }
    if (h->lora.r && h->dh.data) {
        w->ops->lora_grad_b(w->stream, &lora);
        w->ops->lora_up_grad(w->stream, &lora);
        w->ops->lora_grad_a(w->stream, &lora);
    }
}

/* dh = or += the contribution of the panel of W that starts at row `from`. */
static void panel_grad(const struct head_work *w, const struct chunk *c, int64_t from)
{
    const struct kern_head *h = w->head;
    struct kern_gemm g = { .m = c->n,
                           .n = h->d,
                           .k = h->nvocab - from < panel_of(h) ? h->nvocab - from : panel_of(h),
                           .a = kern_const(c->dlogits),
                           .b = h->w,
                           .c = c->dh,
                           .alpha = 1 };
    g.a.data = (const char *)g.a.data + from * kern_dtype_bytes(g.a.dtype);
    g.b.data = (const char *)g.b.data + from * g.b.pitch * kern_dtype_bytes(g.b.dtype);
    if (from > 0)
        g.add = kern_const(c->dh);
    w->ops->gemm(w->stream, &g);
}

static void input_grad(const struct head_work *w, const struct chunk *c)
{
    const struct kern_head *h = w->head;
    struct kern_lowrank low = {
        .nrow = c->n, .r = h->lora.r, .s = kern_const(c->ds), .b = h->lora.a, .alpha = 1, .dropout = c->segment.dropout
    };
    struct kern_gemm adapter = {
        .m = c->n, .n = h->d, .c = c->dh, .alpha = 1, .add = kern_const(c->dh), .lowrank = &low, .nlowrank = 1
    };
    struct kern_mat to = h->dh;
    for (int64_t from = 0; from < h->nvocab; from += panel_of(h))
        panel_grad(w, c, from);
    if (h->lora.r)
        w->ops->gemm(w->stream, &adapter);
    if (h->rows) {
        w->ops->scatter_rows(w->stream, h->dh, kern_const(c->dh), h->rows + c->row, c->n, h->d, h->ntok);
        return;
    }
    to.data = row_at(to.data, to.pitch, to.dtype, c->row);
    w->ops->cast(w->stream, to, kern_const(c->dh), c->n, h->d);
}

/* Zeroes the rows of dh that no chunk writes. Contiguous rows take one call, because on a device a call is a launch. */
static void clear_rest(const struct kern_device *device, struct kern_stream *stream, const struct kern_head *h)
{
    const int64_t from = h->rows ? 0 : h->nrow, nrow = h->nrow < h->ntok ? h->ntok - from : 0,
                  nbytes = h->d * kern_dtype_bytes(h->dh.dtype);
    const int64_t calls = h->dh.pitch == h->d ? nrow > 0 : nrow, each = calls ? nrow / calls : 0;
    for (int64_t i = 0; i < calls; i++)
        device->memory->zero(stream, row_at(h->dh.data, h->dh.pitch, h->dh.dtype, from + i * each),
                             (size_t)(each * nbytes));
}

void kern_head_run(const struct kern_device *device, struct kern_stream *stream, const struct kern_head *head)
{
    struct head_work w = { .ops = device->ops, .stream = stream, .head = head, .chunk = chunk_of(head) };
    split_scratch(head, head->scratch, &w.parts);
    if (head->dh.data)
        clear_rest(device, stream, head);
    for (int64_t row = 0; row < head->nrow; row += w.chunk) {
        struct chunk c = chunk_at(&w, row);
        if (head->rows)
            w.ops->gather_rows(stream, (struct kern_mat){ w.parts.h, head->d, head->h.dtype }, head->h,
                               head->rows + row, c.n, head->d, head->ntok);
        logits_forward(&w, &c);
        if (head->weigh) {
            entropy(&w, &c, false);
            head->weigh(head->ctx, row, c.n);
        }
        entropy(&w, &c, head->dh.data || head->dw);
        weight_grads(&w, &c);
        if (head->dh.data)
            input_grad(&w, &c);
    }
}
