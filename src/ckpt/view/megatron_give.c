/* SPDX-License-Identifier: Apache-2.0 */
/* See megatron.h: a layout view whose tensors are joined from published weights. Layers and experts are dimensions;
 * where layers differ (some have experts, some an mlp), they are parts of the names, as Megatron-core does it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/suffix.h"
#include "hf/weight_names.h"
#include "torch/zip/item.h"
#include "view/megatron.h"
#include "view/megatron_join.h"

enum { NAME_NBYTES = FSDPCK_MEGATRON_NAME_NBYTES, MODULE_NBYTES = 128 };
#define EMBEDDING "model.embed_tokens.weight"
#define EXPERTS   "mlp.experts.experts."

struct giver {
    struct fsdpck_source *src, *inner;
    struct fsdpck_layout *layout;
    struct fsdpck_megatron_config config;
    const char *tree;       /* before every name: "" or "model." */
    bool *given;            /* (inner tensors) */
    const uint8_t *nothing; /* (nothing_nbytes) an item of torch.save: a list of None */
    uint64_t nothing_nbytes;
    struct fsdpck_error *err;
};

/* ---- weights ---- */

static int find(const struct giver *g, const char *name, size_t *out)
{
    char full[NAME_NBYTES + 8];
    snprintf(full, sizeof full, "%s%s", g->tree, name);
    *out = fsdpck_names_find(&g->inner->names, full);
    if (*out != SIZE_MAX) {
        g->given[*out] = true;
        return 0;
    }
    fsdpck_error_set(g->err, FSDPCK_ERR_MISSING, g->src->path, "is missing, and config.json demands it");
    fsdpck_error_tensor(g->err, full);
    return FSDPCK_ERR_MISSING;
}

/* Adds the parts of one layer, or of one of its experts (expert NULL: none). */
static int join_layer(struct giver *g, struct fsdpck_megatron_join *j, const struct fsdpck_megatron_row *row,
                      uint64_t layer, const uint64_t *expert)
{
    size_t ordinals[FSDPCK_MEGATRON_MAX_PARTS];
    char name[NAME_NBYTES];
    int n = 0, rc = 0;
    for (; n < FSDPCK_MEGATRON_MAX_PARTS && row->to[n] && !rc; n++) {
        if (expert)
            fsdpck_megatron_expert_name(&g->config, layer, *expert, row->to[n], name, sizeof name);
        else
            fsdpck_megatron_name(&g->config, layer, row->to[n], name, sizeof name);
        rc = find(g, name, &ordinals[n]);
    }
    return rc ? rc : fsdpck_megatron_join_parts(j, ordinals, n, g->err);
}

/* A tensor of Megatron's: layers [first, end), with the layer as a dimension if it is not one. */
struct wanted {
    const char *prefix; /* of the names: "decoder.layers.", with the layer's number if that is no dimension */
    const struct fsdpck_megatron_row *row;
    uint64_t first, end;
    bool experts;
};

static int join_all(struct giver *g, struct fsdpck_megatron_join *j, const struct wanted *w, bool axis)
{
    int rc = 0;
    j->nlead = (uint32_t)axis + w->experts;
    j->lead_shape[0] = axis ? w->end - w->first : g->config.experts;
    j->lead_shape[1] = g->config.experts;
    for (uint64_t i = w->first; i < w->end && !rc; i++) {
        j->lead[0] = axis ? i - w->first : 0;
        if (!w->experts)
            rc = join_layer(g, j, w->row, i, NULL);
        for (uint64_t e = 0; w->experts && e < g->config.experts && !rc; e++) {
            j->lead[axis] = e;
            rc = join_layer(g, j, w->row, i, &e);
        }
    }
    return rc;
}

/* ---- extra states ---- */

/* Linear layers, one of them called eh_proj, have a state for FP8, which Megatron-core asks for; without FP8 it is
 * None. */
static int add_nothing(struct giver *g, const char *name)
{
    struct source_item *item = fsdpck_source_add_item(g->src, name, NULL, 0, g->err);
    if (!item)
        return g->err->code;
    item->data = g->nothing;
    item->pub.nbytes = g->nothing_nbytes;
    return 0;
}

static int make_nothing(struct giver *g)
{
    static const char pickle[] = "\x80\x02]Na.";
    g->nothing_nbytes = fsdpck_item_value(pickle, sizeof pickle - 1, NULL);
    uint8_t *item = fsdpck_arena_alloc(&g->src->arena, g->nothing_nbytes, g->err);
    if (item)
        fsdpck_item_value(pickle, sizeof pickle - 1, item);
    g->nothing = item;
    return item ? 0 : FSDPCK_ERR_NOMEM;
}

static bool has_state(const char *module)
{
    const char *last = strrchr(module, '.') ? strrchr(module, '.') + 1 : module;
    return strncmp(last, "linear_", strlen("linear_")) == 0 || strcmp(last, "eh_proj") == 0;
}

