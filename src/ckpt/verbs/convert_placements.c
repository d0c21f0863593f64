/* SPDX-License-Identifier: Apache-2.0 */
/* Places a tensor on a mesh for `convert`: FSDP2's defaults, and the rules that change them. Pure. */
#include "verbs/convert_family.h"

#include <stdlib.h>
#include <string.h>

#include "base/suffix.h"
#include "engine/unmatched.h"

static bool replicates(const char *name)
{
    return strcmp(name, "replicate") == 0 || ends_with(name, "_replicate");
}

/* The first mesh dimension that does not replicate shards dim 0; the others replicate, and so do those that are for
 * the model's family to place. */
static void set_defaults(const struct fsdpck_mesh *mesh, const struct fsdpck_by_family *by_family,
                         struct fsdpck_placement *placements)
{
    bool sharded = false;
    for (uint32_t d = 0; d < mesh->ndim; d++) {
        const bool of_family = by_family && (d == by_family->tp || d == by_family->ep);
        bool shard = !sharded && !of_family && !replicates(mesh->names[d]);
        placements[d] = (struct fsdpck_placement){ .kind = shard ? FSDPCK_SHARD : FSDPCK_REPLICATE };
        sharded |= shard;
    }
}

static int apply_rule(const struct fsdpck_mesh *mesh, const struct fsdpck_placement_rule *rule,
                      struct fsdpck_placement *placements, struct fsdpck_error *err)
{
    for (size_t i = 0; i < rule->n; i++) {
        uint32_t d = 0;
        while (d < mesh->ndim && strcmp(mesh->names[d], rule->mesh_dim[i]) != 0)
            d++;
        if (d == mesh->ndim)
            return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                    "the placement of '%s' names mesh dimension '%s', which the mesh does not have",
                                    rule->glob, rule->mesh_dim[i]);
        placements[d] = rule->placement[i];
    }
    return 0;
}

static bool rule_sets(const struct fsdpck_placement_rule *rule, const char *mesh_dim)
{
    for (size_t i = 0; rule && i < rule->n; i++)
        if (strcmp(rule->mesh_dim[i], mesh_dim) == 0)
            return true;
    return false;
}

/* Finds a dimension of the tensor that no mesh dimension cuts; ndim: there is none. */
static uint32_t find_uncut(const struct fsdpck_mesh *mesh, const struct fsdpck_tensor *t,
                           const struct fsdpck_placement *placements)
{
    for (uint32_t dim = 0; dim < t->ndim; dim++) {
        bool cut = false;
        for (uint32_t d = 0; d < mesh->ndim; d++)
            cut |= placements[d].kind != FSDPCK_REPLICATE && placements[d].dim == dim;
        if (!cut)
            return dim;
    }
    return t->ndim;
}

/* Data parallelism shards the parts that tensor parallelism left: if a later mesh dimension shards the same tensor
 * dimension, the default shard of an earlier one is strided, as with FSDP2 over TP.
 * of_family: the rule is that of the model's family. Its strided shards count too, and where parts of unequal size
 * would not be those that it left, another dimension is sharded. */
static void make_strided(const struct fsdpck_mesh *mesh, const struct fsdpck_placement_rule *rule,
                         const struct fsdpck_tensor *t, bool of_family, struct fsdpck_placement *placements)
{
    for (uint32_t d = 0; d < mesh->ndim; d++) {
        struct fsdpck_placement *p = &placements[d];
        uint32_t split = 1;
        if (p->kind != FSDPCK_SHARD || rule_sets(rule, mesh->names[d]))
            continue;
        for (uint32_t k = d + 1; k < mesh->ndim; k++)
            if ((placements[k].kind == FSDPCK_SHARD || of_family) && placements[k].kind != FSDPCK_REPLICATE &&
                placements[k].dim == p->dim)
                split *= mesh->sizes[k] * (placements[k].kind == FSDPCK_STRIDED_SHARD ? placements[k].split : 1);
        const uint32_t other = of_family && t->shape[p->dim] % split != 0 ? find_uncut(mesh, t, placements) : p->dim;
        if (other == t->ndim)
            *p = (struct fsdpck_placement){ .kind = FSDPCK_REPLICATE };
        else if (other != p->dim)
            p->dim = other;
        else if (split > 1)
            *p = (struct fsdpck_placement){ .kind = FSDPCK_STRIDED_SHARD, .dim = p->dim, .split = split };
    }
}

