/* SPDX-License-Identifier: Apache-2.0 */
/* Presents a model's weights under other names: chooses the view by what the source holds. */
#include <fsdpck/source.h>

#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "hf/config.h"
#include "hf/weight_names.h"
#include "view/experts_view.h"
#include "view/megatron.h"
#include "view/names.h"
#include "view/side_view.h"

static bool has_experts(const struct fsdpck_source *src)
{
    for (size_t i = 0; i < src->tensors.count; i++)
        if (fsdpck_expert_is_name(source_tensors(src)[i].name))
            return true;
    return false;
}

struct naming {
    struct fsdpck_source *src;
    const char *folder;
    struct fsdpck_moe moe;
    char *config; /* path; NULL: there is none, and moe is empty */
    struct fsdpck_error *err;
};

static int read_config(struct naming *n)
{
    char *text = NULL;
    uint64_t nbytes;
    if (!(n->config = fsdpck_weight_config(n->src, n->folder)))
        return 0;
    int rc = fsdpck_read_file(n->src->io, n->config, FSDPCK_CONFIG_MAX_NBYTES, &text, &nbytes, n->err);
    if (!rc)
        rc = fsdpck_moe_read(n->config, text, nbytes, &n->moe, n->err);
    free(text);
    return rc;
}

static int need_config(const struct naming *n)
{
    if (n->config)
        return 0;
    fsdpck_error_set(n->err, FSDPCK_ERR_MISSING, n->src->path,
                     "has no config.json, which says what the model's weights are called, as --names needs");
    fsdpck_error_hint(n->err, "give the model's Hugging Face folder: --assets FOLDER");
    return n->err->code;
}

/* Published and held alike: all experts of a layer in one tensor. Some are published turned. */
static int set_alike(struct fsdpck_source *src, const struct fsdpck_moe *moe, bool published, const char *noted,
                     struct fsdpck_error *err)
{
    bool held;
    int rc = fsdpck_experts_check_alike(src, moe, &held, err);
    if (!rc && fsdpck_moe_is_published_turned(moe) && held == published)
        return fsdpck_experts_turn(src, moe, published, err);
    if (!rc)
        fsdpck_weight_note_unchanged(src, noted);
    return rc;
}

/* names: "hf" or "transformers". noted: what the user asked for, NULL: no note that nothing changes. */
static int set_experts(struct naming *n, const char *names, const char *noted)
{
    int rc = need_config(n);
    if (!rc)
        rc = fsdpck_moe_check(&n->moe, n->config, n->err);
    if (!rc && !fsdpck_moe_has_singles(&n->moe))
        return set_alike(n->src, &n->moe, strcmp(names, "hf") == 0, noted, n->err);
    const bool fused = fsdpck_moe_is_alike(&n->moe) || strcmp(names, "transformers") == 0;
    return rc ? rc : fsdpck_experts_set_names(n->src, &n->moe, fused, noted, n->err);
}

static int set_side(struct naming *n, const struct fsdpck_side *side, bool to)
{
    int rc = need_config(n);
    return rc ? rc : fsdpck_source_set_side(n->src, side, to, &n->moe, n->config, n->err);
}

static bool is_known(const char *names)
{
    static const char *const known[] = { "hf", "transformers", "vllm", "torchtitan", "megatron" };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i], names) == 0)
            return true;
    return false;
}

/* What a source is and what it shall be. */
struct change {
    const struct fsdpck_side *from, *to; /* NULL: published, or as transformers has it */
    const char *names;                   /* as the user gave them */
    bool llama;                          /* a Llama is, or shall be, as torchtitan has it */
    bool is_step;                        /* the names are not yet those that the user asked for */
};

