/* SPDX-License-Identifier: Apache-2.0 */
/* The model_states files: the parameters in the order of the optimizer's groups, and all that is stored as tensors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "torch/deepspeed/deepspeed.h"

static const struct fsdpck_pickle *pickle(const struct deepspeed *d)
{
    return d->r.archive.pickle;
}

static fsdpck_node get(const struct deepspeed *d, const char *key)
{
    return fsdpck_pickle_get(pickle(d), fsdpck_pickle_root(pickle(d)), key);
}

/* Whether the value is a dict with entries; None and an absent key are empty. */
static size_t entries(const struct deepspeed *d, fsdpck_node n)
{
    return n != FSDPCK_NO_NODE && fsdpck_pickle_type(pickle(d), n) == FSDPCK_PICKLE_DICT
               ? fsdpck_pickle_count(pickle(d), n) / 2
               : 0;
}

/* Returns the key of entry i of a dict; NULL after a failure. */
static const char *name_of(struct deepspeed *d, fsdpck_node dict, size_t i, const char *in)
{
    fsdpck_node key = fsdpck_pickle_child(pickle(d), dict, 2 * i);
    size_t nbytes;
    const char *name =
        fsdpck_pickle_type(pickle(d), key) == FSDPCK_PICKLE_STRING ? fsdpck_pickle_text(pickle(d), key, &nbytes) : NULL;
    if (name && strlen(name) == nbytes)
        return name;
    fsdpck_ds_fail(d, FSDPCK_ERR_FORMAT, NULL, "a key of '%s' is no plain string", in);
    return NULL;
}

/* ---- parameters ---- */

static int add_params(struct deepspeed *d, fsdpck_node dict, size_t group, bool frozen)
{
    const char *in = frozen ? "frozen_param_shapes" : "param_shapes";
    for (size_t i = 0; i < entries(d, dict); i++) {
        uint64_t shape[FSDPCK_MAX_DIMS];
        uint32_t ndim;
        const char *name = name_of(d, dict, i, in);
        if (!name)
            return d->r.err->code;
        if (!fsdpck_node_dims(pickle(d), fsdpck_pickle_child(pickle(d), dict, 2 * i + 1), &ndim, shape))
            return fsdpck_ds_fail(d, FSDPCK_ERR_FORMAT, name, "its shape in '%s' is no list of sizes", in);
        int rc = fsdpck_ds_add_param(d, name, shape, ndim, group, frozen);
        if (rc)
            return rc;
    }
    return 0;
}

static int list_params(struct deepspeed *d)
{
    fsdpck_node shapes = get(d, "param_shapes");
    if (fsdpck_pickle_type(pickle(d), shapes) != FSDPCK_PICKLE_LIST)
        return fsdpck_ds_fail(d, FSDPCK_ERR_FORMAT, NULL,
                              "has no list 'param_shapes', by which the partitions are cut into parameters");
    d->ngroups = fsdpck_pickle_count(pickle(d), shapes);
    for (size_t g = 0; g < d->ngroups; g++) {
        int rc = add_params(d, fsdpck_pickle_child(pickle(d), shapes, g), g, false);
        if (rc)
            return rc;
    }
    return d->set.stage3 ? add_params(d, get(d, "frozen_param_shapes"), SIZE_MAX, true) : 0;
}

/* Finds the piece of each parameter by one walk: a search for each would take a second for some ten thousand, as
 * adapters of a mixture of experts freeze them. Returns (params) nodes, FSDPCK_NO_NODE where there is none, which the
 * caller frees; NULL after a failure. */
static fsdpck_node *find_fragments(struct deepspeed *d)
{
    fsdpck_node dict = get(d, "frozen_param_fragments");
    fsdpck_node *found = malloc((d->params.count + 1) * sizeof *found);
    if (!found)
        fsdpck_error_nomem(d->r.err, d->params.count * sizeof *found);
    for (size_t i = 0; found && i < d->params.count; i++)
        found[i] = FSDPCK_NO_NODE;
    for (size_t i = 0; found && i < entries(d, dict); i++) {
        fsdpck_node key = fsdpck_pickle_child(pickle(d), dict, 2 * i);
        const char *name = fsdpck_pickle_type(pickle(d), key) == FSDPCK_PICKLE_STRING
                               ? fsdpck_pickle_text(pickle(d), key, NULL)
                               : NULL;
        const size_t param = name ? fsdpck_names_find(&d->by_name, name) : SIZE_MAX;
        if (param != SIZE_MAX)
            found[param] = fsdpck_pickle_child(pickle(d), dict, 2 * i + 1);
    }
    return found;
}

