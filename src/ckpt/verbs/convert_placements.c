/* SPDX-License-Identifier: Apache-2.0 */
/* Places a tensor on a mesh for `convert`: FSDP2's defaults, and the rules that change them. Pure. */
#include <fsdpck/convert.h>

#include <string.h>

#include "base/suffix.h"
#include "engine/unmatched.h"

static bool replicates(const char *name)
{
    return strcmp(name, "replicate") == 0 || ends_with(name, "_replicate");
}

/* The first mesh dimension that does not replicate shards dim 0; the others replicate. */
static void set_defaults(const struct fsdpck_mesh *mesh, struct fsdpck_placement *placements)
{
    bool sharded = false;
    for (uint32_t d = 0; d < mesh->ndim; d++) {
        bool shard = !sharded && !replicates(mesh->names[d]);
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

static bool rule_says(const struct fsdpck_placement_rule *rule, const char *mesh_dim)
{
    for (size_t i = 0; rule && i < rule->n; i++)
        if (strcmp(rule->mesh_dim[i], mesh_dim) == 0)
            return true;
    return false;
}

/* Data parallelism shards the parts that tensor parallelism left: if a later mesh dimension shards the same tensor
 * dimension, the default shard of an earlier one is strided, as with FSDP2 over TP. */
static void make_strided(const struct fsdpck_mesh *mesh, const struct fsdpck_placement_rule *rule,
                         struct fsdpck_placement *placements)
{
    for (uint32_t d = 0; d < mesh->ndim; d++) {
        uint32_t split = 1;
        if (placements[d].kind != FSDPCK_SHARD || rule_says(rule, mesh->names[d]))
            continue;
        for (uint32_t k = d + 1; k < mesh->ndim; k++)
            if (placements[k].kind == FSDPCK_SHARD && placements[k].dim == placements[d].dim)
                split *= mesh->sizes[k];
        if (split > 1)
            placements[d] =
                (struct fsdpck_placement){ .kind = FSDPCK_STRIDED_SHARD, .dim = placements[d].dim, .split = split };
    }
}

static int check_dims(const struct fsdpck_tensor *t, const struct fsdpck_placement_rule *rule, uint32_t nplacements,
                      const struct fsdpck_placement *placements, struct fsdpck_error *err)
{
    for (uint32_t d = 0; d < nplacements; d++) {
        if (placements[d].kind == FSDPCK_REPLICATE || placements[d].dim < t->ndim)
            continue;
        fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "shard(%u) is asked for, the tensor has %u dimension%s",
                         placements[d].dim, t->ndim, t->ndim == 1 ? "" : "s");
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

int fsdpck_convert_placements(const struct fsdpck_convert_request *req, const struct fsdpck_tensor *tensor,
                              struct fsdpck_placement *placements, struct fsdpck_error *err)
{
    bool replicate = tensor->ndim == 0 || is_replicated(req, tensor->name);
    set_defaults(&req->mesh, placements);
    for (uint32_t d = 0; replicate && d < req->mesh.ndim; d++)
        placements[d] = (struct fsdpck_placement){ .kind = FSDPCK_REPLICATE };
    if (replicate)
        return 0;
    const size_t first = rule_of(req, tensor->name);
    const struct fsdpck_placement_rule *rule = first < req->nrules ? &req->rules[first] : NULL;
    int rc = rule ? apply_rule(&req->mesh, rule, placements, err) : 0;
    if (rc)
        return rc;
    make_strided(&req->mesh, rule, placements);
    return check_dims(tensor, rule, req->mesh.ndim, placements, err);
}

/* ---- patterns without effect ---- */

static int unmatched(const char *option, const char *glob, const struct fsdpck_placed *tensors, size_t ntensors,
                     const char *file, struct fsdpck_error *err)
{
    struct fsdpck_unmatched u = { .pattern = glob };
    for (size_t i = 0; i < ntensors; i++)
        fsdpck_unmatched_try(&u, tensors[i].name);
    return fsdpck_unmatched_error(&u, file, option, err);
}

static const struct fsdpck_placed *first_match(const char *glob, const struct fsdpck_placed *tensors, size_t ntensors)
{
    for (size_t i = 0; i < ntensors; i++)
        if (fsdpck_glob_match(glob, tensors[i].name))
            return &tensors[i];
    return NULL;
}

static int check_rule(const struct fsdpck_convert_request *req, size_t rule, const struct fsdpck_placed *tensors,
                      size_t ntensors, const char *file, struct fsdpck_error *err)
{
    const char *glob = req->rules[rule].glob;
    const struct fsdpck_placed *match = first_match(glob, tensors, ntensors);
    if (!match)
        return unmatched("--placement", glob, tensors, ntensors, file, err);
    for (const struct fsdpck_placed *t = match; t < tensors + ntensors; t++)
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

int fsdpck_convert_rules_check(const struct fsdpck_convert_request *req, const struct fsdpck_placed *tensors,
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
