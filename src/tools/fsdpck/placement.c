/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the options about meshes and placements. It knows no tensors: rules are globs that the library applies. */
#include "placement.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define AT(field) .offset = offsetof(struct placement_args, field)

const struct option placement_options[PLACEMENT_NOPTIONS] = {
    { .name = "ranks",
      .type = OPTION_COUNT,
      AT(ranks),
      .value = "N",
      .help = "shard dim 0 of every tensor among N ranks, as FSDP2 does" },
    { .name = "mesh",
      .type = OPTION_STRING,
      AT(mesh),
      .value = "NAME=SIZE,…",
      .help = "device mesh, as replicate=2,shard=4 (HSDP) or dp=4,tp=2" },
    { .name = "placement",
      .type = OPTION_STRINGS,
      AT(placement),
      .value = "'GLOB=PLACEMENT@DIM,…'|auto",
      .needs = "ranks|mesh",
      .help = "placement, on these mesh dimensions, of tensors whose name matches: '*.up_proj.weight=shard(0)@tp', "
              "'*norm*=replicate@tp' (may be repeated; the first match counts); auto: others on dimensions tp and ep "
              "as the model's family is run" },
    { .name = "replicate",
      .type = OPTION_LIST,
      AT(replicate),
      .value = "GLOB",
      .needs = "ranks|mesh",
      .help = "keep whole the tensors whose name matches (comma-separated; may be repeated)" },
};

/* Copies text; the copy lives as long as the spec. */
static const char *keep(struct placement_spec *spec, const char *text, size_t nbytes)
{
    return strings_add(&spec->words, text, nbytes) ? spec->words.at[spec->words.count - 1] : NULL;
}

static bool plain_name(const char *s, size_t nbytes)
{
    return nbytes > 0 && nbytes < 64 &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") >= nbytes;
}

static bool mesh_has(const struct fsdpck_mesh *mesh, const char *name)
{
    for (uint32_t i = 0; i < mesh->ndim; i++) {
        if (strcmp(mesh->names[i], name) == 0)
            return true;
    }
    return false;
}

/* Parses "shard=4". */
static int add_mesh_dim(struct placement_spec *spec, const char *text, struct fsdpck_error *err)
{
    struct fsdpck_mesh *mesh = &spec->mesh;
    size_t n = strcspn(text, "=");
    uint32_t size;
    if (!plain_name(text, n) || !text[n] || !value_count(text + n + 1, &size))
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "--mesh: found '%s', wanted NAME=SIZE as in shard=4",
                                text);
    if (mesh->ndim == FSDPCK_MAX_MESH_DIMS)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "--mesh: found more than %d dimensions",
                                FSDPCK_MAX_MESH_DIMS);
    const char *name = keep(spec, text, n);
    if (!name)
        return fsdpck_error_nomem(err, n);
    if (mesh_has(mesh, name))
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "--mesh: found dimension '%s' twice", name);
    mesh->names[mesh->ndim] = name;
    mesh->sizes[mesh->ndim++] = size;
    return 0;
}

static int parse_mesh(const char *text, struct placement_spec *spec, struct fsdpck_error *err)
{
    struct strings parts = { 0 };
    int rc = strings_add_list(&parts, text) ? 0 : fsdpck_error_nomem(err, strlen(text));
    for (size_t i = 0; i < parts.count && !rc; i++)
        rc = add_mesh_dim(spec, parts.at[i], err);
    strings_free(&parts);
    return rc;
}

/* Number of ranks of the mesh, or one more than allowed if there are too many. */
static uint64_t count_ranks(const struct fsdpck_mesh *mesh)
{
    uint64_t nranks = 1;
    for (uint32_t i = 0; i < mesh->ndim && nranks <= FSDPCK_MAX_RANKS; i++)
        nranks *= mesh->sizes[i];
    return nranks <= FSDPCK_MAX_RANKS ? nranks : FSDPCK_MAX_RANKS + 1ull;
}

