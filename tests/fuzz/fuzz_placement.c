/* SPDX-License-Identifier: Apache-2.0 */
/* --mesh and --placement: the first line of the input is the mesh, every other one a rule. Properties: accepted text
 * gives a valid mesh and rules on its dimensions; formatting and parsing a placement gives it back; tensors get valid
 * placements, or an error. */
#include <string.h>

#include "placement.h"
#include "fuzz.h"

static void check_text(const struct fsdpck_placement *p)
{
    struct fsdpck_placement again;
    char text[64];
    FUZZ_CHECK(fsdpck_placement_parse(fsdpck_placement_format(p, text, sizeof text), &again));
    FUZZ_CHECK(again.kind == p->kind && again.dim == p->dim && again.split == p->split);
}

static void check_spec(const struct placement_spec *spec)
{
    uint64_t nranks = fsdpck_mesh_nranks(&spec->mesh);
    FUZZ_CHECK(spec->mesh.ndim >= 1 && spec->mesh.ndim <= FSDPCK_MAX_MESH_DIMS && nranks >= 1 &&
               nranks <= FSDPCK_MAX_RANKS);
    for (size_t i = 0; i < spec->nrules; i++) {
        FUZZ_CHECK(spec->rules[i].glob && spec->rules[i].n >= 1 && spec->rules[i].n <= spec->mesh.ndim);
        for (size_t k = 0; k < spec->rules[i].n; k++)
            check_text(&spec->rules[i].placement[k]);
    }
}

static void check_tensor(const struct fsdpck_convert_request *req, uint32_t ndim)
{
    static const uint64_t shape[] = { 5, 3, 2 };
    const struct fsdpck_tensor t = { .name = "model.layers.0.norm.weight", .ndim = ndim, .shape = shape };
    struct fsdpck_placement placements[FSDPCK_MAX_MESH_DIMS];
    struct fsdpck_error err = { 0 };
    int r = fsdpck_convert_placements(req, &t, placements, &err);
    FUZZ_CHECK(r == err.code && (r == 0 || r == FSDPCK_ERR_USAGE));
    for (uint32_t d = 0; r == 0 && d < req->mesh.ndim; d++) {
        check_text(&placements[d]);
        FUZZ_CHECK(placements[d].kind == FSDPCK_REPLICATE || placements[d].dim < ndim);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    char *text = fuzz_text(data, nbytes), *rest = text;
    struct placement_args args = { .mesh = strsep(&rest, "\n") };
    struct placement_spec spec = { 0 };
    struct fsdpck_convert_request req = { 0 };
    struct fsdpck_error err = { 0 };
    while (rest) {
        const char *rule = strsep(&rest, "\n");
        FUZZ_CHECK(strings_add(&args.placement, rule, strlen(rule)));
    }
    int r = placement_resolve(&args, &spec, &err);
    FUZZ_CHECK(r == err.code && (r == 0 || r == FSDPCK_ERR_USAGE));
    if (r == 0) {
        check_spec(&spec);
        placement_fill(&args, &spec, &req);
        for (uint32_t ndim = 0; ndim <= 3; ndim++)
            check_tensor(&req, ndim);
    }
    placement_spec_free(&spec);
    strings_free(&args.placement);
    free(text);
    return 0;
}
