/* SPDX-License-Identifier: Apache-2.0 */
/* See convert_family.h. */
#include "verbs/convert_family.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hf/weight_names.h"

/* ---- mesh and heads ---- */

static uint32_t find_dim(const struct fsdpck_mesh *mesh, const char *name, uint32_t *size)
{
    uint32_t d = 0;
    while (d < mesh->ndim && strcmp(mesh->names[d], name) != 0)
        d++;
    *size = d < mesh->ndim ? mesh->sizes[d] : 1;
    return d;
}

/* Heads of k and v: as many ranks as heads, or a multiple, share them; vLLM's rule. */
static bool kv_fits(const struct fsdpck_by_family *b)
{
    const uint64_t heads = b->family.kv_heads;
    return heads % b->ntp == 0 || b->ntp % heads == 0;
}

static int refuse_heads(const struct fsdpck_by_family *b, const char *file, struct fsdpck_error *err)
{
    const struct fsdpck_family *f = &b->family;
    if (f->heads % b->ntp != 0)
        fsdpck_error_set(err, FSDPCK_ERR_USAGE, file,
                         "--placement auto: tp=%u would cut one of %" PRIu64 " attention heads", b->ntp, f->heads);
    else
        fsdpck_error_set(err, FSDPCK_ERR_USAGE, file,
                         "--placement auto: tp=%u is neither a divisor nor a multiple of the %" PRIu64
                         " heads of k and v",
                         b->ntp, f->kv_heads);
    fsdpck_error_hint(err, "choose a tp that divides the number of heads");
    return FSDPCK_ERR_USAGE;
}

int fsdpck_by_family_begin(const struct fsdpck_source *src, const struct fsdpck_convert_request *req,
                           struct fsdpck_by_family *out, struct fsdpck_error *err)
{
    *out = (struct fsdpck_by_family){ .mesh = &req->mesh };
    out->tp = find_dim(&req->mesh, "tp", &out->ntp);
    out->ep = find_dim(&req->mesh, "ep", &out->nep);
    if (out->tp == req->mesh.ndim && out->ep == req->mesh.ndim) {
        fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                         "--placement auto: the mesh has no dimension tp (tensor parallel) or ep (experts)");
        fsdpck_error_hint(err, "--mesh dp=2,tp=4");
        return FSDPCK_ERR_USAGE;
    }
    int rc = fsdpck_family_read(src, req->assets, "--placement auto", &out->family, err);
    if (rc || (out->family.heads % out->ntp == 0 && kv_fits(out)))
        return rc;
    char *config = fsdpck_weight_config(src, req->assets);
    rc = refuse_heads(out, config, err);
    free(config);
    return rc;
}

/* ---- one tensor ---- */

static int refuse(const struct fsdpck_tensor *t, struct fsdpck_error *err)
{
    fsdpck_error_tensor(err, t->name);
    return err->code;
}

static int refuse_joined(const struct fsdpck_tensor *t, struct fsdpck_error *err)
{
    fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, NULL,
                     "--placement auto: has q, k and v in one tensor, whose heads no placement tells apart");
    fsdpck_error_hint(err, "--names hf takes them apart; 'export --style vllm-sharded' cuts them as vLLM does");
    return refuse(t, err);
}

/* Whether tp cuts equal parts, where columns of another weight go with them. */
static int check_parts(const struct fsdpck_by_family *b, const struct fsdpck_tensor *t,
                       const struct fsdpck_family_cut *cut, struct fsdpck_error *err)
{
    const uint64_t n = t->shape[cut->dim];
    if (!cut->equal || n % ((uint64_t)cut->equal * b->ntp) == 0)
        return 0;
    fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                     "--placement auto: tp=%u does not cut the %" PRIu64
                     " elements along dimension %u into equal parts%s",
                     b->ntp, n, cut->dim, cut->equal > 1 ? " of gate and of up" : "");
    fsdpck_error_hint(err, "choose a tp that divides %" PRIu64, n / cut->equal);
    return refuse(t, err);
}

static struct fsdpck_placement slice(const struct fsdpck_family_cut *cut)
{
    return cut->nhalves > 1 ? (struct fsdpck_placement){ FSDPCK_STRIDED_SHARD, cut->dim, cut->nhalves }
                            : (struct fsdpck_placement){ FSDPCK_SHARD, cut->dim, 0 };
}

