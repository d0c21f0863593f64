/* SPDX-License-Identifier: Apache-2.0 */
/* export-lora, start to end: finds the adapter, chooses names and configuration, and lets the export write it. Checks
 * every value during the transfer. */
#include <fsdpck/lora.h>

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/hash.h"
#include "base/ioutil.h"
#include "base/suffix.h"
#include "hf/config.h"
#include "lora/facts.h"
#include "lora/flux2.h"
#include "lora/fuse.h"
#include "lora/operands.h"
#include "lora/styles.h"
#include "verbs/export_with.h"
#include "view/experts.h"

enum { PIECE = 1024 }; /* elements per check */

struct lora_export {
    struct fsdpck_source *src;
    const struct fsdpck_export_lora_request *req;
    struct fsdpck_options opt;
    struct fsdpck_lora_adapter adapter;
    struct fsdpck_lora_facts facts;
    struct fsdpck_selection out; /* the tensors to write */
    const uint64_t **shapes;     /* (out.ntensors) */
    uint32_t *ndims;
    bool *used; /* (adapter.selection.ntensors) the tensor is written */
    bool *is_b;
    atomic_bool *nonzero;              /* some element is not zero */
    struct fsdpck_export_extra *extra; /* (nextra) the scaling of each module */
    size_t nextra;
    float *alphas;
    struct fsdpck_text metadata;
    struct fsdpck_assets_out assets;
    struct fsdpck_error *err;
};

/* ---- choosing the tensors ---- */

static int push(struct lora_export *x, int64_t position, const char *name)
{
    struct fsdpck_chosen *c = &x->out.tensors[x->out.ntensors];
    *c = x->adapter.selection.tensors[position];
    c->name = name;
    x->used[position] = true;
    c->alias_of = -1; /* in an adapter, two names of one tensor are two tensors */
    x->out.ntensors++;
    return 0;
}

/* ComfyUI and LyCORIS multiply by a magnitude with one row per output. */
static int as_column(struct lora_export *x, size_t at, const struct fsdpck_lora_module *m)
{
    uint32_t ndim = lora_tensor(&x->adapter, m->a)->ndim;
    uint64_t *shape = fsdpck_arena_array(&x->adapter.arena, ndim, sizeof *shape, x->err);
    if (!shape)
        return FSDPCK_ERR_NOMEM;
    for (uint32_t d = 0; d < ndim; d++)
        shape[d] = d ? 1 : lora_tensor(&x->adapter, m->magnitude)->nelem;
    x->shapes[at] = shape;
    x->ndims[at] = ndim;
    return 0;
}

static int push_part(struct lora_export *x, const struct fsdpck_lora_module *m, enum fsdpck_lora_part part,
                     int64_t position)
{
    const char *name;
    if (position < 0)
        return 0;
    int rc = fsdpck_lora_style_name(&x->adapter, x->req->style, m, part, &name, x->err);
    if (rc)
        return rc;
    size_t at = x->out.ntensors;
    x->is_b[at] = part == LORA_PART_B;
    push(x, position, name);
    return part == LORA_PART_MAGNITUDE && lora_style_has_alpha(x->req->style) ? as_column(x, at, m) : 0;
}

static int push_alpha(struct lora_export *x, const struct fsdpck_lora_module *m)
{
    struct fsdpck_export_extra *extra = &x->extra[x->nextra];
    x->alphas[x->nextra] = (float)fsdpck_lora_style_alpha(&x->adapter, m);
    *extra = (struct fsdpck_export_extra){ .dtype = FSDPCK_FLOAT32, .data = &x->alphas[x->nextra] };
    x->nextra++;
    return fsdpck_lora_style_name(&x->adapter, x->req->style, m, LORA_PART_ALPHA, &extra->name, x->err);
}