static enum fsdpck_dtype frozen_dtype(struct deepspeed *d, const char *name, fsdpck_node n)
{
    struct ds_flat flat;
    if (n == FSDPCK_NO_NODE)
        fsdpck_ds_fail(d, FSDPCK_ERR_MISSING, name, "is in frozen_param_shapes, and not in frozen_param_fragments");
    else if (fsdpck_ds_flat(d, name, n, &flat) == 0)
        return flat.dtype;
    return FSDPCK_FLOAT32;
}

/* Those of a universal checkpoint follow when their files are read; its frozen ones are here. */
static int add_all_weights(struct deepspeed *d)
{
    fsdpck_node *fragments = find_fragments(d);
    int rc = fragments ? 0 : FSDPCK_ERR_NOMEM;
    for (size_t i = 0; i < d->params.count && !rc; i++) {
        const struct ds_param *p = &ds_params(d)[i];
        if (d->set.universal && !p->frozen)
            continue;
        enum fsdpck_dtype dtype = p->frozen ? frozen_dtype(d, p->name, fragments[i]) : FSDPCK_FLOAT32;
        rc = d->r.err->code ? d->r.err->code : fsdpck_ds_add_weights(d, i, dtype);
    }
    free(fragments);
    return rc;
}

/* shared_params: names under which modules share another's parameter. */
static int list_shared(struct deepspeed *d)
{
    fsdpck_node shared = get(d, "shared_params");
    for (size_t i = 0; i < entries(d, shared); i++) {
        const char *alias = name_of(d, shared, i, "shared_params");
        const char *name =
            alias ? fsdpck_pickle_text(pickle(d), fsdpck_pickle_child(pickle(d), shared, 2 * i + 1), NULL) : NULL;
        size_t param = name ? fsdpck_names_find(&d->by_name, name) : SIZE_MAX;
        if (!alias)
            return d->r.err->code;
        if (param == SIZE_MAX && d->set.stage3)
            return fsdpck_ds_fail(d, FSDPCK_ERR_FORMAT, alias, "shares a parameter that is in no group");
        if (param == SIZE_MAX || fsdpck_names_find(&d->by_name, alias) != SIZE_MAX)
            continue;
        struct ds_shared *s = fsdpck_vec_push(&d->shared, d->r.err);
        if (!s || !(s->name = fsdpck_arena_strndup(&d->scratch, alias, strlen(alias), d->r.err)))
            return FSDPCK_ERR_NOMEM;
        s->next = ds_params(d)[param].shared;
        ds_params(d)[param].shared = d->shared.count - 1;
    }
    return 0;
}

/* A universal checkpoint has folders for these too, with what the model states hold already. */
static int list_module(struct deepspeed *d)
{
    fsdpck_node module = get(d, "module");
    int rc = 0;
    for (size_t i = 0; i < entries(d, module) && !rc; i++) {
        const char *name = name_of(d, module, i, "module");
        size_t old;
        char *copy = name ? fsdpck_arena_strndup(&d->scratch, name, strlen(name), d->r.err) : NULL;
        rc = copy ? fsdpck_names_add(&d->in_module, copy, i, &old, d->r.err) : d->r.err->code;
    }
    return rc;
}

/* ---- what is stored as tensors ---- */

/* ZeRO-3 and tensor parallelism leave the buffers whole, and of each parameter nothing, or a slice. */
static int add_buffers(struct deepspeed *d)
{
    fsdpck_node names = get(d, "buffer_names"), module = get(d, "module");
    for (size_t i = 0; i < fsdpck_pickle_count(pickle(d), names); i++) {
        const char *name = fsdpck_pickle_text(pickle(d), fsdpck_pickle_child(pickle(d), names, i), NULL);
        fsdpck_node n = name ? fsdpck_pickle_get(pickle(d), module, name) : FSDPCK_NO_NODE;
        if (n == FSDPCK_NO_NODE)
            continue; /* a buffer that is not saved */
        const struct fsdpck_key path[] = { { "model", 0 }, { name, 0 } };
        char text[1024];
        if (snprintf(text, sizeof text, "model.%s", name) >= (int)sizeof text)
            return fsdpck_ds_fail(d, FSDPCK_ERR_LIMIT, NULL, "holds a buffer's name of more than 1000 bytes");
        int rc = fsdpck_pt_add_tensor(&d->r, text, path, 2, n);
        if (rc)
            return rc;
    }
    return 0;
}

