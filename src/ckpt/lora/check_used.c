/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that every tensor of an adapter is used, or known to belong elsewhere. Any other causes an error that names
 * it: nothing is dropped silently. */
#include <string.h>

#include "lora/adapter.h"

enum { FEW = 4 };

/* ---- the frozen model beside an adapter ---- */

static bool is_weight(const struct fsdpck_lora_name *n)
{
    return (n->role == LORA_PLAIN || n->role == LORA_BASE) && strcmp(n->leaf, "bias") != 0;
}

static bool is_layered(const char *path)
{
    struct fsdpck_lora_layer p;
    return fsdpck_lora_layer_find(path, &p);
}

/* *nlayers counts the weights in numbered layers that no adapter wraps. */
static int collect_weights(const struct fsdpck_lora_adapter *a, struct fsdpck_names *weights, size_t *nlayers,
                           struct fsdpck_error *err)
{
    int rc = 0;
    size_t old;
    for (size_t i = 0; i < a->selection.ntensors && !rc; i++)
        if (is_weight(&a->names[i])) {
            rc = fsdpck_names_add(weights, a->names[i].module, i, &old, err);
            *nlayers += a->names[i].role == LORA_PLAIN && is_layered(a->names[i].module);
        }
    return rc;
}

/* The state dict of a live module has the adapter's name in its parameter names; PEFT's files never have it. */
static bool is_state_dict(const struct fsdpck_lora_adapter *a)
{
    for (size_t i = 0; i < a->selection.ntensors; i++)
        if (fsdpck_lora_is_part(a, i) && *a->names[i].adapter)
            return true;
    return false;
}

/* PEFT writes embeddings and heads whole into an adapter's own file, but never other adapted layers. So frozen weights
 * of adapted layers show that the model is present. If the adapter has no such layers, the weights of other layers must
 * show it. A few extra weights in an adapter's file are not a model. */
static bool has_model(const struct fsdpck_lora_adapter *a, const struct fsdpck_names *weights, size_t nlayers)
{
    size_t n = 0, frozen = 0, others = 0;
    if (nlayers < FEW && !is_state_dict(a))
        return false;
    for (size_t i = 0; i < a->modules.count; i++) {
        const char *path = lora_modules(a)[i].path;
        bool there = fsdpck_names_find(weights, path) != SIZE_MAX;
        n += is_layered(path);
        frozen += is_layered(path) && there;
        others += !is_layered(path) && !there;
    }
    for (size_t i = 0; i < a->selection.ntensors; i++)
        others += a->names[i].role == LORA_TOKENS && fsdpck_names_find(weights, a->names[i].module) == SIZE_MAX;
    return n ? frozen == n : nlayers && others == 0;
}

int fsdpck_lora_find_model(struct fsdpck_lora_adapter *a, struct fsdpck_error *err)
{
    struct fsdpck_names weights = { 0 };
    size_t nlayers = 0;
    int rc = collect_weights(a, &weights, &nlayers, err);
    a->beside_model = !rc && has_model(a, &weights, nlayers);
    fsdpck_names_free(&weights);
    return rc;
}

/* ---- the account ---- */

struct unused_tensors {
    const char *first;
    size_t count;
};

static void count_unused(struct unused_tensors *b, const struct fsdpck_tensor *t)
{
    b->first = b->first ? b->first : t->name;
    b->count++;
}

static void note_unused(const struct unused_tensors *b, const char *whose, const struct fsdpck_options *opt)
{
    if (b->count == 1)
        fsdpck_lora_note(opt, "'%s' is %s, and no part of this adapter", b->first, whose);
    else if (b->count)
        fsdpck_lora_note(opt, "%zu tensors, '%s' the first, are %s, and no part of this adapter", b->count, b->first,
                         whose);
}

static int not_used(const struct fsdpck_lora_adapter *a, size_t i, struct fsdpck_error *err)
{
    int rc = fsdpck_lora_refuse(a, (int64_t)i, FSDPCK_ERR_UNSUPPORTED, err,
                                "lies in the adapter '%s' and would not be used", a->name);
    fsdpck_error_hint(err, "where it means nothing, leave it out: export-lora --exclude");
    return rc;
}

int fsdpck_lora_adapter_check_used(const struct fsdpck_lora_adapter *a, const bool *used,
                                   const struct fsdpck_options *opt, struct fsdpck_error *err)
{
    struct unused_tensors model = { 0 }, others = { 0 };
    for (size_t i = 0; i < a->selection.ntensors; i++) {
        enum fsdpck_lora_role role = a->names[i].role;
        const struct fsdpck_tensor *t = lora_tensor(a, (int64_t)i);
        if (used[i])
            continue;
        if (role == LORA_ORIGINAL || (role < LORA_A && a->beside_model))
            count_unused(&model, t);
        else if (role >= LORA_A && !fsdpck_lora_is_part(a, i))
            count_unused(&others, t);
        else
            return not_used(a, i, err);
    }
    note_unused(&model, "of the frozen model", opt);
    note_unused(&others, "another adapter's", opt);
    return 0;
}

int fsdpck_lora_check_used(struct fsdpck_source *src, const char *adapter, const bool *used,
                           const struct fsdpck_options *opt, struct fsdpck_error *err)
{
    static const struct fsdpck_select all;
    const struct fsdpck_options o = fsdpck_source_options(src, opt);
    struct fsdpck_error own = { 0 };
    struct fsdpck_lora_adapter a;
    err = err ? err : &own;
    int rc = fsdpck_lora_adapter_find(&a, src, &all, adapter, err);
    bool *mine = !rc ? fsdpck_arena_array(&a.arena, a.selection.ntensors, sizeof *mine, err) : NULL;
    if (!rc && !mine)
        rc = FSDPCK_ERR_NOMEM;
    for (size_t i = 0; !rc && i < a.selection.ntensors; i++)
        mine[i] = used[a.selection.tensors[i].source];
    if (!rc)
        rc = fsdpck_lora_adapter_check_used(&a, mine, &o, err);
    fsdpck_lora_adapter_free(&a);
    return rc;
}
