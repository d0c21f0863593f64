/* SPDX-License-Identifier: Apache-2.0 */
/* Global norm, clipping and AdamW, on this rank's rows. */
#include "run/optimize.h"

#include <math.h>
#include <stddef.h>

#include "rank/grad_file.h"
#include "rank/host_rows.h"
#include "rank/offload.h"
#include "rank/offload_device.h"

/* Trained rows of this rank, in r->rows. */
struct row_list {
    size_t n;             /* parameters that have some */
    int64_t before, nrow; /* rows of the groups before these, and of these */
};

static struct row_list list_rows(struct rank *r, uint32_t first_group, uint32_t last_group)
{
    const struct layout *l = &r->job->layout;
    struct row_list list = { 0 };
    for (size_t i = 0; i < l->nparams; i++) {
        const struct param *p = &l->params[i];
        int64_t first, nrow = p->trainable ? param_rows(p, r->comm->rank, &first) : 0;
        if (nrow <= 0 || p->group > last_group)
            continue;
        *(p->group < first_group ? &list.before : &list.nrow) += nrow;
        if (p->group >= first_group)
            r->rows[list.n++] = (struct kern_rows){ { rank_sums(r, p), p->ncol, KERN_F32 }, nrow, p->ncol };
    }
    return list;
}

void rank_sum_group(struct rank *r, uint32_t group, struct kern_stream *stream)
{
    const struct row_list list = list_rows(r, group, group);
    r->compute->device->ops->sum_squares(stream, r->row_sums + list.before, r->rows, list.n);
}

/* Computes the sum of squares of each of this rank's trained rows, parameter by parameter, and copies the sums to
 * r->row_sums_back. Those of gradients in a file were computed before these left memory. */
static int sum_rows(struct rank *r, int64_t *count, struct fsdpck_error *err)
{
    const struct compute *c = r->compute;
    const struct row_list list = list_rows(r, 0, r->job->layout.ngroups - 1);
    *count = list.nrow;
    if (!r->grads)
        c->device->ops->sum_squares(c->stream, r->row_sums, r->rows, list.n);
    return rank_download(r, r->row_sums_back.data, r->row_sums, (size_t)*count * sizeof(double), err);
}

/* Two ranks share a word: a sum over ranks joins their microseconds without a carry. */
static uint64_t pack_busy(uint32_t rank, double seconds)
{
    const double us = seconds > 0 ? 1e6 * seconds : 0;
    return (uint64_t)(us < UINT32_MAX ? us : UINT32_MAX) << 32 * (rank % 2);
}

static double unpack_busy(const uint64_t *words, uint32_t rank)
{
    return 1e-6 * (double)(uint32_t)(words[rank / 2] >> 32 * (rank % 2));
}

int rank_norm(struct rank *r, double *norm, struct requests *requests, struct step_facts *facts,
              struct fsdpck_error *err)
{
    enum { FIRST_WORDS = KERN_EXACT_LIMBS + 5 };
    struct {
        struct kern_exact sum;
        uint64_t stop, save, sample, from_hosts_nbytes;
        uint64_t busy[COMM_MAX_SUM / 2];
    } all = { .stop = requests->stop,
              .save = requests->save,
              .sample = requests->sample,
              .from_hosts_nbytes = facts->from_hosts_nbytes };
    _Static_assert(offsetof(typeof(all), busy) == FIRST_WORDS * sizeof(uint64_t) &&
                       FIRST_WORDS + COMM_MAX_SUM / 2 <= COMM_MAX_SUM,
                   "one sum over ranks");
    const uint32_t me = r->comm->rank, nranks = r->comm->nranks;
    int64_t nrow;
    int rc = sum_rows(r, &nrow, err);
    if (!rc) {
        kern_exact_add(&all.sum, r->row_sums_back.data, nrow);
        all.busy[me / 2] = pack_busy(me, facts->busy_seconds[me]);
        rc = r->comm->ops->sum_u64(r->comm, (uint64_t *)&all, FIRST_WORDS + (nranks + 1) / 2, err);
    }
    for (uint32_t q = 0; q < nranks; q++)
        facts->busy_seconds[q] = rc ? 0 : unpack_busy(all.busy, q);
    facts->from_hosts_nbytes = all.from_hosts_nbytes;
    *norm = rc ? 0 : sqrt(kern_exact_value(&all.sum));
    *requests = (struct requests){ .stop = all.stop > 0, .save = all.save > 0, .sample = all.sample > 0 };
    return rc;
}