static int push_module(struct lora_export *x, const struct fsdpck_lora_module *m)
{
    int rc = push_part(x, m, LORA_PART_A, m->a);
    if (!rc)
        rc = push_part(x, m, LORA_PART_B, m->b);
    if (!rc)
        rc = push_part(x, m, LORA_PART_BIAS, m->bias);
    if (!rc)
        rc = push_part(x, m, LORA_PART_MAGNITUDE, m->magnitude);
    return !rc && lora_style_has_alpha(x->req->style) && !m->folded ? push_alpha(x, m) : rc;
}

static int push_plain(struct lora_export *x, const char *key, int64_t position)
{
    size_t nbytes = sizeof "base_model.model." + strlen(key);
    char *name = fsdpck_arena_alloc(&x->adapter.arena, nbytes, x->err);
    if (!name)
        return FSDPCK_ERR_NOMEM;
    strcpy(stpcpy(name, "base_model.model."), key);
    return push(x, position, name);
}

/* Guesses from the name whether the module is the input embedding. */
static bool is_embedding(const char *module)
{
    const char *dot = strrchr(module, '.'), *last = dot ? dot + 1 : module;
    return strstr(last, "emb") || strcmp(last, "wte") == 0;
}

/* A tied head trains the embedding's rows. A checkpoint lists them under both names, PEFT's file only once, without a
 * separate tensor for the head. */
static int is_tied_copy(const struct lora_export *x, const struct fsdpck_lora_tokens *k, bool *copy)
{
    const struct fsdpck_lora_adapter *a = &x->adapter;
    const struct fsdpck_tensor *own = lora_tensor(a, k->position);
    int rc = 0;
    *copy = false;
    for (size_t i = 0; i < a->tokens.count && !rc && !*copy; i++) {
        const struct fsdpck_lora_tokens *o = &lora_tokens(a)[i];
        bool first = fsdpck_lora_config_names_tokens(&a->config, o->module) ||
                     (is_embedding(o->module) && !is_embedding(k->module));
        if (first && o != k && !fsdpck_lora_config_names_tokens(&a->config, k->module) &&
            lora_tensor(a, o->position)->shape[1] == own->shape[1] && o->nrows == k->nrows &&
            memcmp(o->rows, k->rows, k->nrows * sizeof *k->rows) == 0)
            rc = fsdpck_lora_same(a, k->position, o->position, copy, x->err);
    }
    return rc;
}

static int push_tokens(struct lora_export *x, const struct fsdpck_lora_tokens *k)
{
    bool copy;
    int rc = is_tied_copy(x, k, &copy);
    if (rc || !copy)
        return rc ? rc : push_plain(x, k->key, k->position);
    x->used[k->position] = true;
    fsdpck_lora_note(&x->opt, "'%s' is a copy of the embedding's: it is written once, as PEFT has tied rows",
                     lora_tensor(&x->adapter, k->position)->name);
    return 0;
}

static int allocate(struct lora_export *x)
{
    struct fsdpck_arena *a = &x->adapter.arena;
    size_t n = 4 * x->adapter.modules.count + x->adapter.whole.count + x->adapter.tokens.count,
           k = x->adapter.modules.count;
    x->out.tensors = fsdpck_arena_array(a, n, sizeof *x->out.tensors, x->err);
    x->shapes = fsdpck_arena_array(a, n, sizeof *x->shapes, x->err);
    x->ndims = fsdpck_arena_array(a, n, sizeof *x->ndims, x->err);
    x->used = fsdpck_arena_array(a, x->adapter.selection.ntensors, sizeof *x->used, x->err);
    x->is_b = fsdpck_arena_array(a, n, sizeof *x->is_b, x->err);
    x->nonzero = fsdpck_arena_array(a, n, sizeof *x->nonzero, x->err);
    x->extra = fsdpck_arena_array(a, k, sizeof *x->extra, x->err);
    x->alphas = fsdpck_arena_array(a, k, sizeof *x->alphas, x->err);
    return x->out.tensors && x->shapes && x->ndims && x->used && x->is_b && x->nonzero && x->extra && x->alphas
               ? 0
               : FSDPCK_ERR_NOMEM;
}

