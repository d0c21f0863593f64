/* SPDX-License-Identifier: Apache-2.0 */
/* A computation: its device, its tables, and the memory of a micro-batch in one piece. */
#include "model/compute_impl.h"

#include <stdlib.h>
#include <string.h>

#include "model/bump.h"
#include "model/compute_parts.h"

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void widen_rank(void *ctx, const struct linear *const *layers, int n)
{
    int64_t *r = ctx, sum = 0;
    for (int i = 0; i < n; i++)
        sum += layers[i]->r;
    *r = most(*r, sum);
}

int64_t compute_largest_rank(const struct layout *l)
{
    int64_t r = most(l->embed.r, l->head.r);
    layout_each(l, widen_rank, &r);
    return r;
}

int64_t compute_expert_rank(const struct layout *l, int64_t nlayer)
{
    int64_t r = 0;
    for (int64_t i = 0; l->layers && i < nlayer; i++)
        for (int64_t e = 0; e < l->layers[i].nexperts; e++) {
            const struct mlp *x = &l->layers[i].experts[e];
            r = most(r, most(x->gate.r + x->up.r, x->down.r));
        }
    return r;
}

static void measure_experts(struct compute *c)
{
    for (int64_t i = 0; c->l->layers && i < c->m->nlayer; i++)
        c->router_rank = most(c->router_rank, c->l->layers[i].router.r);
    c->expert_rank = compute_expert_rank(c->l, c->m->nlayer);
}

void compute_go_over(struct compute *c, uint32_t from, uint32_t to, void *x, void *by_way_of)
{
    const enum kern_dtype was = layout_dtype(c->l, from), is = layout_dtype(c->l, to);
    const int64_t n = c->batch.ntok, d = c->m->hidden;
    c->dtype = is;
    if (was == is)
        return;
    c->device->ops->cast(c->stream, mat(c, by_way_of, d), (struct kern_cmat){ x, d, was }, n, d);
    c->device->ops->cast(c->stream, mat(c, x, d), cmat(c, by_way_of, d), n, d);
}

struct dora_widths {
    int64_t u, dy, dropped;
};

static void widen_for(void *ctx, const struct linear *const *layers, int n)
{
    struct dora_widths *w = ctx;
    int64_t all = 0;
    for (int i = 0; i < n; i++) {
        const struct linear *lin = layers[i];
        all += lin->nout;
        w->u = lin->magnitude < 0 ? w->u : most(w->u, lin->nout);
        w->dy = lin->magnitude < 0 ? w->dy : most(w->dy, all);
        w->dropped = lin->magnitude < 0 ? w->dropped : most(w->dropped, lin->nin);
    }
}

/* Widths of DoRA's buffers, per token; zeros without DoRA. */
static struct dora_widths dora_widths(const struct layout *l)
{
    struct dora_widths w = { 0 };
    layout_each(l, widen_for, &w);
    for (int i = 0; l->flux2 && i < 2; i++) /* a decoder's have no DoRA */
        widen_for(&w, (const struct linear *[]){ i ? &l->head : &l->embed }, 1);
    return w;
}

void compute_alloc_dora(struct compute *c, struct bump *v, int64_t ntok, bool backward)
{
    const struct dora_widths w = dora_widths(c->l);
    c->norms = bump_floats(v, c->l->norms_nelem);
    c->u = bump_acts(v, c->widest, ntok * w.u);
    c->dy = bump_acts(v, c->widest, backward ? ntok * w.dy : 0);
    c->dropped = bump_acts(v, c->widest, c->dropout > 0 ? ntok * w.dropped : 0);
}

int64_t compute_whole_units(const struct compute *c, int64_t ntok)
{
    const int64_t unit = c->device->row_unit;
    return (ntok + unit - 1) / unit * unit;
}

