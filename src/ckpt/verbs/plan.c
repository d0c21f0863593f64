/* SPDX-License-Identifier: Apache-2.0 */
/* Computes what each rank of a mesh would read of a source. It reads metadata only. */
#include <fsdpck/convert.h>

#include <stdlib.h>

#include "base/stop.h"
#include "engine/source_impl.h"

/* The reads of one rank, and the storage for their boxes. */
struct reads {
    struct fsdpck_read *at; /* (count); NULL: count only */
    size_t count;
    uint64_t *numbers; /* (nnumbers) offsets and sizes of the boxes; each read uses 2*ndim of them */
    size_t nnumbers;
    uint64_t nbytes;                    /* of all boxes */
    const struct fsdpck_tensor *tensor; /* whose boxes are being added */
};

/* Adds a read. A scalar needs no numbers: the whole tensor is read. */
static int add_box(void *ctx, const uint64_t *offset, const uint64_t *size)
{
    struct reads *r = ctx;
    const uint32_t ndim = r->tensor->ndim;
    uint64_t nbytes = fsdpck_dtype_info(r->tensor->dtype)->nbytes;
    for (uint32_t d = 0; d < ndim; d++)
        nbytes *= size[d];
    r->nbytes += nbytes;
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

/* places: (ntensors) */
static int add_boxes(const struct fsdpck_source *src, const struct fsdpck_mesh *mesh,
                     const struct fsdpck_convert_place *places, uint32_t rank, struct reads *r)
{
    uint32_t coord[FSDPCK_MAX_MESH_DIMS];
    int rc = 0;
    r->count = r->nnumbers = 0;
    r->nbytes = 0;
    fsdpck_mesh_coordinate(mesh, rank, coord);
    for (size_t i = 0; i < fsdpck_source_ntensors(src) && !rc; i++) {
        const struct fsdpck_convert_place *at = &places[i];
        const bool holds = at->only_dim == mesh->ndim || coord[at->only_dim] == at->only_at;
        r->tensor = fsdpck_source_tensor(src, i);
        if (r->tensor->alias_of < 0 && holds)
            rc = fsdpck_placement_boxes(mesh, at->on, r->tensor->ndim, r->tensor->shape, coord, add_box, r);
    }
    return rc;
}

static int plan_rank(struct fsdpck_source *src, const struct fsdpck_mesh *mesh,
                     const struct fsdpck_convert_place *places, uint32_t rank, struct fsdpck_plan *out,
                     struct fsdpck_error *err)
{
    struct reads r = { 0 };
    int rc = add_boxes(src, mesh, places, rank, &r);
    if (!rc) {
        r.at = calloc(r.count + 1, sizeof *r.at);
        r.numbers = calloc(r.nnumbers + 1, sizeof *r.numbers);
        rc = r.at && r.numbers ? add_boxes(src, mesh, places, rank, &r)
                               : fsdpck_error_nomem(err, r.count * sizeof *r.at);
    }
    if (!rc)
        rc = fsdpck_source_plan(src, r.at, r.count, out, err);
    out->needed_nbytes = r.nbytes; /* of computed tensors too, whose inputs may be larger or smaller */
    free(r.at);
    free(r.numbers);
    return rc;
}

int fsdpck_plan_ranks(struct fsdpck_source *src, const struct fsdpck_convert_request *req,
                      const struct fsdpck_options *opt, struct fsdpck_plan *plans, struct fsdpck_error *err)
{
    const struct fsdpck_options o = fsdpck_source_options(src, opt);
    const uint64_t nranks = fsdpck_mesh_nranks(&req->mesh);
    const size_t ntensors = fsdpck_source_ntensors(src);
    struct fsdpck_convert_place *places = calloc(ntensors + 1, sizeof *places);
    int rc = places ? fsdpck_convert_places(src, req, places, err) : fsdpck_error_nomem(err, ntensors * sizeof *places);
    for (uint32_t rank = 0; rank < nranks && !rc; rank++) {
        rc = plan_rank(src, &req->mesh, places, rank, &plans[rank], err);
        if (!rc && fsdpck_stop_asked(o.stop))
            rc = fsdpck_error_set(err, FSDPCK_ERR_STOPPED, NULL, "stopped");
    }
    free(places);
    return rc;
}
