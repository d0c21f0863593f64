/* SPDX-License-Identifier: Apache-2.0 */
/* See megatron.h: a layout view whose tensors are rows of Megatron's. */
#include "view/megatron.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "hf/config.h"
#include "hf/weight_names.h"
#include "tensor/shape_text.h"
#include "view/layout.h"
#include "view/megatron_table.h"

#define EMBEDDING "embedding.word_embeddings.weight"
#define LAYERS    "decoder.layers."
#define EXPERTS   "mlp.experts.experts."
#define MTP       "mtp.layers."

struct builder {
    struct fsdpck_source *src;
    struct fsdpck_layout *layout;
    struct fsdpck_megatron_config config;
    const char *embedding; /* its name */
    size_t prefix;         /* bytes of it before Megatron's own names, which all begin so */
    uint64_t nmtp;         /* layers for multi-token prediction that it has */
    const char *state;     /* of the optimizer's states, the one that is shown ("exp_avg"); NULL: the weights */
    size_t nleft;
    struct fsdpck_error *err;
};

/* One of Megatron's tensors, and the part of it that is shown. */
struct part {
    size_t inner; /* that stores it */
    const struct fsdpck_tensor *t;
    uint32_t nlead;   /* leading axes: layer, expert */
    uint64_t lead[2]; /* index in each */
    uint64_t layer, expert;
    bool routed; /* of an expert */
};

static int refuse(const struct builder *b, const struct fsdpck_tensor *t, const char *what)
{
    char shape[240];
    fsdpck_error_set(b->err, FSDPCK_ERR_UNSUPPORTED, b->src->path, "%s %s", fsdpck_shape_text(t, shape, sizeof shape),
                     what);
    fsdpck_error_tensor(b->err, t->name);
    return b->err->code;
}

/* ---- the optimizer's states ---- */

#define OPTIMIZER "optimizer.state."
#define MASTER    "fp32_param"

/* States have the shapes of their weights, and are trees beside them, as DeepSpeed's are: master.NAME, and
 * optim.state.NAME.exp_avg. The tensor was added last. */
static int set_path(struct builder *b, const char *name)
{
    const bool master = strcmp(b->state, MASTER) == 0;
    struct fsdpck_tensor *t = (struct fsdpck_tensor *)b->src->tensors.data + (b->src->tensors.count - 1);
    struct fsdpck_key *path = fsdpck_arena_array(&b->src->arena, 4, sizeof *path, b->err);
    const char *own = path ? fsdpck_arena_strndup(&b->src->arena, name, strlen(name), b->err) : NULL;
    if (!own)
        return FSDPCK_ERR_NOMEM;
    path[0] = (struct fsdpck_key){ master ? "master" : "optim", 0 };
    path[1] = (struct fsdpck_key){ master ? own : "state", 0 };
    path[2] = (struct fsdpck_key){ own, 0 };
    path[3] = (struct fsdpck_key){ strcmp(b->state, "exp_avg") == 0 ? "exp_avg" : "exp_avg_sq", 0 };
    t->path = path;
    t->npath = master ? 2 : 4;
    return 0;
}

/* Writes the name that a weight or its state has. */
static void shown_name(const struct builder *b, const char *name, char *out, size_t nbytes)
{
    if (!b->state)
        snprintf(out, nbytes, "%s", name);
    else if (strcmp(b->state, MASTER) == 0)
        snprintf(out, nbytes, "master.%s", name);
    else
        snprintf(out, nbytes, "optim.state.%s.%s", name, b->state);
}

/* ---- rows ---- */

/* Shows rows of a part: `count` runs of `run` rows, `step` rows apart, from `first` on. */
static int show_rows(struct builder *b, const struct part *p, const char *name, uint64_t first, uint64_t run,
                     uint64_t step, uint64_t count)
{
    static const uint32_t dims_of[3][2] = { { 0, 1 }, { 1, 2 }, { 2, 3 } };
    const uint32_t ndim = p->t->ndim - p->nlead;
    const uint64_t ncols = ndim > 1 ? p->t->shape[p->t->ndim - 1] : 1, shape[2] = { run * count, ncols };
    char shown[FSDPCK_MEGATRON_NAME_NBYTES + 40];
    uint64_t *numbers = calloc(count, 8 * sizeof *numbers);
    struct fsdpck_layout_piece *pieces = calloc(count, sizeof *pieces);
    int rc = numbers && pieces ? 0 : fsdpck_error_nomem(b->err, count * sizeof *pieces);
    for (uint64_t i = 0; i < count && !rc; i++) {
        uint64_t *offset = numbers + 8 * i, *size = offset + 2, *from = offset + 4;
        offset[0] = i * run;
        size[0] = run;
        size[1] = ncols;
        memcpy(from, p->lead, p->nlead * sizeof *from);
        from[p->nlead] = first + i * step;
        pieces[i] = (struct fsdpck_layout_piece){ p->inner, offset, size, from, dims_of[p->nlead] };
    }
    shown_name(b, name, shown, sizeof shown);
    if (!rc)
        rc = fsdpck_layout_add(b->layout, shown, p->t->dtype, ndim, shape, pieces, count, b->err);
    if (!rc && b->state)
        rc = set_path(b, name);
    free(numbers);
    free(pieces);
    return rc;
}

