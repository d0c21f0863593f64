/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters and linear layers of any model, one by one. It must not know what a block is. */
#include "model/layout_build.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "arrays/grow.h"
#include "config/target.h"
#include "model/layout_check.h"
#include "model/layout_place.h"

static struct param *next_param(struct layout_builder *b)
{
    struct layout *l = b->l;
    if (!grow((void **)&l->params, &l->capacity, l->nparams + 1, sizeof *l->params))
        return b->rc = fsdpck_error_nomem(b->err, (l->nparams + 1) * sizeof *l->params), NULL;
    return &l->params[l->nparams++];
}

/* Assigns shape, group and trainability to a parameter whose name is set. Returns its number; -1 after a failure.
 * ncol 0: one dimension. */
static int32_t place_param(struct layout_builder *b, struct param *p, uint32_t group, int64_t nrow, int64_t ncol)
{
    struct layout *l = b->l;
    p->ndim = ncol ? 2 : 1;
    p->nrow = nrow;
    p->ncol = ncol ? ncol : 1;
    p->group = group;
    p->trainable = !b->config->frozen && (param_is_adapter(p) || !b->config->lora.enabled);
    p->decay = !p->constant && (ncol > 0 || b->config->train.weight_decay_on == TRAIN_DECAY_ALL);
    p->chunk = (nrow + l->nranks - 1) / l->nranks;
    p->nshards = l->nranks;
    *(p->trainable && !p->constant ? &l->ntrained : &l->nfrozen) += nrow * p->ncol;
    return (int32_t)(p - l->params);
}

/* Adds a parameter that LoRA introduces. */
static int32_t add_adapter_of(struct layout_builder *b, uint32_t group, int64_t nrow, int64_t ncol, const char *path,
                              const char *suffix, int32_t norms_of)
{
    struct param *p = b->rc ? NULL : next_param(b);
    if (!p)
        return -1;
    *p = (struct param){ .norms_of = norms_of, .keeps_fp32 = norms_of >= 0 }; /* a rounded magnitude would scale rows */
    snprintf(p->name, sizeof p->name, "base_model.model.%.200s%s", path, suffix);
    return place_param(b, p, group, nrow, ncol);
}

int32_t build_adapter(struct layout_builder *b, uint32_t group, int64_t nrow, int64_t ncol, const char *path,
                      const char *suffix)
{
    return add_adapter_of(b, group, nrow, ncol, path, suffix, -1);
}

static void add_magnitude(struct layout_builder *b, uint32_t group, struct linear *x)
{
    x->magnitude = add_adapter_of(b, group, x->nout, 0, x->path, ".lora_magnitude_vector", x->w);
    x->norms_at = b->l->norms_nelem;
    b->l->norms_nelem += layout_aligned(x->nout);
}

/* Adds a parameter of the base, or its trained copy. source: the module that has the tensor in the base's files.
 * constant: as in struct param, and fp32. */
int32_t build_base_param(struct layout_builder *b, uint32_t group, int64_t nrow, int64_t ncol, const char *path,
                         const char *source, const char *suffix, bool constant)
{
    struct param *p = b->rc ? NULL : next_param(b);
    if (!p)
        return -1;
    *p = (struct param){ .norms_of = -1,
                         .keeps_fp32 = constant,
                         .constant = constant,
                         .saved = b->config->lora.enabled && target_is_saved(&b->config->lora, path) };
    snprintf(p->source, sizeof p->source, "%s%s", source, suffix);
    snprintf(p->name, sizeof p->name, "%s%.200s%s", p->saved ? "base_model.model." : "", p->saved ? path : source,
             suffix);
    return place_param(b, p, group, nrow, ncol);
}

int32_t build_param_of(struct layout_builder *b, uint32_t group, int64_t nrow, int64_t ncol, const char *path,
                       const char *source, const char *suffix)
{
    return build_base_param(b, group, nrow, ncol, path, source, suffix, false);
}

int32_t build_param(struct layout_builder *b, uint32_t group, int64_t nrow, int64_t ncol, const char *path,
                    const char *suffix)
{
    return build_param_of(b, group, nrow, ncol, path, path, suffix);
}