static int add_states(struct giver *g, const char *module, const struct wanted *w, bool axis)
{
    const uint64_t nlayers = axis ? w->end - w->first : 1, nexperts = w->experts ? g->config.experts : 1;
    char name[NAME_NBYTES];
    int rc = 0;
    for (uint64_t i = 0; i < nlayers && !rc; i++)
        for (uint64_t e = 0; e < nexperts && !rc; e++) {
            if (!w->experts)
                snprintf(name, sizeof name, "%s._extra_state/shard_%" PRIu64 "_%" PRIu64, module, i, nlayers);
            else if (axis)
                snprintf(name, sizeof name, "%s._extra_state/shard_%" PRIu64 ".%" PRIu64 "_%" PRIu64 ".%" PRIu64,
                         module, i, e, nlayers, nexperts);
            else
                snprintf(name, sizeof name, "%s._extra_state/shard_%" PRIu64 "_%" PRIu64, module, e, nexperts);
            rc = add_nothing(g, name);
        }
    return rc;
}

/* ---- layers ---- */

static int give(struct giver *g, const struct wanted *w, bool axis)
{
    static const char weight[] = ".weight";
    struct fsdpck_megatron_join j;
    char module[MODULE_NBYTES], name[NAME_NBYTES];
    snprintf(name, sizeof name, "%s%s%s", w->prefix, w->experts ? EXPERTS : "", w->row->from);
    fsdpck_megatron_join_begin(&j, g->layout, &g->config);
    int rc = join_all(g, &j, w, axis);
    if (!rc)
        rc = fsdpck_megatron_join_end(&j, name, g->err);
    fsdpck_megatron_join_free(&j);
    snprintf(module, sizeof module, "%.*s", (int)(strlen(name) - (sizeof weight - 1)), name);
    return !rc && ends_with(w->row->from, weight) && has_state(module) ? add_states(g, module, w, axis) : rc;
}

/* Of several rows for one weight the first is Transformer Engine's, whose names Megatron-core asks for by default. */
static bool is_first(const struct fsdpck_megatron_row *rows, const struct fsdpck_megatron_row *row, unsigned traits)
{
    for (; rows < row; rows++)
        for (int p = 0; p < FSDPCK_MEGATRON_MAX_PARTS && rows->to[p]; p++)
            if ((rows->needs & ~traits) == 0 && strcmp(rows->to[p], row->to[0]) == 0)
                return false;
    return true;
}

static int give_rows(struct giver *g, const char *prefix, uint64_t first, uint64_t end, bool axis)
{
    const unsigned traits = fsdpck_megatron_traits(&g->config, first);
    const struct fsdpck_megatron_row *const tables[] = { fsdpck_megatron_layer_rows, fsdpck_megatron_expert_rows };
    int rc = 0;
    for (int t = 0; t < 2; t++)
        for (const struct fsdpck_megatron_row *row = tables[t]; row->from && !rc; row++) {
            const struct wanted w = { prefix, row, first, end, t == 1 };
            if ((row->needs & ~traits) == 0 && is_first(tables[t], row, traits))
                rc = give(g, &w, axis);
        }
    return rc;
}

static bool is_homogeneous(const struct fsdpck_megatron_config *c)
{
    for (uint64_t i = 1; i < c->layers; i++)
        if (fsdpck_megatron_traits(c, i) != fsdpck_megatron_traits(c, 0))
            return false;
    return true;
}

static int give_layers(struct giver *g)
{
    int rc = 0;
    if (is_homogeneous(&g->config))
        return give_rows(g, "decoder.layers.", 0, g->config.layers, true);
    for (uint64_t i = 0; i < g->config.layers && !rc; i++) {
        char prefix[64];
        snprintf(prefix, sizeof prefix, "decoder.layers.%" PRIu64 ".", i);
        rc = give_rows(g, prefix, i, i + 1, false);
    }
    return rc;
}

/* ---- layers for multi-token prediction ---- */

static bool has_weight(const struct giver *g, uint64_t layer, const char *to, size_t *out)
{
    char name[NAME_NBYTES], full[NAME_NBYTES + 8];
    fsdpck_megatron_name(&g->config, layer, to, name, sizeof name);
    snprintf(full, sizeof full, "%s%s", g->tree, name);
    *out = fsdpck_names_find(&g->inner->names, full);
    return *out != SIZE_MAX;
}

/* Megatron shares the vocabulary with these layers: their copies of it have no place. */
static void leave_copies(struct giver *g, uint64_t layer)
{
    static const char *const copies[] = { "embed_tokens.weight", "shared_head.head.weight" };
    char line[200];
    bool any = false;
    size_t at;
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++)
        if (has_weight(g, layer, copies[i], &at))
            any = g->given[at] = true;
    snprintf(line, sizeof line,
             "layer %" PRIu64 ", for multi-token prediction, shares embedding and head with the model: its copies are "
             "left out",
             layer);
    if (any && g->src->opt.note)
        g->src->opt.note(g->src->opt.ctx, line);
}

