/* SPDX-License-Identifier: Apache-2.0 */
/* Where a rank has the values of its parameters and their sums, and how others get them. */
#include "rank/gather.h"
#include "rank/grad_file.h"
#include "rank/host_rows.h"
#include "rank/offload.h"
#include "rank/offload_device.h"
#include "rank/rank.h"

float *rank_sums(const struct rank *r, const struct param *p)
{
    return r->grads ? grad_file_sums(r->grads, p) : r->own + p->own_at;
}

void *rank_rows(const struct rank *r, const struct param *p)
{
    int64_t first;
    param_rows(p, r->comm->rank, &first);
    const size_t within = (size_t)(first * param_row_nbytes(p));
    if (!r->rest_at || (r->window && !r->linked)) /* then those that the ranks of a host share */
        return r->comm->values + p->value_at + within;
    unsigned char *chunks = r->comm->values + r->rest_at[p - r->job->layout.params];
    if (r->comm->views || (r->linked && p->nshards == 1))
        return chunks + within;
    return chunks + (r->linked ? r->comm->rank / p->nshards * param_shard_nbytes(p) : 0);
}

static bool has_master(const struct rank *r, const struct param *p)
{
    return r->job->layout.masters && p->dtype != KERN_F32;
}

float *rank_master(const struct rank *r, const struct param *p)
{
    if (!has_master(r, p))
        return rank_rows(r, p);
    return r->masters && !(r->offload && layout_moves(&r->job->layout, p)) ? r->masters + p->own_at : NULL;
}

bool rank_master_rests(const struct rank *r, const struct param *p)
{
    return r->window && !has_master(r, p);
}

static bool is_in_file(const struct rank *r, const struct param *p, int tree)
{
    return r->offload && layout_moves(&r->job->layout, p) && (tree > 0 || has_master(r, p));
}

int rank_next_part(const struct rank *r, const struct param *p, int tree, struct rank_part *part,
                   struct fsdpck_error *err)
{
    int64_t first, nelem, nrow = param_rows(p, r->comm->rank, &first);
    const int64_t row = part->row + part->nrow;
    *part = (struct rank_part){ .row = row, .in_file = is_in_file(r, p, tree) };
    if (row >= nrow)
        return 0;
    part->nrow = nrow - row;
    if (!part->in_file) {
        part->data = tree == 0 ? rank_master(r, p) : (tree == 1 ? r->m : r->v) + p->own_at;
        return 0;
    }
    const int64_t at = p->own_at + row * p->ncol;
    int rc = r->offload_device ? offload_device_open(r->offload_device, tree, at, &part->data, &nelem, err)
                               : offload_open(r->offload, tree, at, &part->data, &nelem, err);
    part->nrow = nelem / p->ncol < part->nrow ? nelem / p->ncol : part->nrow;
    return rc;
}

bool rank_part_moves(const struct rank *r, const struct param *p, int tree, const struct rank_part *part)
{
    return is_in_file(r, p, tree) && !offload_is_open(r->offload, tree, p->own_at + (part->row + part->nrow) * p->ncol);
}

/* Rounds the masters of one parameter. */
static int round_values(struct rank *r, const struct param *p, struct fsdpck_error *err)
{
    char *rows = rank_rows(r, p);
    struct rank_part part = { 0 };
    int rc = 0;
    while (!(rc = rank_next_part(r, p, 0, &part, err)) && part.nrow > 0) {
        if (r->window) {
            host_rows_round(r, p, rows + part.row * param_row_nbytes(p), part.data, part.nrow);
            continue;
        }
        struct kern_mat to = { rows + part.row * p->ncol * kern_dtype_bytes(p->dtype), p->ncol, p->dtype };
        r->compute->device->ops->cast(r->compute->stream, to, (struct kern_cmat){ part.data, p->ncol, KERN_F32 },
                                      part.nrow, p->ncol);
    }
    return rc;
}

int rank_publish(struct rank *r, bool all, struct fsdpck_error *err)
{
    const struct layout *l = &r->job->layout;
    int rc = 0;
    for (size_t i = 0; i < l->nparams && !rc; i++)
        if (l->params[i].trainable && has_master(r, &l->params[i]))
            rc = round_values(r, &l->params[i], err);
    if (!rc && r->offload)
        rc = r->offload_device ? offload_device_close(r->offload_device, err) : offload_close(r->offload, err);
    return rc ? rc : rank_publish_rounded(r, all, err);
}

int rank_publish_rounded(struct rank *r, bool all, struct fsdpck_error *err)
{
    return r->gather ? gather_publish(r->gather, all, err) : 0;
}

void rank_note(const struct rank *r, const char *line)
{
    if (r->comm->rank == 0 && r->job->opt->note)
        r->job->opt->note(r->job->opt->ctx, line);
}

int rank_download(const struct rank *r, void *host, const void *device, size_t nbytes, struct fsdpck_error *err)
{
    r->compute->device->memory->copy(r->compute->stream, host, device, nbytes);
    return compute_sync(r->compute, err);
}

int rank_upload(const struct rank *r, void *device, const void *host, size_t nbytes, struct fsdpck_error *err)
{
    r->compute->device->memory->copy(r->compute->stream, device, host, nbytes);
    return compute_sync(r->compute, err);
}
