/* SPDX-License-Identifier: Apache-2.0 */
/* A universal checkpoint: zero/NAME/fp32.pt holds a parameter whole, and each other .pt beside it a state of the
 * optimizer. What came from ZeRO-3 is stored flat; the model states say its shape. */
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "base/suffix.h"
#include "torch/deepspeed/deepspeed.h"

/* The folder of one parameter. */
struct folder {
    struct deepspeed *d;
    const char *name; /* zero/NAME */
    size_t param;
    uint32_t kinds; /* bit k: it holds the weights or the state d->kinds[k] */
};

static const struct fsdpck_pickle *pickle(const struct deepspeed *d)
{
    return d->r.archive.pickle;
}

static const struct ds_param *param_of(const struct folder *f)
{
    return &ds_params(f->d)[f->param];
}

/* ---- one file ---- */

/* A file holds its tensor alone, or in a dict beside the settings of the conversion. */
static fsdpck_node tensor_node(const struct deepspeed *d)
{
    fsdpck_node root = fsdpck_pickle_root(pickle(d)), args;
    return fsdpck_tensor_node_maker(pickle(d), root, &args) ? root : fsdpck_pickle_get(pickle(d), root, "param");
}

/* A slice's dimensions are those of the whole parameter, but for the one along which it is cut: that of the whole is at
 * most all slices long. Only a vocabulary may be shorter than a slice: it is stored without its padding. */
static bool may_be_whole(const struct deepspeed *d, const struct ds_param *slice, const struct fsdpck_tensor_node *t)
{
    const bool vocabulary =
        fsdpck_pickle_get(pickle(d), fsdpck_pickle_root(pickle(d)), "vocab_tensor") != FSDPCK_NO_NODE;
    uint32_t ncut = 0;
    for (uint32_t k = 0; k < t->ndim && t->ndim == slice->ndim; k++) {
        const uint64_t whole = t->size[k], cut = slice->shape[k];
        ncut += whole != cut;
        if ((whole < cut && !vocabulary) || (whole > cut && (!cut || (whole - 1) / cut >= d->set.nstates)))
            return false;
    }
    return t->ndim == slice->ndim && ncut <= 1;
}

static int take_shape(struct folder *f, const struct fsdpck_tensor_node *t, uint64_t nelem)
{
    struct ds_param *p = &ds_params(f->d)[f->param];
    uint64_t *shape = fsdpck_arena_array(&f->d->scratch, t->ndim ? t->ndim : 1, sizeof *shape, f->d->r.err);
    if (!shape)
        return FSDPCK_ERR_NOMEM;
    if (t->ndim)
        memcpy(shape, t->size, t->ndim * sizeof *shape);
    p->shape = shape;
    p->nelem = nelem;
    p->joined = true;
    return 0;
}

static int find_tensor(struct folder *f, struct ds_flat *out)
{
    const struct ds_param *p = param_of(f);
    struct fsdpck_tensor_node t;
    char found[FSDPCK_MAX_DIMS * 24], wanted[FSDPCK_MAX_DIMS * 24];
    fsdpck_node n = tensor_node(f->d);
    if (n == FSDPCK_NO_NODE)
        return fsdpck_ds_fail(f->d, FSDPCK_ERR_FORMAT, p->name, "holds neither a tensor nor a dict with one, 'param'");
    int rc = fsdpck_ds_dense(f->d, p->name, n, &t, out);
    if (rc)
        return rc;
    if (f->d->set.sliced && !p->joined && may_be_whole(f->d, p, &t) && (rc = take_shape(f, &t, out->nelem)))
        return rc;
    const bool flat = t.ndim == 1 && out->nelem == p->nelem;
    if (!flat && (t.ndim != p->ndim || memcmp(t.size, p->shape, t.ndim * sizeof *t.size) != 0))
        return fsdpck_ds_fail(f->d, FSDPCK_ERR_FORMAT, p->name, "has shape %s, %s say %s",
                              fsdpck_format_dims(found, sizeof found, t.size, t.ndim),
                              p->joined ? "the files beside it" : "the model states",
                              fsdpck_format_dims(wanted, sizeof wanted, p->shape, p->ndim));
    if (out->dtype != FSDPCK_FLOAT32)
        return fsdpck_ds_fail(f->d, FSDPCK_ERR_UNSUPPORTED, p->name, "is %s, float32 is wanted",
                              fsdpck_dtype_info(out->dtype)->name);
    return 0;
}

static int find_kind(struct deepspeed *d, const char *key, uint32_t *out)
{
    for (*out = DS_WEIGHTS + 1; *out < d->nkinds; ++*out)
        if (strcmp(d->kinds[*out], key) == 0)
            return 0;
    return fsdpck_ds_add_kind(d, key);
}

/* Adds the tensor of the open file; key: the file's name without its ending. */
static int add_tensor(struct folder *f, const char *key)
{
    struct ds_flat flat;
    uint32_t kind = DS_WEIGHTS;
    const bool weights = strcmp(key, "fp32") == 0;
    int rc = find_tensor(f, &flat);
    if (!rc && !weights)
        rc = find_kind(f->d, key, &kind);
    if (!rc)
        rc =
            weights ? fsdpck_ds_add_weights(f->d, f->param, FSDPCK_FLOAT32) : fsdpck_ds_add_state(f->d, f->param, kind);
    f->kinds |= rc ? 0 : 1u << kind;
    return rc ? rc : fsdpck_ds_add_range(f->d, param_of(f), kind, 0, flat.nelem, &flat, 0);
}