/* Shows rows of a part as the weight that the table calls `to`. */
static int show_as(struct builder *b, const struct part *p, const char *to, uint64_t first, uint64_t run, uint64_t step,
                   uint64_t count)
{
    char name[FSDPCK_MEGATRON_NAME_NBYTES];
    if (p->routed)
        fsdpck_megatron_expert_name(&b->config, p->layer, p->expert, to, name, sizeof name);
    else
        fsdpck_megatron_name(&b->config, p->layer, to, name, sizeof name);
    return show_rows(b, p, name, first, run, step, count);
}

static int show_qkv(struct builder *b, const struct part *p, const struct fsdpck_megatron_row *r, uint64_t nrows)
{
    const uint64_t groups = b->config.kv_heads, each = b->config.heads / groups; /* heads of q in a group */
    const uint64_t dim = nrows / (groups * (each + 2)), step = dim * (each + 2);
    const uint64_t first[3] = { 0, each * dim, (each + 1) * dim }, run[3] = { each * dim, dim, dim };
    int rc = 0;
    if (b->config.heads % groups != 0 || nrows != groups * step)
        return refuse(b, p->t, "are no rows of q, k and v for the heads that config.json states");
    for (int i = 0; i < 3 && !rc; i++)
        rc = show_as(b, p, r->to[i], first[i], run[i], step, groups);
    return rc;
}

static int show_part(struct builder *b, const struct part *p, const struct fsdpck_megatron_row *r)
{
    const uint32_t ndim = p->t->ndim - p->nlead;
    const uint64_t nrows = p->t->shape[p->nlead], nparts = r->to[1] ? 2 : 1;
    const uint64_t wide = r->hidden == OUTPUT_HIDDEN ? nrows : p->t->shape[p->t->ndim - 1];
    int rc = 0;
    if (ndim > 2 || (r->hidden != ANY && (ndim != 2 || wide != b->config.hidden)))
        return refuse(b, p->t, "is not the shape that hidden_size in config.json gives");
    if (r->to[2])
        return show_qkv(b, p, r, nrows);
    if (nrows % nparts != 0)
        return refuse(b, p->t, "has no two halves, gate and up");
    for (uint64_t i = 0; i < nparts && !rc; i++)
        rc = show_as(b, p, r->to[i], i * (nrows / nparts), nrows / nparts, 0, 1);
    return rc;
}

/* ---- names ---- */

/* Reads "12." at *s; false if there is no number. */
static bool take_index(const char **s, uint64_t *out)
{
    char *end;
    if (**s < '0' || **s > '9')
        return false;
    *out = strtoull(*s, &end, 10);
    if (*end != '.')
        return false;
    *s = end + 1;
    return true;
}

/* Shows one layer of a tensor that holds experts. rest: after "mlp.experts.experts.". */
static int show_experts(struct builder *b, struct part *p, const char *rest)
{
    uint64_t number = 0, count = 1;
    const bool axis = !take_index(&rest, &number);
    const struct fsdpck_megatron_row *r =
        fsdpck_megatron_find(fsdpck_megatron_expert_rows, rest, fsdpck_megatron_traits(&b->config, p->layer));
    int rc = 0;
    if (!r || p->t->ndim != p->nlead + (axis ? 3u : 2u))
        return refuse(b, p->t, "has no place among the experts of a Hugging Face model");
    if (axis) {
        count = p->t->shape[p->nlead];
        p->nlead++;
    }
    if (axis ? count != b->config.experts : number >= b->config.experts)
        return refuse(b, p->t, "does not fit the number of experts in config.json");
    p->routed = true;
    for (uint64_t e = 0; e < count && !rc; e++) {
        p->expert = axis ? e : number;
        if (axis)
            p->lead[p->nlead - 1] = e;
        rc = show_part(b, p, r);
    }
    p->nlead -= axis;
    return rc;
}