static int list(struct lora_export *x)
{
    int rc = allocate(x);
    for (size_t i = 0; !rc && x->adapter.joined && i < x->adapter.selection.ntensors; i++)
        x->used[i] = x->adapter.joined[i];
    for (size_t i = 0; i < x->adapter.modules.count && !rc; i++)
        rc = push_module(x, &lora_modules(&x->adapter)[i]);
    for (size_t i = 0; i < x->adapter.whole.count && !rc; i++)
        rc = push_plain(x, lora_whole(&x->adapter)[i].key, lora_whole(&x->adapter)[i].position);
    for (size_t i = 0; i < x->adapter.tokens.count && !rc; i++)
        rc = push_tokens(x, &lora_tokens(&x->adapter)[i]);
    return rc;
}

/* Flat names may collide even if nested ones do not. */
static int check_names(struct lora_export *x)
{
    struct fsdpck_names seen = { 0 };
    size_t old = SIZE_MAX;
    int rc = 0;
    for (size_t i = 0; i < x->out.ntensors && !rc; i++) {
        rc = fsdpck_names_add(&seen, x->out.tensors[i].name, i, &old, x->err);
        if (!rc && old != SIZE_MAX)
            rc = fsdpck_error_set(x->err, FSDPCK_ERR_UNSUPPORTED, x->src->path, "two tensors would both be called '%s'",
                                  x->out.tensors[i].name);
    }
    fsdpck_names_free(&seen);
    return rc;
}

/* ---- values ---- */

static bool wants_all(void *ctx, uint32_t tensor)
{
    (void)ctx;
    (void)tensor;
    return true;
}

/* Returns whether all values are finite; sets *nonzero if any is not zero. */
static bool all_finite(const float *v, uint64_t n, bool *nonzero)
{
    uint32_t special = 0, any = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &v[i], sizeof u);
        any |= u & 0x7fffffffu;
        special |= (u & 0x7f800000u) == 0x7f800000u;
    }
    *nonzero = *nonzero || any;
    return !special;
}

static int check_and_cast(void *ctx, uint32_t tensor, uint64_t begin, uint64_t nelem, const void *in, void *out,
                          struct fsdpck_error *err)
{
    struct lora_export *x = ctx;
    const struct fsdpck_chosen *c = &x->out.tensors[tensor];
    const struct fsdpck_tensor *t = fsdpck_source_tensor(x->src, c->source);
    uint64_t item = fsdpck_dtype_info(t->dtype)->nbytes;
    bool nonzero = false;
    float v[PIECE];
    for (uint64_t at = 0; at < nelem; at += PIECE) {
        uint64_t n = nelem - at < PIECE ? nelem - at : PIECE;
        fsdpck_dtype_cast(t->dtype, (const uint8_t *)in + at * item, FSDPCK_FLOAT32, v, n);
        if (!all_finite(v, n, &nonzero)) {
            fsdpck_error_set(err, FSDPCK_ERR_FORMAT, x->src->path,
                             "NaN or infinity among elements %llu to %llu: this adapter would ruin the model",
                             (unsigned long long)(begin + at), (unsigned long long)(begin + at + n - 1));
            fsdpck_error_tensor(err, t->name);
            return FSDPCK_ERR_FORMAT;
        }
    }
    if (nonzero)
        x->nonzero[tensor] = true;
    fsdpck_dtype_cast(t->dtype, in, c->dtype, out, nelem);
    return 0;
}

static int note_zeros(void *ctx, struct fsdpck_error *err)
{
    const struct lora_export *x = ctx;
    size_t zeros = 0, all = 0;
    const char *first = NULL;
    (void)err;
    for (size_t i = 0; i < x->out.ntensors; i++) {
        all += x->is_b[i];
        if (x->is_b[i] && !x->nonzero[i]) {
            first = first ? first : fsdpck_source_tensor(x->src, x->out.tensors[i].source)->name;
            zeros++;
        }
    }
    if (zeros)
        fsdpck_lora_note(&x->opt, "%zu of %zu lora_B are all zero, '%s' the first: these modules change nothing%s",
                         zeros, all, first, zeros == all ? " (an adapter that was never trained?)" : "");
    return 0;
}

