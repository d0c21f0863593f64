/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of a job: derived values, and its release. */
#include "rank/job.h"

#include <string.h>

void job_free(struct job *job)
{
    data_close(job->data);
    data_close(job->eval);
    layout_free(&job->layout);
    model_free(&job->model);
    *job = (struct job){ 0 };
}

bool job_is_apart(const struct job *job)
{
    return job->opt->device && strcmp(job->opt->device, "cpu") != 0;
}

void job_largest(const struct job *job, int64_t *ntok, size_t *ndocs)
{
    int64_t eval_ntok;
    size_t eval_ndocs;
    data_largest(job->data, ntok, ndocs);
    if (!job->eval)
        return;
    data_largest(job->eval, &eval_ntok, &eval_ndocs);
    *ntok = eval_ntok > *ntok ? eval_ntok : *ntok;
    *ndocs = eval_ndocs > *ndocs ? eval_ndocs : *ndocs;
}

bool job_copies_on_host(const struct job *job)
{
    return job->opt->copy_gathers || job->opt->several_hosts;
}

int64_t job_largest_ntok(const struct job *job)
{
    int64_t ntok;
    size_t ndocs;
    job_largest(job, &ntok, &ndocs);
    return ntok;
}

bool job_copies(const struct job *job)
{
    return job_copies_on_host(job) || (job_is_apart(job) && job->nranks > 1);
}

struct comm_sizes job_comm_sizes(const struct job *job)
{
    return (struct comm_sizes){ .value_nbytes = job->layout.value_nbytes,
                                .grad_nelem = job->layout.grad_nelem,
                                .copies = job_copies_on_host(job),
                                .reduce = job->config->dtype.reduce == TRAIN_BF16 ? FSDPCK_BFLOAT16 : FSDPCK_FLOAT32 };
}