void compute_alloc_blocks(struct compute *c, struct bump *v,
                          void (*alloc)(struct compute *c, struct bump *v, int64_t number))
{
    const int64_t nlayer = c->m->nlayer, first = compute_first_layer(c->l);
    const size_t begin = v->at;
    size_t end = v->at;
    for (int64_t i = 0; i < nlayer; i++) {
        if (i >= first && !c->blocks[i].recomputed)
            continue;
        v->at = begin;
        alloc(c, v, i);
        end = v->at > end ? v->at : end;
    }
    v->at = end;
    for (int64_t i = first; i < nlayer; i++)
        if (!c->blocks[i].recomputed)
            alloc(c, v, i);
}

static void join_device(struct compute *c, const struct compute *other)
{
    c->device = other->device;
    c->index = other->index;
    c->pool = other->pool;
    c->stream = other->stream;
}

static int start_device(struct compute *c, const struct compute_device *where, struct fsdpck_error *err)
{
    char message[KERN_MESSAGE_BYTES] = "no threads";
    c->device = where->device;
    c->index = where->index;
    c->pool = kern_pool_new(where->nthreads);
    if (!c->pool || c->device->stream_new(c->index, c->pool, &c->stream, message) != KERN_OK)
        return fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "the kernels of device '%s' cannot start: %s",
                                c->device->name, message);
    return 0;
}

static int allocate_host(struct compute *c, struct fsdpck_error *err)
{
    char message[KERN_MESSAGE_BYTES] = "";
    const struct kern_location pinned = { .kind = KERN_MEMORY_PINNED, .index = c->index };
    struct bump v = { 0 };
    c->parts->alloc_host(c, &v);
    if (c->device->memory->alloc(pinned, v.at, &c->host, message) != KERN_OK)
        return fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "no memory for the batch of %lld tokens: %s",
                                (long long)c->ntok, message);
    v = (struct bump){ .base = c->host.data };
    c->parts->alloc_host(c, &v);
    return 0;
}

int compute_send_rope_tables(struct compute *c, int64_t ntok, struct fsdpck_error *err)
{
    const size_t n = (size_t)(ntok * c->m->rope.dim / 2), nbytes = n * sizeof(float);
    double *frequencies = calloc((size_t)c->m->rope.dim, sizeof *frequencies);
    float *tables = calloc(2 * n + 1, sizeof *tables);
    int rc = frequencies && tables ? 0 : fsdpck_error_nomem(err, 2 * nbytes);
    if (!rc) {
        kern_rope_tables(&c->m->rope, ntok, tables, tables + n, frequencies);
        c->device->memory->copy(c->stream, c->cosines, tables, nbytes);
        c->device->memory->copy(c->stream, c->sines, tables + n, nbytes);
        rc = compute_sync(c, err);
    }
    free(frequencies);
    free(tables);
    return rc;
}

static void describe(struct compute *c, const struct model *m, const struct layout *l,
                     const struct train_config *config)
{
    c->m = m;
    c->parts = m->family ? &decoder_parts : &flux2_parts;
    c->l = l;
    c->whole = c->beside && c->beside->whole->ntrained ? c->beside->whole : l;
    c->dtype = layout_dtype(l, 0);
    c->widest = layout_widest(l);
    c->nowners = (int64_t)config->fsdp.expert_parallel;
    c->output = config->dtype.output == TRAIN_BF16 ? KERN_BF16 : KERN_F32;
    c->dropout = (float)config->lora.dropout;
    c->seed = config->seed;
    measure_experts(c);
}

static int make_tables(struct compute *c, struct fsdpck_error *err)
{
    c->nuses = compute_uses(c->whole, &c->nforward, NULL);
    c->uses = calloc(c->nuses, sizeof *c->uses);
    c->blocks = calloc((size_t)c->m->nlayer, sizeof *c->blocks);
    c->group_data = c->beside ? c->beside->group_data : calloc(c->l->ngroups, sizeof *c->group_data);
    c->starts = calloc((size_t)(c->m->nlayer * (c->m->nexperts + 1)), sizeof *c->starts);
    if (!c->uses || !c->blocks || !c->group_data || !c->starts)
        return fsdpck_error_nomem(err, (size_t)c->m->nlayer * sizeof *c->blocks);
    for (int64_t i = 0; i < c->m->nlayer; i++)
        c->blocks[i].routed.starts = c->starts + i * (c->m->nexperts + 1);
    compute_uses(c->whole, &c->nforward, c->uses);
    return c->parts->open ? c->parts->open(c, err) : 0;
}