static int check_dims(const struct fsdpck_tensor *t, const struct fsdpck_placement_rule *rule, uint32_t nplacements,
                      const struct fsdpck_placement *placements, struct fsdpck_error *err)
{
    for (uint32_t d = 0; d < nplacements; d++) {
        if (placements[d].kind == FSDPCK_REPLICATE || placements[d].dim < t->ndim)
            continue;
        fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "shard(%u) is asked for, the tensor has %u dimension%s",
                         placements[d].dim, t->ndim, fsdpck_plural(t->ndim));
        fsdpck_error_tensor(err, t->name);
        fsdpck_error_hint(
            err, "the placement '%s' matches it: a narrower glob, or a rule for this tensor before it, leaves it out",
            rule ? rule->glob : "");
        return FSDPCK_ERR_USAGE;
    }
    return 0;
}

static bool is_replicated(const struct fsdpck_convert_request *req, const char *name)
{
    for (size_t i = 0; i < req->nreplicate; i++)
        if (fsdpck_glob_match(req->replicate[i], name))
            return true;
    return false;
}

/* Returns the first rule that matches; nrules: none. */
static size_t rule_of(const struct fsdpck_convert_request *req, const char *name)
{
    size_t i = 0;
    while (i < req->nrules && !fsdpck_glob_match(req->rules[i].glob, name))
        i++;
    return i;
}

int fsdpck_convert_mesh_check(const struct fsdpck_mesh *mesh, struct fsdpck_error *err)
{
    if (mesh->ndim == 0 || mesh->ndim > FSDPCK_MAX_MESH_DIMS)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "a mesh of %u dimensions; it has 1 to %d", mesh->ndim,
                                FSDPCK_MAX_MESH_DIMS);
    uint64_t n = 1;
    for (uint32_t d = 0; d < mesh->ndim; d++) {
        for (uint32_t k = 0; k < d; k++)
            if (strcmp(mesh->names[d], mesh->names[k]) == 0)
                return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "the mesh has two dimensions named '%s'",
                                        mesh->names[d]);
        n *= mesh->sizes[d]; /* at most 2^16 * 2^32 before the check */
        if (n == 0 || n > FSDPCK_MAX_RANKS)
            return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "a mesh has 1 to %u ranks", FSDPCK_MAX_RANKS);
    }
    return 0;
}

int fsdpck_place(const struct fsdpck_convert_request *req, struct fsdpck_by_family *by_family,
                 const struct fsdpck_tensor *tensor, struct fsdpck_convert_place *out, struct fsdpck_error *err)
{
    const bool replicate = tensor->ndim == 0 || is_replicated(req, tensor->name);
    struct fsdpck_placement_rule of_family;
    int rc = 0;
    *out = (struct fsdpck_convert_place){ .only_dim = req->mesh.ndim };
    set_defaults(&req->mesh, by_family, out->on);
    for (uint32_t d = 0; replicate && d < req->mesh.ndim; d++)
        out->on[d] = (struct fsdpck_placement){ .kind = FSDPCK_REPLICATE };
    if (replicate)
        return 0;
    const size_t first = rule_of(req, tensor->name);
    const struct fsdpck_placement_rule *rule = first < req->nrules ? &req->rules[first] : NULL;
    if (!rule && by_family) {
        rc = fsdpck_by_family_rule(by_family, tensor, &of_family, out, err);
        rule = &of_family;
    }
    if (!rc && rule)
        rc = apply_rule(&req->mesh, rule, out->on, err);
    if (rc)
        return rc;
    make_strided(&req->mesh, rule, tensor, rule == &of_family, out->on);
    return check_dims(tensor, rule, req->mesh.ndim, out->on, err);
}

int fsdpck_convert_placements(const struct fsdpck_convert_request *req, const struct fsdpck_tensor *tensor,
                              struct fsdpck_placement *placements, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    struct fsdpck_convert_place place;
    int rc = fsdpck_place(req, NULL, tensor, &place, err ? err : &own);
    memcpy(placements, place.on, req->mesh.ndim * sizeof *placements);
    return rc;
}