/* Adds the rank's piece of a frozen parameter: ceil(n / ranks) elements, the last one padded. */
static int add_frozen_piece(struct deepspeed *d, const struct ds_param *p, uint32_t rank, fsdpck_node n)
{
    struct ds_flat flat;
    if (n == FSDPCK_NO_NODE)
        return fsdpck_ds_fail(d, FSDPCK_ERR_MISSING, p->name, "has no piece in this rank's frozen_param_fragments");
    int rc = fsdpck_ds_flat(d, p->name, n, &flat);
    const uint64_t each = (p->nelem + d->set.nstates - 1) / d->set.nstates, begin = each * rank;
    if (!rc && flat.nelem != each)
        rc = fsdpck_ds_fail(d, FSDPCK_ERR_FORMAT, p->name, "its piece has %llu elements, %llu of %u ranks are wanted",
                            (unsigned long long)flat.nelem, (unsigned long long)each, d->set.nstates);
    if (!rc && flat.dtype != p->dtype)
        rc = fsdpck_ds_fail(d, FSDPCK_ERR_FORMAT, p->name, "its piece is %s, that of rank 0 is %s",
                            fsdpck_dtype_info(flat.dtype)->name, fsdpck_dtype_info(p->dtype)->name);
    if (!rc && begin < p->nelem)
        rc = fsdpck_ds_add_range(d, p, DS_WEIGHTS, begin, p->nelem - begin < each ? p->nelem - begin : each, &flat, 0);
    return rc;
}

static int add_frozen_pieces(struct deepspeed *d, uint32_t rank)
{
    fsdpck_node *fragments = find_fragments(d);
    int rc = fragments ? 0 : FSDPCK_ERR_NOMEM;
    for (size_t i = 0; i < d->params.count && !rc; i++)
        if (ds_params(d)[i].frozen)
            rc = add_frozen_piece(d, &ds_params(d)[i], rank, fragments[i]);
    free(fragments);
    return rc;
}

/* Returns the first key of a value's names. Without ZeRO the optimizer's state is in this file. A caller's own keys
 * stay out of the trees that this reader makes. */
static const char *tree_of(const char *key)
{
    static const char *const own[][2] = { { "optimizer", "optim" },
                                          { "optim", "client.optim" },
                                          { "model", "client.model" },
                                          { "master", "client.master" },
                                          { "param_groups", "client.param_groups" } };
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strcmp(key, own[i][0]) == 0)
            return own[i][1];
    return key;
}

/* Everything else in the file is kept: steps, schedules, the caller's own state. */
static int add_rest(struct deepspeed *d)
{
    static const char *const read_already[] = {
        "module",        "buffer_names", "param_shapes", "frozen_param_shapes", "frozen_param_fragments",
        "shared_params", "args"
    };
    fsdpck_node root = fsdpck_pickle_root(pickle(d));
    for (size_t i = 0; i < entries(d, root); i++) {
        const char *key = name_of(d, root, i, "the checkpoint");
        fsdpck_node value = fsdpck_pickle_child(pickle(d), root, 2 * i + 1);
        bool skip = key && fsdpck_pickle_type(pickle(d), value) == FSDPCK_PICKLE_NONE;
        for (size_t k = 0; key && k < sizeof read_already / sizeof *read_already; k++)
            skip |= strcmp(key, read_already[k]) == 0;
        if (!key)
            return d->r.err->code;
        int rc = skip ? 0 : fsdpck_pt_add_tree(&d->r, value, tree_of(key));
        if (rc)
            return rc;
    }
    return 0;
}

/* ---- the files ---- */