static int give_mtp_layer(struct giver *g, uint64_t number)
{
    const uint64_t layer = g->config.layers + number;
    char own[64], inner[96];
    snprintf(own, sizeof own, "mtp.layers.%" PRIu64 ".", number);
    snprintf(inner, sizeof inner, "%stransformer_layer.", own);
    int rc = give_rows(g, inner, layer, layer + 1, false);
    for (const struct fsdpck_megatron_row *row = fsdpck_megatron_mtp_rows; row->from && !rc; row++) {
        const struct wanted w = { own, row, layer, layer + 1, false };
        rc = give(g, &w, false);
    }
    leave_copies(g, layer);
    return rc;
}

static int give_mtp(struct giver *g)
{
    uint64_t layer;
    int rc = 0;
    bool any = false;
    for (size_t i = 0; i < g->inner->tensors.count && !any; i++)
        any = fsdpck_weight_in_layer(fsdpck_weight_name(&source_tensors(g->inner)[i]), &layer) &&
              layer >= g->config.layers;
    for (uint64_t i = 0; any && i < g->config.mtp_layers && !rc; i++)
        rc = give_mtp_layer(g, i);
    return rc;
}

/* ---- the rest ---- */

static int give_whole(struct giver *g, const char *published, const char *name)
{
    size_t ordinal;
    int rc = find(g, published, &ordinal);
    return rc ? rc : fsdpck_layout_pass(g->layout, ordinal, name, g->err);
}

static int refuse_left(const struct giver *g, const char *name)
{
    uint64_t layer;
    const bool surplus = fsdpck_weight_in_layer(name, &layer) && layer >= g->config.layers;
    if (surplus)
        fsdpck_error_set(g->err, FSDPCK_ERR_UNSUPPORTED, g->src->path,
                         "is of layer %" PRIu64 ", and config.json names %" PRIu64 " layers", layer, g->config.layers);
    else
        fsdpck_error_set(g->err, FSDPCK_ERR_UNSUPPORTED, g->src->path,
                         "has no place in Megatron's model of this family");
    fsdpck_error_tensor(g->err, name);
    fsdpck_error_hint(g->err, surplus ? "--exclude leaves it out" : "quantized weights need --dequantize bf16 too");
    return FSDPCK_ERR_UNSUPPORTED;
}

/* Vision towers, scales of quantized weights, layers that config.json does not count. */
static int check_all_given(const struct giver *g, size_t *nleft)
{
    for (size_t i = 0; i < g->inner->tensors.count; i++) {
        const struct fsdpck_tensor *t = &source_tensors(g->inner)[i];
        const bool head = strcmp(fsdpck_weight_name(t), "lm_head.weight") == 0; /* tied, where it is not given */
        *nleft += !g->given[i] && fsdpck_weight_is_state(t);
        if (!g->given[i] && !head && !fsdpck_weight_is_state(t))
            return refuse_left(g, fsdpck_weight_name(t));
    }
    return 0;
}

static int give_all(struct giver *g, size_t *nleft)
{
    int rc = give_whole(g, EMBEDDING, "embedding.word_embeddings.weight");
    if (!rc)
        rc = make_nothing(g);
    if (!rc)
        rc = give_layers(g);
    if (!rc)
        rc = give_mtp(g);
    if (!rc)
        rc = give_whole(g, "model.norm.weight", "decoder.final_layernorm.weight");
    if (!rc && !g->config.tied)
        rc = give_whole(g, "lm_head.weight", "output_layer.weight");
    return rc ? rc : check_all_given(g, nleft);
}

static void note(const struct giver *g)
{
    char line[160];
    snprintf(line, sizeof line, "--names megatron: the weights of this %s are taken as Megatron-core has them",
             g->config.moe.model_type);
    if (g->src->opt.note)
        g->src->opt.note(g->src->opt.ctx, line);
}

int fsdpck_megatron_give_names(struct fsdpck_source *src, const char *folder, struct fsdpck_error *err)
{
    const size_t n = src->tensors.count, nitems = src->items.count;
    struct giver g = { .src = src, .err = err, .given = calloc(n + 1, sizeof *g.given) };
    size_t nleft = 0;
    g.tree = fsdpck_names_find(&src->names, "model." EMBEDDING) == SIZE_MAX ? "" : "model.";
    int rc = g.given ? fsdpck_megatron_config_read(src, folder, &g.config, err) : fsdpck_error_nomem(err, n);
    if (!rc)
        rc = fsdpck_layout_begin(src, &g.layout, err);
    if (!rc) {
        g.inner = fsdpck_layout_inner(g.layout);
        src->items.count = 0;
        rc = give_all(&g, &nleft);
    }
    free(g.given);
    src->for_megatron = !rc;
    if (!rc) {
        note(&g);
        fsdpck_weight_note_left_out(src, nleft, nitems);
    }
    return rc;
}
