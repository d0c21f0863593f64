/* SPDX-License-Identifier: Apache-2.0 */
#include "rank/beside.h"

#include <stdlib.h>

#include "rank/device.h"
#include "rank/memory.h"

static uint64_t tree_nbytes(const struct layout *l)
{
    return memory_aligned((uint64_t)l->own_nelem * sizeof(float));
}

uint64_t rank_beside_nbytes(const struct layout *l)
{
    return tree_nbytes(l) * (l->masters ? 4 : 3) + memory_aligned(memory_row_sums_nbytes(l));
}

static int take_memory(struct rank *r, struct fsdpck_error *err)
{
    const struct layout *l = &r->job->layout;
    const struct kern_memory *memory = r->where->device->memory;
    const struct kern_location location = { .kind = KERN_MEMORY_DEVICE, .index = r->where->index },
                               pinned = { .kind = KERN_MEMORY_PINNED, .index = r->where->index };
    const uint64_t tree = tree_nbytes(l);
    char message[KERN_MESSAGE_BYTES];
    if (memory->alloc(location, rank_beside_nbytes(l), &r->memory->buffer, message) != KERN_OK ||
        memory->alloc(pinned, memory_row_sums_nbytes(l), &r->row_sums_back, message) != KERN_OK)
        return fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "no memory for the state of an adapter: %s", message);
    char *at = r->memory->buffer.data;
    r->own = (float *)(void *)at;
    r->m = (float *)(void *)(at + tree);
    r->v = (float *)(void *)(at + 2 * tree);
    r->masters = l->masters ? (float *)(void *)(at + 3 * tree) : NULL;
    r->row_sums = (double *)(void *)(at + tree * (l->masters ? 4 : 3));
    return 0;
}

static int open_rank(const struct rank *base, const struct job *job, struct comm *comm, struct rank **out,
                     struct fsdpck_error *err)
{
    const struct layout *l = &job->layout;
    struct rank *r = calloc(1, sizeof *r);
    *out = r;
    if (!r)
        return fsdpck_error_nomem(err, sizeof *r);
    r->job = job;
    r->host = r->comm = comm;
    r->where = calloc(1, sizeof *r->where);
    r->memory = calloc(1, sizeof *r->memory);
    r->ranges = calloc(l->nparams, sizeof *r->ranges);
    r->rows = calloc(l->nparams, sizeof *r->rows);
    if (!r->where || !r->memory || !r->ranges || !r->rows)
        return fsdpck_error_nomem(err, l->nparams * sizeof *r->ranges);
    *r->where = *base->where;
    for (size_t i = 0; i < l->nparams; i++)
        r->nslices += l->params[i].trainable;
    return take_memory(r, err);
}

int rank_beside_open(const struct rank *base, const struct job *job, struct rank_beside *out, struct fsdpck_error *err)
{
    enum { PATIENCE_SECONDS = 600 };
    *out = (struct rank_beside){ 0 };
    int rc = job_status_new(0, 1, 1, PATIENCE_SECONDS, &out->job_status, err);
    if (!rc)
        rc = comm_world_new(1, (struct comm_sizes){ .reduce = FSDPCK_FLOAT32 }, out->job_status, &out->world, err);
    if (!rc)
        rc = comm_world_join(out->world, 0, &out->comm, err);
    if (rc)
        return rc;
    out->comm->values = base->comm->values;
    return open_rank(base, job, out->comm, &out->rank, err);
}

void rank_beside_close(struct rank_beside *b)
{
    if (b->rank)
        b->rank->compute = NULL; /* borrowed */
    rank_close(b->rank);
    if (b->comm)
        b->comm->ops->free(b->comm);
    comm_world_free(b->world);
    job_status_free(b->job_status);
    *b = (struct rank_beside){ 0 };
}