/* ---- the files around the tensors ---- */

static int write_config(struct lora_export *x)
{
    struct fsdpck_text text = { 0 };
    int rc = fsdpck_lora_config_write(&x->adapter.config, &x->facts, "", &text, x->err);
    fsdpck_text_printf(&text, "\n");
    if (!rc)
        rc = fsdpck_text_check(&text, x->err);
    if (!rc && !(x->assets.list = calloc(1, sizeof *x->assets.list)))
        rc = fsdpck_error_nomem(x->err, sizeof *x->assets.list);
    if (rc) {
        fsdpck_text_free(&text);
        return rc;
    }
    x->assets.list[0] =
        (struct fsdpck_asset_out){ .path = strdup(FSDPCK_LORA_CONFIG_NAME), .data = text.data, .nbytes = text.nbytes };
    x->assets.count = 1;
    return x->assets.list[0].path ? 0 : fsdpck_error_nomem(x->err, sizeof FSDPCK_LORA_CONFIG_NAME);
}

static int check_out(const struct lora_export *x)
{
    bool file = ends_with(x->req->out, ".safetensors");
    if (lora_style_is_folder(x->req->style) && file)
        return fsdpck_error_set(x->err, FSDPCK_ERR_USAGE, x->req->out,
                                "a PEFT adapter is a folder, with its adapter_config.json");
    if (lora_style_has_alpha(x->req->style) && !file)
        return fsdpck_error_set(x->err, FSDPCK_ERR_USAGE, x->req->out,
                                "this style is one file: its name must end in .safetensors");
    return 0;
}

/* ---- the family of fused experts ---- */

static int read_family(struct lora_export *x, struct fsdpck_moe *moe)
{
    char *path = fsdpck_path_join(x->req->base, "config.json", x->err), *text = NULL;
    uint64_t nbytes;
    int rc =
        path ? fsdpck_read_file(x->src->io, path, FSDPCK_CONFIG_MAX_NBYTES, &text, &nbytes, x->err) : FSDPCK_ERR_NOMEM;
    if (!rc)
        rc = fsdpck_moe_read(path, text, nbytes, moe, x->err);
    if (!rc && moe->family && fsdpck_moe_is_alike(moe)) {
        rc = fsdpck_error_set(x->err, FSDPCK_ERR_UNSUPPORTED, path,
                              "the experts of a %s are published fused, and vLLM has no names for pairs of single ones",
                              moe->model_type);
        fsdpck_error_hint(x->err, "vLLM and PEFT load the adapter as PEFT 0.19.1 and later write it");
    } else if (!rc) {
        rc = fsdpck_moe_check(moe, path, x->err);
    }
    free(path);
    free(text);
    return rc;
}

/* Opening the adapter shows whether it has fused experts. */
static int check_base(const struct lora_export *x)
{
    const bool fused = x->adapter.split.nexperts > 0, vllm = x->req->style == FSDPCK_LORA_VLLM;
    if (x->req->base && !(fused && vllm))
        return fsdpck_error_set(x->err, FSDPCK_ERR_USAGE, x->src->path,
                                "--base is for --style vllm of an adapter of fused experts, and this %s",
                                vllm ? "adapter has none" : "is another style");
    if (!x->req->base && fused && vllm) {
        fsdpck_error_set(
            x->err, FSDPCK_ERR_USAGE, x->src->path,
            "is of fused experts, and nothing says of which model: families name and order them differently");
        fsdpck_error_hint(x->err, "--base FOLDER, the model's folder with its config.json");
        return FSDPCK_ERR_USAGE;
    }
    return 0;
}

