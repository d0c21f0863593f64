/* SPDX-License-Identifier: Apache-2.0 */
#include "rank/host_rest.h"

#include "rank/grad_file.h"

enum { MOST_NBYTES = 4 << 20, LEAST_NBYTES = 4096, PARTS = 4 };

static uint64_t most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* A part of the largest shard; and a row of what is trained, or whose norms are trained. */
uint64_t host_rest_window_nbytes(const struct job *job)
{
    const struct layout *l = &job->layout;
    uint64_t shard = 0, row = LEAST_NBYTES;
    if (!job_rests_on_host(job))
        return 0;
    for (size_t i = 0; i < l->nparams; i++) {
        const struct param *p = &l->params[i];
        shard = most(shard, param_shard_nbytes(p) / PARTS);
        if (p->trainable)
            row = most(row, (uint64_t)p->ncol * sizeof(float));
        if (p->norms_of >= 0)
            row = most(row, (uint64_t)param_row_nbytes(&l->params[p->norms_of]) + HOST_REST_NORMS_NBYTES);
    }
    return most(shard < MOST_NBYTES ? shard : MOST_NBYTES, row);
}

uint64_t host_rest_pinned_nbytes(const struct job *job, bool linked)
{
    return linked && job_rests_on_host(job) ? job_place_on_device(job, true, NULL) : 0;
}

/* Nothing reserves the memory of the state: it is taken as it is written. */
int host_rest_check(const struct job *job, bool linked, uint64_t room, struct fsdpck_error *err)
{
    const struct offload_sizes *sizes = &job->offload;
    const uint64_t grads = sizes->gradients ? grad_file_disk_nbytes(&job->layout) : 0,
                   rest = host_rest_pinned_nbytes(job, linked),
                   need = sizes->memory_nbytes + sizes->file_nbytes + grads + rest;
    if (!job_has_device_memory(job) || !(sizes->in_memory || rest) || need <= room)
        return 0;
    fsdpck_error_set(
        err, FSDPCK_ERR_NOMEM, NULL,
        "key 'fsdp.offload': \"cpu\" takes %.2f GiB of host memory for each rank, of which a rank has %.2f",
        (double)need / 1073741824.0, (double)room / 1073741824.0);
    if (rest)
        fsdpck_error_hint(err, "without fsdp.offload_params, the parameters of %.2f GiB stay on the device",
                          (double)rest / 1073741824.0);
    else
        fsdpck_error_hint(err, "a folder on a local disk instead of \"cpu\" takes fsdp.offload_memory only");
    return err->code;
}

int host_rest_pin(const struct kern_device *device, int index, uint64_t nbytes, struct kern_buffer *out,
                  struct fsdpck_error *err)
{
    const struct kern_location pinned = { .kind = KERN_MEMORY_PINNED, .index = index };
    char message[KERN_MESSAGE_BYTES];
    if (!nbytes || device->memory->alloc(pinned, nbytes, out, message) == KERN_OK)
        return 0;
    return fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL,
                            "no pinned memory for parameters of %.2f GiB (fsdp.offload_params): %s",
                            (double)nbytes / 1073741824.0, message);
}
