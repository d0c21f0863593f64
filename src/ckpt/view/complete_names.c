/* SPDX-License-Identifier: Apache-2.0 */
#include "view/complete_names.h"

#include <stdio.h>
#include <string.h>

#include "hf/quantized.h"
#include "hf/weight_names.h"
#include "tensor/shape_text.h"
#include "view/experts.h"

#define TREE "model."

static bool is_in_tree(const struct fsdpck_tensor *t)
{
    return fsdpck_weight_name(t) != t->name;
}

static bool ends_with_part(const char *name, const char *part)
{
    const size_t n = strlen(name), k = strlen(part);
    return n > k + 1 && name[n - k - 1] == '.' && strcmp(name + n - k, part) == 0;
}

int fsdpck_complete_name(const struct fsdpck_complete_names *names, const char *in_base,
                         char out[FSDPCK_COMPLETE_NAME_NBYTES], struct fsdpck_error *err)
{
    const size_t cut = strlen(names->removed);
    const char *rest = strncmp(in_base, names->removed, cut) == 0 ? in_base + cut : in_base;
    int n = snprintf(out, FSDPCK_COMPLETE_NAME_NBYTES, "%s%s%s", names->in_tree ? TREE : "", names->added, rest);
    if (n < FSDPCK_COMPLETE_NAME_NBYTES)
        return 0;
    return fsdpck_error_set(err, FSDPCK_ERR_LIMIT, NULL, "'%.200s…' is a name of more than %d bytes", out,
                            FSDPCK_COMPLETE_NAME_NBYTES - 1);
}

uint32_t fsdpck_complete_path(const struct fsdpck_complete_names *names, const char *name, struct fsdpck_key path[2])
{
    path[0] = (struct fsdpck_key){ "model", 0 };
    path[1] = (struct fsdpck_key){ name + strlen(TREE), 0 };
    return names->in_tree ? 2 : 0;
}

/* ---- how the names correspond ---- */

/* Embeddings and heads, to which a fine-tuning may add rows. */
static bool is_vocabulary(const char *name)
{
    static const char *const ends[] = { "wte.weight", "lm_head.weight", "lm_head.bias", "output.weight" };
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (strcmp(name, ends[i]) == 0 || ends_with_part(name, ends[i]))
            return true;
    return strstr(name, "embed") != NULL;
}

static bool has_shape_of(const struct fsdpck_tensor *t, const struct fsdpck_tensor *base)
{
    const int first = t->ndim && is_vocabulary(fsdpck_weight_name(base));
    return t->ndim == base->ndim &&
           memcmp(t->shape + first, base->shape + first, (size_t)(t->ndim - first) * sizeof *t->shape) == 0;
}

/* Counts the base's weights that the source has by these names; refuses one of another shape. */
static int count_shared(const struct fsdpck_source *src, const struct fsdpck_source *base,
                        const struct fsdpck_complete_names *names, size_t *out, struct fsdpck_error *err)
{
    char name[FSDPCK_COMPLETE_NAME_NBYTES], found[240], wanted[240];
    *out = 0;
    for (size_t i = 0; i < base->tensors.count; i++) {
        const struct fsdpck_tensor *b = &source_tensors(base)[i];
        int rc = fsdpck_complete_name(names, fsdpck_weight_name(b), name, err);
        size_t at = rc ? SIZE_MAX : fsdpck_names_find(&src->names, name);
        if (rc)
            return rc;
        if (at == SIZE_MAX)
            continue;
        const struct fsdpck_tensor *t = &source_tensors(src)[at];
        ++*out;
        if (has_shape_of(t, b))
            continue;
        fsdpck_error_set(err, FSDPCK_ERR_FORMAT, base->path, "has shape %s, in %s it has %s: this is another model",
                         fsdpck_shape_text(b, wanted, sizeof wanted), src->path,
                         fsdpck_shape_text(t, found, sizeof found));
        fsdpck_error_tensor(err, b->name);
        return err->code;
    }
    return 0;
}

