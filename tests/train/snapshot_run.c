/* SPDX-License-Identifier: Apache-2.0 */
#include "snapshot_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <kernels/stream.h>
#include <stdlib.h>

static const int64_t shapes[NPARAMS][2] = { { 7, 3 }, { 2, 50 }, { 11, 1 } };

struct snapshot_run *snapshot_run_start(uint32_t nranks)
{
    struct snapshot_run *run = calloc(1, sizeof *run);
    struct fsdpck_error err = { 0 };
    char message[KERN_MESSAGE_BYTES];
    assert_non_null(run);
    size_t at = 0;
    int64_t own = 0;
    for (int i = 0; i < NPARAMS; i++) {
        struct param *p = &run->params[i];
        *p = (struct param){ .ndim = 2, .nrow = shapes[i][0], .ncol = shapes[i][1], .trainable = i != 1 };
        p->chunk = (p->nrow + nranks - 1) / nranks;
        p->dtype = KERN_F32;
        p->value_at = at;
        p->own_at = own;
        at += (size_t)(p->chunk * p->ncol * nranks) * sizeof(float);
        own += p->trainable ? p->chunk * p->ncol : 0;
    }
    assert_int_equal(job_status_new(0, nranks, nranks, 1, &run->job_status, &err), 0);
    run->where.device = kern_device_find("cpu", message);
    run->job = (struct job){ .config = &run->config, .opt = &run->opt, .nranks = nranks };
    run->job.layout = (struct layout){ .params = run->params, .nparams = NPARAMS, .nranks = nranks, .own_nelem = own };
    for (uint32_t r = 0; r < nranks; r++) {
        run->computes[r].device = run->where.device;
        assert_int_equal(run->where.device->stream_new(0, NULL, &run->computes[r].stream, message), KERN_OK);
        run->comms[r] = (struct comm){
            .job_status = run->job_status, .rank = r, .nranks = nranks, .values = (unsigned char *)run->values
        };
        run->ranks[r] = (struct rank){ .job = &run->job,
                                       .comm = &run->comms[r],
                                       .where = &run->where,
                                       .compute = &run->computes[r],
                                       .m = run->m[r],
                                       .v = run->v[r] };
    }
    return run;
}

void snapshot_run_end(struct snapshot_run *run)
{
    for (uint32_t r = 0; r < run->job.nranks; r++)
        run->where.device->stream_free(run->computes[r].stream);
    job_status_free(run->job_status);
    free(run);
}

/* Where an element of a tree lies. */
static float *element(struct snapshot_run *run, int tree, int param, int64_t row, int64_t col)
{
    const struct param *p = &run->params[param];
    const int64_t rank = row / p->chunk, at = p->own_at + (row - rank * p->chunk) * p->ncol + col;
    if (tree == 0)
        return run->values + p->value_at / sizeof(float) + row * p->ncol + col;
    return (tree == 1 ? run->m : run->v)[rank] + at;
}

float snapshot_value(uint64_t step, int tree, int param, int64_t row, int64_t col)
{
    return (float)step + (float)(tree * 1300 + param * 300 + row * 50 + col) / 4096;
}

int snapshot_run_each(struct snapshot_run *run, uint64_t step, bool set)
{
    int ndiffering = 0;
    for (int tree = 0; tree < 3; tree++) {
        for (int i = 0; i < NPARAMS; i++) {
            for (int64_t k = 0; k < shapes[i][0] * shapes[i][1]; k++) {
                const int64_t row = k / shapes[i][1], col = k % shapes[i][1];
                if (!run->params[i].trainable)
                    continue;
                float *at = element(run, tree, i, row, col);
                if (set)
                    *at = snapshot_value(step, tree, i, row, col);
                ndiffering += *at != snapshot_value(step, tree, i, row, col);
            }
        }
    }
    return ndiffering;
}