static int read_file(struct folder *f, const char *file)
{
    struct fsdpck_error *err = f->d->r.err;
    char *key = strndup(file, strlen(file) - strlen(".pt")), *name = fsdpck_path_join(f->name, file, err);
    int rc = key && name ? fsdpck_ds_open(f->d, name, 0) : fsdpck_error_nomem(err, strlen(file));
    if (!rc) {
        rc = strcmp(key, "step") == 0 ? fsdpck_ds_add_scalar(f->d, param_of(f), key, fsdpck_pickle_root(pickle(f->d)))
                                      : add_tensor(f, key);
        fsdpck_pt_file_close(&f->d->r);
    }
    free(name);
    free(key);
    return rc;
}

/* ---- one parameter ---- */

static int fail(const struct folder *f, int code, const char *what, const char *other)
{
    struct deepspeed *d = f->d;
    char *path = fsdpck_path_join(d->set.folder, f->name, d->r.err);
    if (!path)
        return FSDPCK_ERR_NOMEM;
    fsdpck_error_set(d->r.err, code, path, what, other);
    free(path);
    return d->r.err->code;
}

/* Parameters of two optimizers (Muon and AdamW) share no state; those of one have the same states. */
static int check_kinds(struct folder *f)
{
    struct deepspeed *d = f->d;
    const uint32_t weights = 1u << DS_WEIGHTS, mine = f->kinds & ~weights;
    if (!(f->kinds & weights))
        return fail(f, FSDPCK_ERR_MISSING, "has no fp32.pt, the weights%s", "");
    ds_params(d)[f->param].kinds = f->kinds;
    for (size_t i = 0; i < d->nkind_sets; i++) {
        const struct ds_param *other = &ds_params(d)[d->kind_sets[i]];
        const uint32_t others = other->kinds & ~weights;
        if (mine == others)
            return 0;
        if (!mine || !others || (mine & others))
            return fail(f, FSDPCK_ERR_MISSING,
                        "holds other states of the optimizer than the folder of '%s': a file is missing", other->name);
    }
    d->kind_sets[d->nkind_sets++] = f->param; /* no two have a kind in common: at most as many as there are kinds */
    return 0;
}

static int read_files(struct folder *f, const char *path)
{
    struct deepspeed *d = f->d;
    char **names = NULL;
    size_t count = 0;
    int rc = fsdpck_list_sorted(d->r.src->io, path, &names, &count, d->r.err);
    for (size_t i = 0; !rc && i < count; i++)
        if (ends_with(names[i], ".pt"))
            rc = read_file(f, names[i]);
    fsdpck_list_free(names, count);
    return rc ? rc : check_kinds(f);
}

static int read_folder(struct deepspeed *d, const char *name, const char *path)
{
    struct folder f = { .d = d, .name = name, .param = fsdpck_names_find(&d->by_name, strrchr(name, '/') + 1) };
    if (f.param == SIZE_MAX || ds_params(d)[f.param].frozen)
        return fsdpck_names_find(&d->in_module, strrchr(name, '/') + 1) != SIZE_MAX
                   ? 0
                   : fail(&f, FSDPCK_ERR_FORMAT, "is no parameter that the model states list%s", "");
    return read_files(&f, path);
}

/* ---- all of them ---- */

static int read_entry(struct deepspeed *d, const char *entry)
{
    char *name = fsdpck_path_join(FSDPCK_DS_UNIVERSAL, entry, d->r.err);
    char *path = name ? fsdpck_path_join(d->set.folder, name, d->r.err) : NULL;
    int rc = path ? 0 : FSDPCK_ERR_NOMEM;
    if (!rc && fsdpck_is_directory(d->r.src->io, path))
        rc = read_folder(d, name, path);
    else if (!rc && strcmp(entry, "optimizer_state.pt") == 0 && !(rc = fsdpck_ds_open(d, name, 0))) {
        rc = fsdpck_ds_add_param_groups(d, fsdpck_pickle_root(pickle(d)));
        fsdpck_pt_file_close(&d->r);
    }
    free(path);
    free(name);
    return rc;
}

int fsdpck_ds_read_universal(struct deepspeed *d)
{
    char *path = fsdpck_path_join(d->set.folder, FSDPCK_DS_UNIVERSAL, d->r.err), **names = NULL;
    size_t count = 0;
    int rc = path ? fsdpck_list_sorted(d->r.src->io, path, &names, &count, d->r.err) : FSDPCK_ERR_NOMEM;
    for (size_t i = 0; !rc && i < count; i++)
        rc = read_entry(d, names[i]);
    for (size_t i = 0; !rc && i < d->params.count; i++)
        if (!ds_params(d)[i].frozen && !ds_params(d)[i].kinds) {
            rc = fsdpck_error_set(d->r.err, FSDPCK_ERR_MISSING, path, "has no folder of this parameter");
            fsdpck_error_tensor(d->r.err, ds_params(d)[i].name);
        }
    fsdpck_list_free(names, count);
    free(path);
    return rc;
}