/* Finds the prefix from a weight of the source that ends with, or is the end of, a name of the base. */
static bool find_prefix(const char *weight, const struct fsdpck_source *base, struct fsdpck_complete_names *out)
{
    size_t longest = 0;
    for (size_t i = 0; i < base->tensors.count; i++) {
        const char *b = fsdpck_weight_name(&source_tensors(base)[i]);
        const bool longer = ends_with_part(weight, b), shorter = ends_with_part(b, weight);
        const size_t shared = strlen(longer ? b : weight), more = strlen(longer ? weight : b) - shared;
        if ((!longer && !shorter) || shared <= longest || more >= sizeof out->added)
            continue;
        longest = shared;
        *out->added = *out->removed = '\0';
        snprintf(longer ? out->added : out->removed, sizeof out->added, "%.*s", (int)more, longer ? weight : b);
    }
    return longest > 0;
}

static int match_names(const struct fsdpck_source *src, const struct fsdpck_source *base,
                       struct fsdpck_complete_names *out, struct fsdpck_error *err)
{
    const struct fsdpck_tensor *t = source_tensors(src), *other = NULL;
    size_t nweights = 0, nshared = 0;
    for (size_t i = 0; i < src->tensors.count; i++) {
        if (fsdpck_weight_is_state(&t[i]))
            continue;
        nweights++;
        out->in_tree |= is_in_tree(&t[i]);
        if (!other && fsdpck_names_find(&base->names, fsdpck_weight_name(&t[i])) == SIZE_MAX)
            other = &t[i];
    }
    int rc = count_shared(src, base, out, &nshared, err);
    if (!rc && 2 * nshared < nweights && other && find_prefix(fsdpck_weight_name(other), base, out))
        rc = count_shared(src, base, out, &nshared, err);
    if (rc || 2 * nshared >= nweights)
        return rc;
    fsdpck_error_set(err, FSDPCK_ERR_FORMAT, base->path,
                     "has %zu of the %zu weights of %s ('%.200s' is not there): it cannot complete them", nshared,
                     nweights, src->path, other ? other->name : "");
    fsdpck_error_hint(err, "give the model that this one was made from; --names and --dequantize apply to both");
    return err->code;
}

/* ---- forms ---- */

static const struct fsdpck_tensor *first_quantized(const struct fsdpck_source *src)
{
    for (size_t i = 0; i < src->tensors.count; i++)
        if (fsdpck_quantized_beside(src, &source_tensors(src)[i]))
            return &source_tensors(src)[i];
    return NULL;
}

static const struct fsdpck_tensor *first_expert(const struct fsdpck_source *src, bool single)
{
    for (size_t i = 0; i < src->tensors.count; i++) {
        const char *name = fsdpck_weight_name(&source_tensors(src)[i]);
        if (fsdpck_expert_is_name(name) && strncmp(name, "mtp.", 4) != 0 &&
            fsdpck_expert_is_single_name(name) == single)
            return &source_tensors(src)[i];
    }
    return NULL;
}

static int refuse_form(const struct fsdpck_source *base, const struct fsdpck_tensor *t, const char *what,
                       const char *option, struct fsdpck_error *err)
{
    fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, base->path, "is %s in one of the two models only", what);
    fsdpck_error_tensor(err, t->name);
    fsdpck_error_hint(err, "%s brings both to one form", option);
    return err->code;
}

/* Weights in two forms have other names: they would be taken for missing ones. */
static int check_forms(const struct fsdpck_source *src, const struct fsdpck_source *base, struct fsdpck_error *err)
{
    const struct fsdpck_tensor *own = first_quantized(src), *others = first_quantized(base);
    if (!own != !others)
        return refuse_form(base, own ? own : others, "quantized", "--dequantize bf16", err);
    own = first_expert(src, false);
    others = first_expert(base, true);
    if (own && others)
        return refuse_form(base, others, "one expert's, and all experts are one tensor", "--names hf", err);
    own = first_expert(src, true);
    others = first_expert(base, false);
    return own && others ? refuse_form(base, others, "all experts', and each has a tensor", "--names hf", err) : 0;
}

int fsdpck_complete_match(const struct fsdpck_source *src, const struct fsdpck_source *base,
                          struct fsdpck_complete_names *out, struct fsdpck_error *err)
{
    *out = (struct fsdpck_complete_names){ 0 };
    int rc = check_forms(src, base, err);
    return rc ? rc : match_names(src, base, out, err);
}