/* The first parameter with a non-finite row on this rank, or nparams. */
static size_t first_nonfinite(const struct rank *r)
{
    const struct layout *l = &r->job->layout;
    const double *row = r->row_sums_back.data;
    for (size_t i = 0; i < l->nparams; i++) {
        int64_t first, nrow = l->params[i].trainable ? param_rows(&l->params[i], r->comm->rank, &first) : 0;
        for (; nrow > 0; nrow--, row++) {
            if (!isfinite(*row))
                return i;
        }
    }
    return l->nparams;
}

int rank_find_nonfinite(struct rank *r, const char **name, struct fsdpck_error *err)
{
    const struct layout *l = &r->job->layout;
    uint64_t first[COMM_MAX_SUM] = { 0 }, best = l->nparams;
    int64_t nrow;
    int rc = sum_rows(r, &nrow, err);
    first[r->comm->rank] = first_nonfinite(r);
    if (!rc)
        rc = r->comm->ops->sum_u64(r->comm, first, r->comm->nranks, err);
    for (uint32_t q = 0; q < r->comm->nranks; q++)
        best = first[q] < best ? first[q] : best;
    *name = best < l->nparams ? l->params[best].name : "loss";
    return rc;
}

/* The elements of optimizer memory that an update goes over, and their state. */
struct span {
    int64_t at, nelem;
    float *masters, *m, *v;
};

static struct span cut_span(const struct span *s, int64_t at, int64_t nelem)
{
    const int64_t skipped = at - s->at;
    return (struct span){ at, nelem, s->masters ? s->masters + skipped : NULL, s->m + skipped, s->v + skipped };
}

/* The elements of a parameter that the rank trains in a span: [*from, *from + result). None if it is not positive. */
static int64_t part_in_span(const struct rank *r, const struct param *p, const struct span *s, int64_t *from)
{
    int64_t first;
    const int64_t nelem = p->trainable ? param_rows(p, r->comm->rank, &first) * p->ncol : 0,
                  end = p->own_at + nelem < s->at + s->nelem ? p->own_at + nelem : s->at + s->nelem;
    *from = s->at > p->own_at ? s->at : p->own_at;
    return nelem > 0 ? end - *from : 0;
}

static char *rows_at(const struct rank *r, const struct param *p, int64_t from)
{
    return (char *)rank_rows(r, p) + (from - p->own_at) * (int64_t)kern_dtype_bytes(p->dtype);
}

/* Lists this rank's trained elements in a span. Rows that rest in host memory are in the window. */
static size_t list_ranges(const struct rank *r, const struct span *s, struct kern_adamw_range *ranges)
{
    const struct layout *l = &r->job->layout;
    size_t n = 0;
    for (size_t i = 0; i < l->nparams; i++) {
        const struct param *p = &l->params[i];
        const bool rounded = p->dtype != KERN_F32;
        int64_t from, nelem = part_in_span(r, p, s, &from);
        if (nelem <= 0)
            continue;
        char *rows = r->window ? (char *)(r->window + (from - s->at)) : rows_at(r, p, from);
        ranges[n++] = (struct kern_adamw_range){ .nelem = nelem,
                                                 .p = rounded ? s->masters + (from - s->at) : (float *)(void *)rows,
                                                 .m = s->m + (from - s->at),
                                                 .v = s->v + (from - s->at),
                                                 .grad = rank_sums(r, p) + (from - p->own_at),
                                                 .weight_decay = p->decay ? r->job->config->train.weight_decay : 0,
                                                 .rounded = rounded ? rows : NULL };
    }
    return n;
}

static void update_rows(struct rank *r, const struct span *s, struct kern_adamw *adamw)
{
    adamw->nranges = list_ranges(r, s, r->ranges);
    r->compute->device->ops->adamw(r->compute->stream, adamw);
}

/* Copies the rows of a span between host memory and the window. Only fp32 rows are read by an update. */
static void pass_rows(const struct rank *r, const struct span *s, bool in)
{
    const struct layout *l = &r->job->layout;
    for (size_t i = 0; i < l->nparams; i++) {
        const struct param *p = &l->params[i];
        int64_t from, nelem = part_in_span(r, p, s, &from);
        if (nelem <= 0 || (in && p->dtype != KERN_F32))
            continue;
        void *home = rows_at(r, p, from), *here = r->window + (from - s->at);
        host_rows_copy(r, in ? here : home, in ? home : here, (size_t)(nelem * (int64_t)kern_dtype_bytes(p->dtype)));
    }
}

