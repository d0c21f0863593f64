/* Makes and releases a rank's own buffers. */
#include "run/rank.h"

#include <stdlib.h>

#include "comm/reducer.h"
#include "run/gather.h"

static int make_slices(struct rank *r, struct fsdpck_error *err)
{
    const struct layout *l = &r->job->layout;
    int64_t largest = 1;
    r->slices = calloc(l->nparams, sizeof *r->slices);
    r->group_slices = calloc(l->ngroups + 1, sizeof *r->group_slices);
    if (!r->slices || !r->group_slices)
        return fsdpck_error_nomem(err, l->nparams * sizeof *r->slices);
    for (size_t i = 0; i < l->nparams; i++) { /* which lie in the order of their groups */
        const struct param *p = &l->params[i];
        if (!p->trainable)
            continue;
        r->group_slices[p->group + 1] = r->nslices + 1;
        r->slices[r->nslices++] = (struct comm_slice){ .at = p->grad_at, .nelem = p->nrow * p->ncol, .chunk = p->chunk * p->ncol, .into = r->own + p->own_at };
        largest = p->chunk > largest ? p->chunk : largest;
    }
    for (uint32_t g = 0; g < l->ngroups; g++)
        r->group_slices[g + 1] = r->group_slices[g + 1] > r->group_slices[g] ? r->group_slices[g + 1] : r->group_slices[g];
    r->row_sums = calloc((size_t)largest, sizeof *r->row_sums);
    return r->row_sums ? 0 : fsdpck_error_nomem(err, (size_t)largest * sizeof *r->row_sums);
}

void *rank_rows(const struct rank *r, const struct param *p)
{
    int64_t first;
    param_rows(p, r->comm->rank, &first);
    return r->comm->values + p->value_at + first * p->ncol * kern_dtype_bytes(p->dtype);
}

float *rank_master(const struct rank *r, const struct param *p)
{
    return r->masters ? r->masters + p->own_at : rank_rows(r, p);
}

void rank_publish(struct rank *r)
{
    const struct layout *l = &r->job->layout;
    for (size_t i = 0; i < l->nparams && r->masters; i++) {
        const struct param *p = &l->params[i];
        int64_t first, nrow = param_rows(p, r->comm->rank, &first);
        struct kern_mat to = { rank_rows(r, p), p->ncol, p->dtype };
        struct kern_cmat from = { rank_master(r, p), p->ncol, KERN_F32 };
        if (p->trainable && nrow > 0)
            r->compute->device->ops->cast(r->compute->stream, to, from, nrow, p->ncol);
    }
}

int rank_open(const struct job *job, struct comm *comm, struct rank **out, struct fsdpck_error *err)
{
    struct rank *r = calloc(1, sizeof *r);
    size_t nelem = (size_t)job->layout.own_nelem + 16, ndocs;
    int64_t ntok;
    *out = NULL;
    if (!r)
        return fsdpck_error_nomem(err, sizeof *r);
    r->job = job;
    r->comm = comm;
    r->own = aligned_alloc(64, nelem * sizeof(float));
    r->m = calloc(nelem, sizeof(float));
    r->v = calloc(nelem, sizeof(float));
    r->masters = job->layout.masters ? calloc(nelem, sizeof(float)) : NULL;
    job_largest(job, &ntok, &ndocs);
    int rc = r->own && r->m && r->v && (r->masters || !job->layout.masters) ? 0 : fsdpck_error_nomem(err, 4 * nelem * sizeof(float));
    if (!rc)
        rc = make_slices(r, err);
    if (!rc)
        rc = compute_new(&job->model, &job->layout, job->config, ntok, ndocs, job->nthreads, comm->values, comm->contribution, &r->compute, err);
    if (!rc)
        rc = gather_new(job, comm, r->compute, &r->gather, err);
    if (!rc && comm->nranks > 1 && job->layout.grads_by_group)
        rc = reducer_new(comm->lanes[COMM_REDUCE], &r->reducer, err);
    if (rc)
        rank_close(r);
    else
        *out = r;
    return rc;
}

struct rank_times rank_times(const struct rank *r)
{
    struct ring_times gathers = gather_times(r->gather);
    struct reducer_times exchanges = r->reducer ? reducer_times(r->reducer) : (struct reducer_times){ 0 };
    uint64_t waited = gathers.waited_ns + exchanges.waited_ns;
    return (struct rank_times){ .exposed_ns = r->comm->wait_ns + waited, .behind_ns = gathers.gathered_ns + exchanges.busy_ns, .waited_ns = waited };
}

void rank_close(struct rank *r)
{
    if (!r)
        return;
    reducer_free(r->reducer);
    gather_free(r->gather);
    compute_free(r->compute);
    free(r->slices);
    free(r->group_slices);
    free(r->own);
    free(r->m);
    free(r->v);
    free(r->masters);
    free(r->row_sums);
    free((void *)r->base.tensors);
    free(r->base_names);
    free(r);
}