static int show_layer(struct builder *b, struct part *p, const char *rest, uint64_t number)
{
    const struct fsdpck_megatron_row *r =
        fsdpck_megatron_find(fsdpck_megatron_layer_rows, rest, fsdpck_megatron_traits(&b->config, number));
    p->layer = number;
    if (strncmp(rest, EXPERTS, strlen(EXPERTS)) == 0)
        return show_experts(b, p, rest + strlen(EXPERTS));
    if (!r || p->t->ndim <= p->nlead)
        return refuse(b, p->t, "has no place in a Hugging Face model of this family");
    return show_part(b, p, r);
}

/* rest: after "decoder.layers.". */
static int show_layers(struct builder *b, struct part *p, const char *rest)
{
    uint64_t number = 0;
    int rc = 0;
    if (take_index(&rest, &number))
        return number < b->config.layers ? show_layer(b, p, rest, number)
                                         : refuse(b, p->t, "belongs to a layer beyond num_hidden_layers");
    if (p->t->ndim < 2 || p->t->shape[0] != b->config.layers)
        return refuse(b, p->t, "does not have num_hidden_layers in its first dimension");
    p->nlead = 1;
    for (uint64_t i = 0; i < b->config.layers && !rc; i++) {
        p->lead[0] = i;
        rc = show_layer(b, p, rest, i);
    }
    return rc;
}

/* rest: after "mtp.layers.". Such a layer follows the others, and holds one of them under a name of its own. */
static int show_mtp(struct builder *b, struct part *p, const char *rest)
{
    static const char *const inner[] = { "transformer_layer.", "mtp_model_layer." };
    uint64_t number = 0;
    if (!take_index(&rest, &number) || number >= b->nmtp)
        return refuse(b, p->t, "belongs to a layer beyond num_nextn_predict_layers");
    p->layer = b->config.layers + number;
    for (size_t i = 0; i < sizeof inner / sizeof *inner; i++)
        if (strncmp(rest, inner[i], strlen(inner[i])) == 0)
            return show_layer(b, p, rest + strlen(inner[i]), p->layer);
    const struct fsdpck_megatron_row *r = fsdpck_megatron_find(fsdpck_megatron_mtp_rows, rest, 0);
    return !r || !p->t->ndim ? refuse(b, p->t, "has no place in a Hugging Face model of this family")
                             : show_part(b, p, r);
}

/* Rows of padding after the vocabulary are left out. Layers for multi-token prediction share it with the model in
 * Megatron, and are published with copies: in_layer is the name of theirs. */
static int show_vocabulary(struct builder *b, const struct part *p, const char *name, const char *in_layer)
{
    char copy[FSDPCK_MEGATRON_NAME_NBYTES];
    if (p->t->ndim != 2 || p->t->shape[0] < b->config.vocab || p->t->shape[1] != b->config.hidden)
        return refuse(b, p->t, "does not hold vocab_size rows of hidden_size");
    int rc = show_rows(b, p, name, 0, b->config.vocab, 0, 1);
    for (uint64_t i = 0; i < b->nmtp && !b->state && !rc; i++) {
        fsdpck_megatron_name(&b->config, b->config.layers + i, in_layer, copy, sizeof copy);
        rc = show_rows(b, p, copy, 0, b->config.vocab, 0, 1);
    }
    return rc;
}

static bool is_state(const struct fsdpck_tensor *t)
{
    return fsdpck_weight_is_state(t) || strstr(t->name, "optimizer.");
}

/* Returns the name of the weight that a tensor of the optimizer belongs to, and sets b->state; NULL: another kind of
 * state. */
static const char *weight_of(struct builder *b, const char *name)
{
    static const char *const kinds[] = { MASTER, "exp_avg", "exp_avg_sq" };
    const char *at = strstr(name, OPTIMIZER);
    for (size_t i = 0; at && i < sizeof kinds / sizeof *kinds; i++) {
        const char *rest = at + strlen(OPTIMIZER);
        const size_t n = strlen(kinds[i]);
        if (strncmp(rest, kinds[i], n) == 0 && rest[n] == '.' && strncmp(rest + n + 1, b->embedding, b->prefix) == 0) {
            b->state = kinds[i];
            return rest + n + 1;
        }
    }
    return NULL;
}