void build_choose_adapter(struct layout_builder *b, struct linear *x, enum layer_kind kind)
{
    struct target t = { 0 };
    if (b->config->lora.enabled && !b->rc)
        b->rc = target_find(&b->config->lora, x->path, kind != LAYER_EMBEDDING, kind == LAYER_HEAD, &t, b->err);
    if (!t.chosen || b->rc)
        return;
    if (b->config->lora.use_dora && kind != LAYER_LINEAR) {
        b->rc = fsdpck_error_set(b->err, FSDPCK_ERR_UNSUPPORTED, NULL,
                                 "key 'lora.use_dora': an adapter of %s is not supported with DoRA; leave it out of "
                                 "lora.target_modules, or train it whole (lora.modules_to_save)",
                                 x->path);
        return;
    }
    build_take_target(b, &t, x);
}

void build_take_target(struct layout_builder *b, const struct target *t, struct linear *x)
{
    b->ntargets++;
    if (t->rank_pattern != TARGET_NO_PATTERN)
        b->rank_used[t->rank_pattern] = true;
    if (t->alpha_pattern != TARGET_NO_PATTERN)
        b->alpha_used[t->alpha_pattern] = true;
    x->r = t->r;
    x->scale = (float)t->scale;
    x->dropout_name = XXH32(x->path, strlen(x->path), 0);
}

/* Adds the adapters of layers that share their input. All A are adjacent, so that they and their gradients can be used
 * as one matrix. */
void build_adapters(struct layout_builder *b, uint32_t group, struct linear *const *layers, int n)
{
    const bool embeds = b->m->family && layers[0] == &b->l->embed; /* FLUX.2's is a plain layer */
    for (int i = 0; i < n; i++)
        if (layers[i]->r)
            layers[i]->a = build_adapter(b, group, layers[i]->r, layers[i]->nin, layers[i]->path,
                                         embeds ? ".lora_embedding_A" : ".lora_A.weight");
    for (int i = 0; i < n; i++)
        if (layers[i]->r)
            layers[i]->b = build_adapter(b, group, layers[i]->nout, layers[i]->r, layers[i]->path,
                                         embeds ? ".lora_embedding_B" : ".lora_B.weight");
    for (int i = 0; i < n && b->config->lora.use_dora; i++)
        if (layers[i]->r)
            add_magnitude(b, group, layers[i]);
}

/* A weight that stays quantized is frozen, and has the shape that config.json calls for. */
void build_choose_packed(struct layout_builder *b, int32_t number, int64_t nrow, int64_t ncol)
{
    struct param *p = b->rc ? NULL : &b->l->params[number];
    const struct packed_weight *w = p ? packed_find(b->packed, p->source) : NULL;
    if (!w)
        return;
    if (p->trainable)
        b->rc = layout_refuse_packed(p, b->config->lora.enabled, b->packed->held, b->err);
    else if (w->nrow != nrow || w->ncol != ncol)
        b->rc = fsdpck_error_set(b->err, FSDPCK_ERR_FORMAT, NULL,
                                 "quantized weight '%s' has the shape [%lld, %lld]; the configs call for [%lld, %lld]",
                                 p->source, (long long)w->nrow, (long long)w->ncol, (long long)nrow, (long long)ncol);
    else
        p->packed = w;
}

struct linear build_weight(struct layout_builder *b, uint32_t group, int64_t nin, int64_t nout, const char *path)
{
    struct linear x = { .nin = nin, .nout = nout, .w = -1, .bias = -1, .a = -1, .b = -1, .magnitude = -1 };
    snprintf(x.path, sizeof x.path, "%s", path);
    x.w = build_param(b, group, nout, nin, path, ".weight");
    build_choose_packed(b, x.w, nout, nin);
    return x;
}

struct linear build_linear(struct layout_builder *b, uint32_t group, int64_t nin, int64_t nout, bool bias,
                           const char *path)
{
    struct linear x = build_weight(b, group, nin, nout, path);
    if (bias)
        x.bias = build_param(b, group, nout, 0, path, ".bias");
    build_choose_adapter(b, &x, LAYER_LINEAR);
    return x;
}