/* The model states count the experts of each layer. */
static int check_experts(struct deepspeed *d)
{
    fsdpck_node counts = get(d, "num_experts");
    const bool list = counts != FSDPCK_NO_NODE && fsdpck_pickle_type(pickle(d), counts) == FSDPCK_PICKLE_LIST;
    uint64_t total = 0;
    for (size_t i = 0; list && i < fsdpck_pickle_count(pickle(d), counts); i++) {
        int64_t n = -1;
        if (!fsdpck_pickle_int(pickle(d), fsdpck_pickle_child(pickle(d), counts, i), &n) || n < 0 ||
            !checked_add(total, (uint64_t)n, &total))
            return fsdpck_ds_fail(d, FSDPCK_ERR_FORMAT, NULL, "has no usable list of counts 'num_experts'");
    }
    if (list && !d->set.universal && total != d->set.nexperts)
        return fsdpck_ds_fail(d, FSDPCK_ERR_MISSING, NULL, "has %llu experts, and there are files of %u",
                              (unsigned long long)total, d->set.nexperts);
    return 0;
}

static int check_save(struct deepspeed *d, uint32_t rank)
{
    int64_t steps = -1, world = -1;
    fsdpck_pickle_int(pickle(d), get(d, "global_steps"), &steps);
    if (rank == 0)
        d->steps = steps;
    if (steps != d->steps)
        return fsdpck_ds_fail(d, FSDPCK_ERR_FORMAT, NULL, "is of step %lld, the file of rank 0 is of step %lld",
                              (long long)steps, (long long)d->steps);
    /* Without ZeRO there are no partitions, and the optimizer's state is here. */
    const bool partitioned = !d->set.universal && (d->set.nranks || get(d, "param_shapes") != FSDPCK_NO_NODE);
    if (partitioned && fsdpck_pickle_int(pickle(d), get(d, "dp_world_size"), &world) && world != d->set.nranks &&
        (d->set.nranks || entries(d, get(d, "optimizer")) == 0))
        return fsdpck_ds_fail(d, FSDPCK_ERR_FORMAT, NULL, "is of a run of %lld, and there are partitions of %u rank%s",
                              (long long)world, d->set.nranks, fsdpck_plural(d->set.nranks));
    return 0;
}

static int read_first(struct deepspeed *d)
{
    const bool params = ds_has_params(d);
    int rc = check_experts(d);
    if (!rc && params)
        rc = list_params(d);
    if (!rc && params)
        rc = list_shared(d);
    if (!rc && d->set.universal)
        rc = list_module(d);
    if (!rc)
        rc = ds_master_is_model(d) ? add_buffers(d) : fsdpck_pt_add_tree(&d->r, get(d, "module"), "model");
    if (!rc)
        rc = add_all_weights(d);
    if (!rc && !d->set.stage3 && params && entries(d, get(d, "frozen_param_fragments")))
        rc = fsdpck_pt_add_tree(&d->r, get(d, "frozen_param_fragments"), "master");
    return rc ? rc : add_rest(d);
}

/* The conversion joins what the optimizer holds, and nothing else. */
static int refuse_frozen_slices(struct deepspeed *d)
{
    fsdpck_node frozen = get(d, "frozen_param_fragments");
    return entries(d, frozen) == 0
               ? 0
               : fsdpck_ds_fail(d, FSDPCK_ERR_UNSUPPORTED, name_of(d, frozen, 0, "frozen_param_fragments"),
                                "is frozen and cut by tensor parallelism: nothing says along which dimension");
}

int fsdpck_ds_read_states(struct deepspeed *d, uint32_t rank)
{
    int rc = fsdpck_ds_open(d, d->set.states[rank], rank);
    if (rc)
        return rc;
    if (entries(d, fsdpck_pickle_root(pickle(d))) == 0)
        rc = fsdpck_ds_fail(d, FSDPCK_ERR_FORMAT, NULL, "holds no dict of model states");
    if (!rc)
        rc = check_save(d, rank);
    if (!rc && d->set.sliced)
        rc = refuse_frozen_slices(d);
    if (!rc && rank == 0)
        rc = read_first(d);
    if (!rc && d->set.stage3)
        rc = add_frozen_pieces(d, rank);
    fsdpck_pt_file_close(&d->r);
    return rc;
}

int fsdpck_ds_read_expert(struct deepspeed *d, uint32_t i)
{
    int rc = fsdpck_ds_open(d, d->set.experts[i], 0);
    if (rc)
        return rc;
    fsdpck_node root = fsdpck_pickle_root(pickle(d));
    rc = entries(d, root) ? fsdpck_pt_add_tree(&d->r, root, "model")
                          : fsdpck_ds_fail(d, FSDPCK_ERR_FORMAT, NULL, "holds no dict of an expert's weights");
    fsdpck_pt_file_close(&d->r);
    return rc;
}
