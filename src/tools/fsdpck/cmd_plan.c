/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdpck plan`: shows what each rank would read of a source. It reads metadata only. */
#include "commands.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/report.h"
#include "placement.h"
#include "plan_out.h"
#include "source_arg.h"

struct plan_args {
    struct common_args common;
    struct source_args source;
    struct placement_args placement;
};

/* The reads of one rank, and the storage for their boxes. */
struct reads {
    struct fsdpck_read *at; /* (count); NULL: count only */
    size_t count;
    uint64_t *numbers; /* (nnumbers) offsets and sizes of the boxes; each read uses 2*ndim of them */
    size_t nnumbers;
    const struct fsdpck_tensor *tensor; /* whose boxes are being added */
};

/* Adds a read. A scalar needs no numbers: the whole tensor is read. */
static int add_box(void *ctx, const uint64_t *offset, const uint64_t *size)
{
    struct reads *r = ctx;
    const uint32_t ndim = r->tensor->ndim;
    if (r->at) {
        uint64_t *box = r->numbers + r->nnumbers;
        for (uint32_t d = 0; d < ndim; d++) {
            box[d] = offset[d];
            box[ndim + d] = size[d];
        }
        r->at[r->count] =
            (struct fsdpck_read){ .tensor = r->tensor, .offset = ndim ? box : NULL, .size = ndim ? box + ndim : NULL };
    }
    r->nnumbers += 2 * (size_t)ndim;
    r->count++;
    return 0;
}

/* placements: (ntensors, mesh.ndim) */
static int add_boxes(const struct fsdpck_source *src, const struct fsdpck_mesh *mesh,
                     const struct fsdpck_placement *placements, uint32_t rank, struct reads *r)
{
    uint32_t coord[FSDPCK_MAX_MESH_DIMS];
    int rc = 0;
    r->count = r->nnumbers = 0;
    fsdpck_mesh_coordinate(mesh, rank, coord);
    for (size_t i = 0; i < fsdpck_source_ntensors(src) && !rc; i++) {
        r->tensor = fsdpck_source_tensor(src, i);
        if (r->tensor->alias_of < 0)
            rc = fsdpck_placement_boxes(mesh, placements + i * mesh->ndim, r->tensor->ndim, r->tensor->shape, coord,
                                        add_box, r);
    }
    return rc;
}

static int plan_rank(struct fsdpck_source *src, const struct fsdpck_mesh *mesh,
                     const struct fsdpck_placement *placements, uint32_t rank, struct fsdpck_plan *out,
                     struct fsdpck_error *err)
{
    struct reads r = { 0 };
    int rc = add_boxes(src, mesh, placements, rank, &r);
    if (!rc) {
        r.at = calloc(r.count + 1, sizeof *r.at);
        r.numbers = calloc(r.nnumbers + 1, sizeof *r.numbers);
        rc = r.at && r.numbers ? add_boxes(src, mesh, placements, rank, &r)
                               : fsdpck_error_nomem(err, r.count * sizeof *r.at);
    }
    if (!rc)
        rc = fsdpck_source_plan(src, r.at, r.count, out, err);
    free(r.at);
    free(r.numbers);
    return rc;
}

static int plan_ranks(struct fsdpck_source *src, const struct fsdpck_mesh *mesh,
                      const struct fsdpck_placement *placements, const struct fsdpck_options *opt,
                      struct fsdpck_plan *plans, struct fsdpck_error *err)
{
    int rc = 0;
    uint64_t nranks = fsdpck_mesh_nranks(mesh);
    for (uint32_t rank = 0; rank < nranks && !rc; rank++) {
        rc = plan_rank(src, mesh, placements, rank, &plans[rank], err);
        if (!rc && *opt->stop)
            rc = fsdpck_error_set(err, FSDPCK_ERR_STOPPED, NULL, "stopped");
    }
    return rc;
}

static int check_rules(const struct fsdpck_source *src, const struct fsdpck_convert_request *req,
                       struct fsdpck_error *err)
{
    size_t ntensors = fsdpck_source_ntensors(src);
    struct fsdpck_placed *placed = calloc(ntensors + 1, sizeof *placed);
    if (!placed)
        return fsdpck_error_nomem(err, ntensors * sizeof *placed);
    for (size_t i = 0; i < ntensors; i++) {
        const struct fsdpck_tensor *t = fsdpck_source_tensor(src, i);
        placed[i] = (struct fsdpck_placed){ t->name, t->ndim, t->alias_of >= 0 };
    }
    int rc = fsdpck_convert_rules_check(req, placed, ntensors, fsdpck_source_path(src), err);
    free(placed);
    return rc;
}

/* Owned: (ntensors, mesh.ndim) */
static int place_tensors(const struct fsdpck_source *src, const struct fsdpck_convert_request *req,
                         struct fsdpck_placement **out, struct fsdpck_error *err)
{
    size_t ntensors = fsdpck_source_ntensors(src);
    int rc = check_rules(src, req, err);
    if (rc)
        return rc;
    *out = calloc(ntensors * req->mesh.ndim + 1, sizeof **out);
    if (!*out)
        return fsdpck_error_nomem(err, ntensors * req->mesh.ndim * sizeof **out);
    for (size_t i = 0; i < ntensors && !rc; i++)
        rc = fsdpck_convert_placements(req, fsdpck_source_tensor(src, i), *out + i * req->mesh.ndim, err);
    return rc;
}

static int run(const struct plan_args *args, const char *typed)
{
    struct fsdpck_error err = { 0 };
    struct report report = { 0 };
    struct fsdpck_options opt;
    struct placement_spec placement = { 0 };
    struct fsdpck_convert_request req = { 0 };
    struct fsdpck_source *src = NULL;
    struct fsdpck_placement *placements = NULL;
    struct fsdpck_plan *plans = NULL;
    report_start(&report, &args->common, &opt);
    int status, rc = placement_resolve(&args->placement, &placement, &err);
    placement_fill(&args->placement, &placement, &req);
    if (!rc)
        rc = source_arg_open(typed, &args->source, &opt, &src, &err);
    if (!rc)
        rc = place_tensors(src, &req, &placements, &err);
    uint64_t nranks = rc ? 0 : fsdpck_mesh_nranks(&req.mesh);
    if (!rc && !(plans = calloc(nranks, sizeof *plans)))
        rc = fsdpck_error_nomem(&err, nranks * sizeof *plans);
    if (!rc)
        rc = plan_ranks(src, &req.mesh, placements, &opt, plans, &err);
    report_clear(&report);
    if (rc)
        status = report_error(&report, &err);
    else
        status = args->common.json ? plan_out_json(typed, &req.mesh, plans, nranks) : plan_out_text(plans, nranks);
    free(plans);
    free(placements);
    fsdpck_source_close(src);
    placement_spec_free(&placement);
    return status;
}

int cmd_plan(const struct command *self, int argc, char **argv)
{
    struct plan_args args = { 0 };
    const struct option_group groups[] = { PLACEMENT_GROUP(&args.placement), SOURCE_GROUP(&args.source),
                                           COMMON_GROUP(&args.common) };
    const struct command_line line = {
        .command = self,
        .positionals = "SOURCE",
        .required = "--ranks N",
        .groups = groups,
        .ngroups = sizeof groups / sizeof groups[0],
        .notes = "needed counts the bytes of the rank's own shards. read adds the rest of hashed blocks, and gaps "
                 "that are cheaper to read than to skip. runs counts separate reads. peak memory is that of the "
                 "shards and of the buffers for reading them.",
        .examples = "fsdpck plan model/ --ranks 8",
    };
    const char *at[MAX_POSITIONALS];
    int status = options_parse(&line, argc, argv, at);
    if (status == OPTIONS_OK)
        status = run(&args, at[0]);
    options_free(&line);
    return status;
}