/* Whether experts are written as one pair for all of a layer. PEFT's form is kept: fused, or one by one. */
static bool fuses(const struct lora_export *x)
{
    const enum fsdpck_lora_style style = x->req->style;
    return style == FSDPCK_LORA_PEFT_FUSED || style == FSDPCK_LORA_SGLANG ||
           (style == FSDPCK_LORA_PEFT && x->adapter.split.nexperts > 0 && !x->adapter.split.turned);
}

static int prepare(struct lora_export *x)
{
    struct fsdpck_moe moe = { 0 };
    int rc = check_out(x);
    if (!rc && x->req->base && x->req->style == FSDPCK_LORA_VLLM)
        rc = read_family(x, &moe);
    const struct fsdpck_lora_choice *choice = &x->req->choice;
    const struct fsdpck_lora_request want = { .name = choice->adapter,
                                              .config = choice->config,
                                              .has_alpha = choice->has_alpha,
                                              .alpha = choice->alpha,
                                              .order = choice->order,
                                              .halves = x->req->style == FSDPCK_LORA_VLLM,
                                              .mixtral = strcmp(moe.model_type, "mixtral") == 0,
                                              .select = &x->req->select };
    if (!rc)
        rc = fsdpck_lora_adapter_open(&x->adapter, x->src, &want, x->err);
    if (!rc)
        rc = check_base(x);
    if (!rc && fuses(x))
        rc = fsdpck_lora_fuse(&x->adapter, x->req->style == FSDPCK_LORA_SGLANG, x->err);
    if (!rc)
        fsdpck_lora_note_config(&x->adapter, &x->opt);
    if (!rc && lora_style_has_alpha(x->req->style) && fsdpck_lora_is_flux2(&x->adapter))
        rc = fsdpck_lora_flux2(&x->adapter, x->req->style == FSDPCK_LORA_COMFY, &x->opt, x->err);
    if (!rc)
        rc = fsdpck_lora_facts(&x->adapter, &x->opt, &x->facts, x->err);
    if (!rc)
        rc = fsdpck_lora_style_check(&x->adapter, x->req->style, &x->facts, &x->opt, x->err);
    if (!rc)
        rc = list(x);
    if (!rc)
        rc = fsdpck_lora_adapter_check_used(&x->adapter, x->used, &x->opt, x->err);
    if (!rc)
        rc = check_names(x);
    if (!rc)
        rc = fsdpck_lora_style_metadata(&x->adapter, x->req->style, &x->facts, &x->metadata, x->err);
    return !rc && lora_style_is_folder(x->req->style) ? write_config(x) : rc;
}

int fsdpck_export_lora(struct fsdpck_source *src, const struct fsdpck_export_lora_request *req,
                       const struct fsdpck_options *opt, struct fsdpck_transfer_result *result,
                       struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    struct lora_export x = { .src = src, .req = req, .opt = fsdpck_source_options(src, opt), .err = err ? err : &own };
    const struct fsdpck_export_request to = { .out = req->out, .select = req->select, .force = req->force };
    const struct fsdpck_edit edit = { .ctx = &x, .end = note_zeros, .wants = wants_all, .apply = check_and_cast };
    int64_t began = src->io->now_ns(src->io->ctx);
    int rc = prepare(&x);
    if (!rc) {
        const struct fsdpck_export_with with = { .edit = &edit,
                                                 .selection = &x.out,
                                                 .shapes = x.shapes,
                                                 .ndims = x.ndims,
                                                 .file = lora_style_is_folder(req->style)
                                                             ? "adapter_model.safetensors"
                                                             : "pytorch_lora_weights.safetensors",
                                                 .metadata = x.metadata.data,
                                                 .extra = x.extra,
                                                 .nextra = x.nextra,
                                                 .assets = &x.assets };
        rc = fsdpck_export_with(src, &to, &with, &x.opt, result, x.err);
    }
    if (!rc && result)
        result->seconds = (double)(src->io->now_ns(src->io->ctx) - began) * 1e-9;
    fsdpck_assets_free(&x.assets);
    fsdpck_text_free(&x.metadata);
    fsdpck_lora_adapter_free(&x.adapter);
    return rc;
}