static void update_span(struct rank *r, const struct span *s, struct kern_adamw *adamw)
{
    const int64_t room = r->window ? host_rows_room(r, 1) : 0;
    if (!r->window) {
        update_rows(r, s, adamw);
        return;
    }
    for (int64_t done = 0; done < s->nelem; done += room) {
        const struct span part = cut_span(s, s->at + done, s->nelem - done < room ? s->nelem - done : room);
        pass_rows(r, &part, true);
        update_rows(r, &part, adamw);
        pass_rows(r, &part, false);
    }
}

/* With gradients in a file, group by group: those of the others are not in memory. */
static int update_in_parts(struct rank *r, const struct span *s, struct kern_adamw *adamw, struct fsdpck_error *err)
{
    int rc = 0;
    for (uint32_t group = 0; group < r->job->layout.ngroups && !rc; group++) {
        int64_t begin, end;
        grad_file_group(r->grads, group, &begin, &end);
        begin = begin > s->at ? begin : s->at;
        end = end < s->at + s->nelem ? end : s->at + s->nelem;
        if (begin >= end)
            continue;
        const struct span part = cut_span(s, begin, end - begin);
        rc = grad_file_load(r->grads, group, err);
        if (!rc)
            update_span(r, &part, adamw);
        if (!rc)
            rc = compute_sync(r->compute, err);
    }
    return rc;
}

static int update_part(struct rank *r, const struct span *s, struct kern_adamw *adamw, struct fsdpck_error *err)
{
    if (r->grads)
        return update_in_parts(r, s, adamw, err);
    update_span(r, s, adamw);
    return 0;
}

/* The same on a device: chunks follow each other on its streams, and the host waits for none of them. */
static int update_chunks_on_device(struct rank *r, struct kern_adamw *adamw, struct fsdpck_error *err)
{
    struct offload_view view;
    int rc = 0;
    for (uint64_t i = 0; i < r->job->offload.nchunks && !rc; i++) {
        rc = offload_device_take(r->offload_device, &view, err);
        if (rc)
            break;
        rc = update_part(r,
                         &(struct span){ view.chunk.at, view.chunk.nelem, view.trees[0], view.trees[1], view.trees[2] },
                         adamw, err);
        offload_device_give(r->offload_device);
        comm_heartbeat(r->comm);
    }
    if (!rc)
        rc = compute_sync(r->compute, err);
    return rc ? rc : offload_device_end(r->offload_device, err);
}

/* The state comes from a file and goes back to it, a chunk at a time. */
static int update_chunks(struct rank *r, struct kern_adamw *adamw, struct fsdpck_error *err)
{
    struct offload_view view;
    int rc = 0;
    offload_begin(r->offload);
    if (r->offload_device)
        return update_chunks_on_device(r, adamw, err);
    for (uint64_t i = 0; i < r->job->offload.nchunks && !rc; i++) {
        rc = offload_take(r->offload, &view, err);
        if (rc)
            break;
        const struct span s = { view.chunk.at, view.chunk.nelem, view.trees[0], view.trees[1], view.trees[2] };
        rc = update_part(r, &s, adamw, err);
        if (!rc)
            rc = compute_sync(r->compute, err);
        offload_give(r->offload);
        comm_heartbeat(r->comm);
    }
    return rc;
}

/* The state that no file has. */
static int update_in_memory(struct rank *r, struct kern_adamw *adamw, struct fsdpck_error *err)
{
    const struct layout *l = &r->job->layout;
    const struct span own = { l->own_first, r->offload ? l->own_moved : l->own_nelem,
                              r->masters ? r->masters + l->own_first : NULL, r->m + l->own_first, r->v + l->own_first };
    return update_part(r, &own, adamw, err);
}

int rank_update(struct rank *r, double norm, double lr, struct fsdpck_error *err)
{
    const struct train_config *config = r->job->config;
    double limit = config->train.max_grad_norm, scale = limit > 0 ? limit / (norm + 1e-6) : 1;
    comm_at(r->comm, r->step + 1, "optimizer");
    r->updates++;
    if (r->copied)
        r->compute->device->event_wait(r->copied, r->compute->stream);
    struct kern_adamw adamw = { .ranges = r->ranges,
                                .grad_scale = scale < 1 ? scale : 1,
                                .lr = lr,
                                .beta1 = config->train.beta1,
                                .beta2 = config->train.beta2,
                                .eps = config->train.epsilon,
                                .t = (int64_t)r->updates };
    const struct layout *l = &r->job->layout;
    int rc = r->offload ? update_chunks(r, &adamw, err) : 0;
    if (!rc && !(r->offload && l->own_moved == 0))
        rc = update_in_memory(r, &adamw, err);
    return rc ? rc : rank_publish_rounded(r, false, err);
}