static int see_change(struct naming *n, const char *names, struct change *out)
{
    const bool titan = strcmp(names, "torchtitan") == 0, vllm = strcmp(names, "vllm") == 0;
    const bool has_vllm = fsdpck_source_is_side(n->src, &fsdpck_side_vllm),
               has_titan = fsdpck_source_is_side(n->src, &fsdpck_side_torchtitan);
    int rc = titan || vllm || has_titan || has_vllm || has_experts(n->src) ? read_config(n) : 0;
    /* Others that torchtitan holds are Llamas: hf/names_view.c. */
    const bool by_table = fsdpck_side_has_family(&fsdpck_side_torchtitan, n->moe.model_type);
    *out = (struct change){ .names = names };
    if (has_vllm)
        out->from = &fsdpck_side_vllm;
    else if (has_titan && by_table)
        out->from = &fsdpck_side_torchtitan;
    if (vllm)
        out->to = &fsdpck_side_vllm;
    else if (titan && by_table)
        out->to = &fsdpck_side_torchtitan;
    out->llama = (titan && !out->to) || (fsdpck_source_is_torchtitan(n->src) && !out->from);
    return rc;
}

/* By steps, each a view where it changes anything: from another side to transformers' form, experts fused or cut, and
 * to the other side. */
static int make_change(struct naming *n, const struct change *c)
{
    const char *names = c->to ? "transformers" : c->names, *noted = c->from || c->to || c->is_step ? NULL : c->names;
    int rc = c->from ? set_side(n, c->from, c->from == c->to) : 0;
    if (rc || (c->from && c->from == c->to)) {
        if (!rc)
            fsdpck_weight_note_unchanged(n->src, c->names);
        return rc;
    }
    if (has_experts(n->src) && !c->llama)
        rc = set_experts(n, names, noted);
    else if (c->llama || noted)
        rc = fsdpck_llama_set_names(n->src, names, n->folder, n->err);
    return rc || !c->to ? rc : set_side(n, c->to, true);
}

/* The side that the names are of, unless the model is published under such names; NULL: none. */
static const struct fsdpck_side *side_of(const struct naming *n)
{
    static const struct fsdpck_side *const sides[] = { &fsdpck_side_vllm, &fsdpck_side_torchtitan };
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++)
        if (fsdpck_source_is_side(n->src, sides[i]) && fsdpck_side_has_family(sides[i], n->moe.model_type))
            return sides[i];
    return NULL;
}

static void note_megatron(const struct fsdpck_source *src)
{
    if (src->opt.note)
        src->opt.note(src->opt.ctx, "the weights have Megatron's names and layouts, which from_pretrained does not "
                                    "load: --names hf gives those of a Hugging Face model");
}

int fsdpck_source_check_published(struct fsdpck_source *src, const char *folder, struct fsdpck_error *err)
{
    struct naming n = { .src = src, .folder = folder, .err = err };
    if (src->names_chosen)
        return 0;
    if (fsdpck_megatron_is(src))
        note_megatron(src);
    if (!fsdpck_source_is_side(src, &fsdpck_side_vllm) && !fsdpck_source_is_side(src, &fsdpck_side_torchtitan))
        return 0;
    int rc = read_config(&n);
    const struct fsdpck_side *side = rc || !n.config ? NULL : side_of(&n);
    if (side) {
        rc = fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, src->path,
                              "has the names of %s: as a Hugging Face model it would lack its weights", side->program);
        fsdpck_error_hint(err, "'--names hf' renames and cuts them apart; '--names %s' leaves them as they are",
                          side->names);
    }
    free(n.config);
    return rc;
}

int fsdpck_source_set_names(struct fsdpck_source *src, const char *names, const char *folder, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    struct naming n = { .src = src, .folder = folder, .err = err ? err : &own };
    struct change change = { 0 };
    if (!is_known(names))
        return fsdpck_error_set(n.err, FSDPCK_ERR_USAGE, NULL,
                                "'%s' are no names that a model has; there are hf, transformers, vllm, torchtitan, "
                                "megatron",
                                names);
    const bool from_megatron = fsdpck_megatron_is(src), to_megatron = strcmp(names, "megatron") == 0;
    int rc = from_megatron ? fsdpck_megatron_set_names(src, folder, n.err) : 0;
    const bool published = rc || (from_megatron && (to_megatron || strcmp(names, "hf") == 0));
    if (!published)
        rc = see_change(&n, to_megatron ? "hf" : names, &change);
    change.is_step = to_megatron;
    src->names_chosen = true;
    if (!rc && !published)
        rc = make_change(&n, &change);
    if (!rc && to_megatron)
        rc = fsdpck_megatron_give_names(src, folder, n.err);
    free(n.config);
    return rc;
}