static void add(const struct fsdpck_by_family *b, struct fsdpck_placement_rule *rule, uint32_t dim,
                struct fsdpck_placement placement)
{
    if (dim == b->mesh->ndim)
        return;
    rule->mesh_dim[rule->n] = b->mesh->names[dim];
    rule->placement[rule->n++] = placement;
}

/* As torch.chunk cuts a stack of the experts. */
static int place_expert(const struct fsdpck_by_family *b, const struct fsdpck_tensor *t, uint64_t expert,
                        struct fsdpck_convert_place *place, struct fsdpck_error *err)
{
    const uint64_t n = b->family.nexperts, each = n / b->nep + (n % b->nep != 0);
    if (expert < n) {
        place->only_dim = b->ep;
        place->only_at = (uint32_t)(expert / each);
        return 0;
    }
    fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL,
                     "--placement auto: is of expert %" PRIu64 ", and config.json says that there are %" PRIu64, expert,
                     n);
    return refuse(t, err);
}

int fsdpck_by_family_rule(struct fsdpck_by_family *b, const struct fsdpck_tensor *t, struct fsdpck_placement_rule *rule,
                          struct fsdpck_convert_place *place, struct fsdpck_error *err)
{
    const struct fsdpck_placement whole = { .kind = FSDPCK_REPLICATE };
    struct fsdpck_family_cut cut;
    const bool known = fsdpck_family_find(&b->family, t, &cut),
               in_layer = fsdpck_family_is_in_layer(&b->family, t->name);
    const bool kv_whole = cut.part == FSDPCK_PART_KV && b->family.kv_heads % b->ntp != 0;
    *rule = (struct fsdpck_placement_rule){ .glob = "auto" };
    b->nknown += known && in_layer;
    if (!known && in_layer && b->nunknown++ == 0)
        b->unknown = t->name;
    if (kv_whole && !b->kv_name)
        b->kv_name = t->name;
    int rc = cut.part == FSDPCK_PART_QKV && b->ntp > 1 ? refuse_joined(t, err) : 0;
    if (!rc && cut.part != FSDPCK_PART_WHOLE)
        rc = check_parts(b, t, &cut, err);
    if (!rc && cut.experts == FSDPCK_EXPERTS_ONE && b->ep < b->mesh->ndim)
        rc = place_expert(b, t, cut.expert, place, err);
    add(b, rule, b->tp, cut.part == FSDPCK_PART_WHOLE || cut.part == FSDPCK_PART_QKV || kv_whole ? whole : slice(&cut));
    add(b, rule, b->ep,
        cut.experts == FSDPCK_EXPERTS_STACK ? (struct fsdpck_placement){ .kind = FSDPCK_SHARD } : whole);
    return rc;
}

/* ---- all tensors ---- */

int fsdpck_by_family_end(const struct fsdpck_by_family *b, const struct fsdpck_source *src,
                         const struct fsdpck_options *opt, struct fsdpck_error *err)
{
    char line[500];
    if (!b->nknown) {
        fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, fsdpck_source_path(src),
                         "--placement auto: no weight has a name that it knows in a %s", b->family.model_type);
        fsdpck_error_hint(err, "--names hf gives the weights the names that models are published with");
        return err->code;
    }
    if (b->kv_name && opt->note) {
        snprintf(line, sizeof line,
                 "--placement auto: k and v have %" PRIu64
                 " head%s for tp=%u: every rank of tp has all of them ('%.200s' …)",
                 b->family.kv_heads, fsdpck_plural(b->family.kv_heads), b->ntp, b->kv_name);
        opt->note(opt->ctx, line);
    }
    if (b->nunknown && opt->note) {
        snprintf(
            line, sizeof line,
            "--placement auto: %zu tensor%s of layers stay%s whole on tp and ep, as no rule is known for '%.200s'%s",
            b->nunknown, fsdpck_plural(b->nunknown), b->nunknown == 1 ? "s" : "", b->unknown,
            b->nunknown > 1 ? " and others" : "");
        opt->note(opt->ctx, line);
    }
    return 0;
}