static int resolve_mesh(const struct placement_args *args, struct placement_spec *out, struct fsdpck_error *err)
{
    if (!args->ranks && !args->mesh)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                "found neither --ranks nor --mesh, wanted --ranks N or --mesh NAME=SIZE,…");
    if (!args->mesh) {
        out->mesh = (struct fsdpck_mesh){ .ndim = 1, .names = { "shard" }, .sizes = { args->ranks } };
    } else {
        int rc = parse_mesh(args->mesh, out, err);
        if (rc)
            return rc;
    }
    uint64_t nranks = count_ranks(&out->mesh);
    if (nranks > FSDPCK_MAX_RANKS)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "found more than %u ranks", FSDPCK_MAX_RANKS);
    if (args->ranks && args->ranks != nranks)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                "--ranks %u: found a mesh of %" PRIu64 " rank%s in --mesh %s", args->ranks, nranks,
                                fsdpck_plural(nranks), args->mesh);
    return 0;
}

/* Parses "shard(1)@tp"; "@tp" may be omitted if the mesh has one dimension. */
static int add_placement(struct placement_spec *spec, struct fsdpck_placement_rule *rule, const char *text,
                         struct fsdpck_error *err)
{
    size_t n = strcspn(text, "@");
    const char *dim = text[n] ? text + n + 1 : spec->mesh.ndim == 1 ? spec->mesh.names[0] : "";
    struct fsdpck_placement placement;
    const char *kind = keep(spec, text, n), *name = keep(spec, dim, strlen(dim));
    if (!kind || !name)
        return fsdpck_error_nomem(err, strlen(text));
    if (!fsdpck_placement_parse(kind, &placement) || !*name)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                "--placement: found '%s', wanted shard(DIM)@MESH_DIM or replicate@MESH_DIM", text);
    if (!mesh_has(&spec->mesh, name))
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                "--placement: '%s' names mesh dimension '%s', which the mesh does not have", text,
                                name);
    for (size_t i = 0; i < rule->n; i++) {
        if (strcmp(rule->mesh_dim[i], name) == 0)
            return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                    "--placement: found mesh dimension '%s' twice in one rule", name);
    }
    rule->mesh_dim[rule->n] = name;
    rule->placement[rule->n++] = placement;
    return 0;
}

/* Splits a rule at its last '=', because a glob may contain others and placements contain none. */
static int parse_rule(struct placement_spec *spec, const char *text, struct fsdpck_placement_rule *rule,
                      struct fsdpck_error *err)
{
    struct strings parts = { 0 };
    const char *equals = strrchr(text, '=');
    if (!equals || equals == text)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                "--placement: found '%s', wanted 'GLOB=shard(1)@tp' or auto", text);
    int rc = strings_add_list(&parts, equals + 1) ? 0 : fsdpck_error_nomem(err, strlen(text));
    rule->glob = keep(spec, text, (size_t)(equals - text));
    if (!rule->glob)
        rc = fsdpck_error_nomem(err, strlen(text));
    for (size_t i = 0; i < parts.count && !rc; i++)
        rc = add_placement(spec, rule, parts.at[i], err);
    strings_free(&parts);
    return rc;
}

bool placement_given(const struct placement_args *args)
{
    return args->ranks || args->mesh || args->placement.count || args->replicate.count;
}

int placement_resolve(const struct placement_args *args, struct placement_spec *out, struct fsdpck_error *err)
{
    int rc = resolve_mesh(args, out, err);
    if (rc || args->placement.count == 0)
        return rc;
    out->rules = calloc(args->placement.count, sizeof *out->rules);
    if (!out->rules)
        return fsdpck_error_nomem(err, args->placement.count * sizeof *out->rules);
    for (size_t i = 0; i < args->placement.count && !rc; i++)
        if (strcmp(args->placement.at[i], "auto") == 0)
            out->by_family = true;
        else
            rc = parse_rule(out, args->placement.at[i], &out->rules[out->nrules++], err);
    return rc;
}

void placement_spec_free(struct placement_spec *spec)
{
    free(spec->rules);
    strings_free(&spec->words);
    *spec = (struct placement_spec){ 0 };
}

void placement_fill(const struct placement_args *args, const struct placement_spec *spec,
                    struct fsdpck_convert_request *req)
{
    req->mesh = spec->mesh;
    req->rules = spec->rules;
    req->nrules = spec->nrules;
    req->by_family = spec->by_family;
    req->replicate = (const char *const *)args->replicate.at;
    req->nreplicate = args->replicate.count;
}