static int show_named(struct builder *b, struct part *p, const char *full)
{
    if (strncmp(full, b->embedding, b->prefix) != 0)
        return refuse(b, p->t, "has no place in a Hugging Face model of this family");
    if (!p->t->nelem) /* a few bytes could stand for any number of layers and experts */
        return refuse(b, p->t, "has no elements");
    const char *name = full + b->prefix;
    if (strcmp(name, EMBEDDING) == 0)
        return show_vocabulary(b, p, "model.embed_tokens.weight", "embed_tokens.weight");
    if (strcmp(name, "output_layer.weight") == 0)
        return show_vocabulary(b, p, "lm_head.weight", "shared_head.head.weight");
    if (strcmp(name, "decoder.final_layernorm.weight") == 0 && p->t->ndim == 1)
        return show_rows(b, p, "model.norm.weight", 0, p->t->shape[0], 0, 1);
    if (strncmp(name, LAYERS, strlen(LAYERS)) == 0)
        return show_layers(b, p, name + strlen(LAYERS));
    if (strncmp(name, MTP, strlen(MTP)) == 0)
        return show_mtp(b, p, name + strlen(MTP));
    return refuse(b, p->t, "has no place in a Hugging Face model of this family");
}

static int show(struct builder *b, size_t inner)
{
    const struct fsdpck_tensor *t = &source_tensors(fsdpck_layout_inner(b->layout))[inner];
    struct part p = { .inner = t->alias_of >= 0 ? (size_t)t->alias_of : inner, .t = t };
    const char *name = t->name;
    b->state = NULL;
    if (is_state(t) && !(name = weight_of(b, name))) {
        b->nleft++;
        return 0;
    }
    return show_named(b, &p, name);
}

/* ---- the source ---- */

static const struct fsdpck_tensor *embedding_of(const struct fsdpck_source *src)
{
    for (size_t i = 0; i < src->tensors.count; i++) {
        const struct fsdpck_tensor *t = &source_tensors(src)[i];
        const char *at = strstr(t->name, EMBEDDING);
        if (at && at[strlen(EMBEDDING)] == '\0' && !is_state(t))
            return t;
    }
    return NULL;
}

static bool has_mtp(const struct builder *b)
{
    for (size_t i = 0; i < b->src->tensors.count; i++) {
        const struct fsdpck_tensor *t = &source_tensors(b->src)[i];
        if (!is_state(t) && strlen(t->name) > b->prefix && strncmp(t->name + b->prefix, MTP, strlen(MTP)) == 0)
            return true;
    }
    return false;
}

/* Others (ChatGLM) have an embedding of this name, and no such layers. */
bool fsdpck_megatron_is(const struct fsdpck_source *src)
{
    const struct fsdpck_tensor *embedding = embedding_of(src);
    const size_t prefix = embedding ? strlen(embedding->name) - strlen(EMBEDDING) : 0;
    for (size_t i = 0; embedding && i < src->tensors.count; i++) {
        const char *name = source_tensors(src)[i].name;
        if (strncmp(name, embedding->name, prefix) == 0 && strncmp(name + prefix, LAYERS, strlen(LAYERS)) == 0)
            return true;
    }
    return false;
}

int fsdpck_megatron_set_names(struct fsdpck_source *src, const char *folder, struct fsdpck_error *err)
{
    struct builder b = { .src = src, .err = err };
    const struct fsdpck_tensor *embedding = embedding_of(src);
    const size_t n = src->tensors.count, nitems = src->items.count;
    if (src->norms_plus_one)
        return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, src->path,
                                "was trained with --apply-layernorm-1p, whose norms multiply by 1 + weight: those of "
                                "Hugging Face's models multiply by the weight");
    b.embedding = embedding->name;
    b.prefix = strlen(embedding->name) - strlen(EMBEDDING);
    int rc = fsdpck_megatron_config_read(src, folder, &b.config, err);
    b.nmtp = !rc && has_mtp(&b) ? b.config.mtp_layers : 0;
    if (!rc)
        rc = fsdpck_layout_begin(src, &b.layout, err);
    for (size_t i = 0; i < n && !rc; i++)
        rc = show(&b, i);
    if (!rc)
        rc = fsdpck_megatron_check_all(src, &b.config, b.nmtp, err);
    src->items.count = 0;
    if (!rc)
        fsdpck_weight_note_left_out(src, b.nleft, nitems);
    return rc;
}