/* ---- patterns without effect ---- */

static int unmatched(const char *option, const char *glob, const struct fsdpck_convert_tensor *tensors, size_t ntensors,
                     const char *file, struct fsdpck_error *err)
{
    struct fsdpck_unmatched u = { .pattern = glob };
    for (size_t i = 0; i < ntensors; i++)
        fsdpck_unmatched_try(&u, tensors[i].name);
    return fsdpck_unmatched_error(&u, file, option, err);
}

static const struct fsdpck_convert_tensor *first_match(const char *glob, const struct fsdpck_convert_tensor *tensors,
                                                       size_t ntensors)
{
    for (size_t i = 0; i < ntensors; i++)
        if (fsdpck_glob_match(glob, tensors[i].name))
            return &tensors[i];
    return NULL;
}

static int check_rule(const struct fsdpck_convert_request *req, size_t rule,
                      const struct fsdpck_convert_tensor *tensors, size_t ntensors, const char *file,
                      struct fsdpck_error *err)
{
    const char *glob = req->rules[rule].glob;
    const struct fsdpck_convert_tensor *match = first_match(glob, tensors, ntensors);
    if (!match)
        return unmatched("--placement", glob, tensors, ntensors, file, err);
    for (const struct fsdpck_convert_tensor *t = match; t < tensors + ntensors; t++)
        if (t->ndim && !t->alias && fsdpck_glob_match(glob, t->name) && rule_of(req, t->name) == rule &&
            !is_replicated(req, t->name))
            return 0;
    fsdpck_error_set(err, FSDPCK_ERR_USAGE, file, "--placement: the rule of '%s' is never used, as '%s' %s", glob,
                     match->name,
                     match->ndim == 0 ? "is a scalar, which every rank has"
                     : match->alias   ? "is a second name, with the placement of what it names"
                                      : "is taken by --replicate or a rule before it");
    fsdpck_error_hint(err, "the first rule that matches a tensor counts: the narrower glob goes first");
    return FSDPCK_ERR_USAGE;
}

int fsdpck_convert_rules_check(const struct fsdpck_convert_request *req, const struct fsdpck_convert_tensor *tensors,
                               size_t ntensors, const char *file, struct fsdpck_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < req->nreplicate && !rc; i++)
        if (!first_match(req->replicate[i], tensors, ntensors))
            rc = unmatched("--replicate", req->replicate[i], tensors, ntensors, file, err);
    for (size_t i = 0; i < req->nrules && !rc; i++)
        rc = check_rule(req, i, tensors, ntensors, file, err);
    return rc;
}

/* ---- all tensors of a source ---- */

static int check_source(const struct fsdpck_source *src, const struct fsdpck_convert_request *req,
                        struct fsdpck_error *err)
{
    const size_t n = fsdpck_source_ntensors(src);
    struct fsdpck_convert_tensor *placed = calloc(n + 1, sizeof *placed);
    if (!placed)
        return fsdpck_error_nomem(err, n * sizeof *placed);
    for (size_t i = 0; i < n; i++) {
        const struct fsdpck_tensor *t = fsdpck_source_tensor(src, i);
        placed[i] = (struct fsdpck_convert_tensor){ t->name, t->ndim, t->alias_of >= 0 };
    }
    int rc = fsdpck_convert_rules_check(req, placed, n, fsdpck_source_path(src), err);
    free(placed);
    return rc;
}

int fsdpck_convert_places(const struct fsdpck_source *src, const struct fsdpck_convert_request *req,
                          struct fsdpck_convert_place *places, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    struct fsdpck_by_family by_family;
    err = err ? err : &own;
    int rc = check_source(src, req, err);
    if (!rc && req->by_family)
        rc = fsdpck_by_family_begin(src, req, &by_family, err);
    for (size_t i = 0; i < fsdpck_source_ntensors(src) && !rc; i++)
        rc = fsdpck_place(req, req->by_family ? &by_family : NULL, fsdpck_source_tensor(src, i), &places[i], err);
    return !rc && req->by_family ? fsdpck_by_family_end(&by_family, src, &src->opt, err) : rc;
}
