/* SPDX-License-Identifier: Apache-2.0 */
#include "rank/host_rows.h"

#include <string.h>

#include "rank/host_rest.h"

int64_t host_rows_room(const struct rank *r, int64_t ncol)
{
    return (int64_t)(r->window_nbytes / sizeof(float)) / ncol;
}

void host_rows_copy(const struct rank *r, void *dst, const void *src, size_t nbytes)
{
    r->compute->device->memory->copy(r->compute->stream, dst, src, nbytes);
}

void host_rows_round(const struct rank *r, const struct param *p, char *rows, const float *from, int64_t nrow)
{
    const int64_t ncol = p->ncol, room = host_rows_room(r, ncol);
    const size_t row_nbytes = (size_t)(ncol * kern_dtype_bytes(p->dtype));
    for (int64_t row = 0, n; row < nrow; row += n) {
        n = nrow - row < room ? nrow - row : room;
        r->compute->device->ops->cast(r->compute->stream, (struct kern_mat){ r->window, ncol, p->dtype },
                                      (struct kern_cmat){ from + row * ncol, ncol, KERN_F32 }, n, ncol);
        host_rows_copy(r, rows + (size_t)row * row_nbytes, r->window, (size_t)n * row_nbytes);
    }
}

void host_rows_draw(const struct rank *r, float *rows, int64_t nrow, int64_t ncol, struct kern_philox rng,
                    uint64_t index0, float bound)
{
    const int64_t room = host_rows_room(r, ncol);
    for (int64_t row = 0, n; row < nrow; row += n) {
        n = nrow - row < room ? nrow - row : room;
        r->compute->device->ops->uniform(r->compute->stream, r->window, n * ncol, rng, index0 + (uint64_t)(row * ncol),
                                         -bound, bound);
        host_rows_copy(r, rows + row * ncol, r->window, (size_t)(n * ncol) * sizeof *rows);
    }
}

/* The norms are at the start of the window, and the rows behind them. */
void host_rows_measure(const struct rank *r, const struct param *of, const char *rows, int64_t first, int64_t nrow,
                       float *norms)
{
    const int64_t row_nbytes = param_row_nbytes(of),
                  fit = ((int64_t)r->window_nbytes - HOST_REST_NORMS_NBYTES) / row_nbytes,
                  most = HOST_REST_NORMS_NBYTES / (int64_t)sizeof(float), room = fit < most ? fit : most;
    char *window = (char *)r->window + HOST_REST_NORMS_NBYTES;
    for (int64_t row = 0, n; row < nrow; row += n) {
        n = nrow - row < room ? nrow - row : room;
        host_rows_copy(r, window, rows + row * row_nbytes, (size_t)(n * row_nbytes));
        const struct kern_dora_norm some = { .nrow = n,
                                             .ncol = of->ncol,
                                             .w = compute_rows_of(r->compute, of, window, first + row, n, 0),
                                             .norm = r->window };
        r->compute->device->ops->dora_norm(r->compute->stream, &some);
        host_rows_copy(r, norms + row, r->window, (size_t)n * sizeof *norms);
    }
}

int host_rows_zero(const struct rank *r, void *rows, size_t nbytes, struct fsdpck_error *err)
{
    int rc = compute_sync(r->compute, err);
    if (!rc)
        memset(rows, 0, nbytes);
    return rc;
}