/* where NULL: beside another one. */
static int new_bare(const struct compute *beside, const struct model *m, const struct layout *l,
                    const struct train_config *config, const struct compute_device *where, struct compute **out,
                    struct fsdpck_error *err)
{
    struct compute *c = calloc(1, sizeof *c);
    int rc = c ? 0 : fsdpck_error_nomem(err, sizeof *c);
    *out = NULL;
    if (rc)
        return rc;
    c->beside = beside;
    describe(c, m, l, config);
    if (beside)
        join_device(c, beside);
    rc = make_tables(c, err);
    if (!rc && where)
        rc = start_device(c, where, err);
    if (rc)
        compute_free(c);
    else
        *out = c;
    return rc;
}

int compute_new_bare(const struct model *m, const struct layout *l, const struct train_config *config,
                     const struct compute_device *where, struct compute **out, struct fsdpck_error *err)
{
    return new_bare(NULL, m, l, config, where, out, err);
}

/* Gives a bare one the sizes of its micro-batches. */
static void size(struct compute *c, int64_t ntok, size_t ndocs)
{
    for (int64_t i = 0; i < c->m->nlayer; i++) {
        c->blocks[i].checkpointing = c->l->blocks[i].checkpointing;
        c->nchoices += c->blocks[i].checkpointing == TRAIN_RECOMPUTE_AUTO;
    }
    c->ntok = compute_whole_units(c, ntok);
    c->ndocs = ndocs + 1; /* plus the padding */
    compute_recompute(c, 0);
}

int compute_new(const struct model *m, const struct layout *l, const struct train_config *config, int64_t ntok,
                size_t ndocs, const struct compute_device *where, struct compute **out, struct fsdpck_error *err)
{
    int rc = new_bare(NULL, m, l, config, where, out, err);
    if (!rc)
        size(*out, ntok, ndocs);
    return rc;
}

int compute_new_beside(const struct compute *other, const struct model *m, const struct layout *l,
                       const struct train_config *config, int64_t ntok, size_t ndocs, struct compute **out,
                       struct fsdpck_error *err)
{
    int rc = new_bare(other, m, l, config, NULL, out, err);
    if (!rc)
        size(*out, ntok, ndocs);
    return rc;
}

void compute_recompute(struct compute *c, int64_t n)
{
    struct bump v = { 0 };
    c->nrecomputed = 0;
    for (int64_t i = 0; i < c->m->nlayer; i++) {
        struct block *b = &c->blocks[i];
        b->recomputed =
            b->checkpointing == TRAIN_RECOMPUTE_BLOCK || (b->checkpointing == TRAIN_RECOMPUTE_AUTO && n-- > 0);
        c->nrecomputed += b->recomputed;
    }
    c->parts->alloc(c, &v);
    c->nbytes = v.at;
}

void compute_set_values(struct compute *c, unsigned char *values)
{
    for (uint32_t i = 0; i < c->l->ngroups; i++)
        c->group_data[i].data = values;
    c->values = values;
}

int compute_bind(struct compute *c, void *memory, unsigned char *values, float *grads, struct fsdpck_error *err)
{
    struct bump v = { .base = memory };
    c->parts->alloc(c, &v);
    c->grads = grads;
    c->values = values; /* group_data of one beside another is the other's */
    if (!c->beside)
        compute_set_values(c, values);
    int rc = allocate_host(c, err);
    if (!rc)
        rc = replays_new(c, err);
    return rc || !c->parts->start ? rc : c->parts->start(c, err);
}

void compute_free(struct compute *c)
{
    if (!c)
        return;
    if (c->device) {
        if (!c->beside)
            c->device->stream_free(c->stream);
        replays_free(c);
        c->device->memory->free(&c->host);
    }
    if (!c->beside) {
        kern_pool_free(c->pool);
        free(c->group_data);
    }
    if (c->parts && c->parts->close)
        c->parts->close(c);
    free(c->blocks);
    free(c->starts);
    free(c->uses);
    free(c);
}
