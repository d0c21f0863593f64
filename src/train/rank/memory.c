/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the sizes, allocates once, and sets the pointers. */
#include "rank/memory.h"

#include <stdio.h>
#include <string.h>

#include "comm/comm_linked.h"
#include "model/flux2_forward.h"
#include "rank/gather.h"
#include "rank/grad_file.h"
#include "rank/host_memory.h"
#include "rank/host_rest.h"

enum { ALIGNED = 4096, RESERVED_NBYTES = 512 << 20 };

uint64_t memory_aligned(uint64_t nbytes)
{
    return (nbytes + ALIGNED - 1) / ALIGNED * ALIGNED;
}

/* One sum of squares per row of the full shards of all trained parameters. */
uint64_t memory_row_sums_nbytes(const struct layout *l)
{
    uint64_t nrow = 0;
    for (size_t i = 0; i < l->nparams; i++)
        nrow += l->params[i].trainable ? (uint64_t)l->params[i].chunk : 0;
    return nrow * sizeof(double);
}

static uint64_t tree_nbytes(const struct layout *l)
{
    return memory_aligned(((uint64_t)l->own_nelem + 16) * sizeof(float));
}

/* Of a tree of the optimizer state, the part that is in memory where the rank computes. */
static uint64_t state_tree_nbytes(const struct job *job)
{
    const struct layout *l = &job->layout;
    if (!job_offloads(job))
        return tree_nbytes(l);
    return l->own_moved ? memory_aligned(((uint64_t)l->own_moved + 16) * sizeof(float)) : 0;
}

uint64_t memory_sums_nbytes(const struct job *job)
{
    return job->offload.gradients ? grad_file_memory_nbytes(&job->layout) : tree_nbytes(&job->layout);
}

/* Of the buffers that the optimizer state passes through, where the rank computes. */
static uint64_t offload_nbytes(const struct job *job)
{
    return job_has_device_memory(job) ? job->offload.device_nbytes : job->offload.memory_nbytes;
}

/* Reduced gradients, and the rest of the optimizer state or the buffers that it passes through. */
static uint64_t state_nbytes(const struct job *job)
{
    const uint64_t ntrees = job->layout.masters ? 3 : 2;
    return memory_sums_nbytes(job) + state_tree_nbytes(job) * ntrees + offload_nbytes(job) +
           memory_aligned(memory_row_sums_nbytes(&job->layout));
}

/* Beside the state in memory, fp32 parameters that have no place in a file beside rounded ones (DoRA's magnitudes). */
uint64_t memory_snapshot_nbytes(const struct job *job)
{
    const struct layout *l = &job->layout;
    uint64_t nelem = 0;
    if (!job_offloads(job))
        return OFFLOAD_TREES * (uint64_t)l->own_nelem * sizeof(float);
    for (size_t i = 0; i < l->nparams; i++) {
        const struct param *p = &l->params[i];
        const uint64_t ntrees = !p->trainable                        ? 0
                                : !layout_moves(l, p)                ? OFFLOAD_TREES
                                : l->masters && p->dtype == KERN_F32 ? 1
                                                                     : 0;
        nelem += ntrees * (uint64_t)(p->chunk * p->ncol);
    }
    return nelem * sizeof(float);
}

/* First the transformer draws, then the decoder takes its place, always in host memory. */
static struct decode_sizes picture_sizes(const struct job *job, const struct compute *c)
{
    const struct flux2 *x = &job->model.flux2;
    const uint64_t npixel = (uint64_t)(job->sample_height * job->sample_width),
                   forward = flux2_forward_nbytes(c, x->ntext, job->sample_height, job->sample_width),
                   drawing = (c->device->separate_memory ? 0 : forward) +
                             2 * (uint64_t)(x->ntext * x->text_width) * sizeof(float) +
                             3 * npixel * (uint64_t)x->nchannel * sizeof(float);
    const uint64_t decoding = job->sample_decoder_nbytes + npixel * (uint64_t)x->nchannel * sizeof(float);
    return (struct decode_sizes){ .device_nbytes = c->device->separate_memory ? forward : 0,
                                  .host_nbytes = drawing > decoding ? drawing : decoding };
}

struct decode_sizes memory_samples(const struct job *job, const struct compute *c)
{
    if (job->sample_height)
        return picture_sizes(job, c);
    return job->sample_most ? decode_count(c, job->sample_prompt, job->sample_most) : (struct decode_sizes){ 0 };
}

int memory_count(const struct job *job, bool separate_memory, bool linked, const struct compute *c,
                 struct memory_sizes *out, struct fsdpck_error *err)
{
    const struct layout *l = &job->layout;
    struct gather_sizes gather;
    int rc = gather_count(job, separate_memory, linked, &gather, err);
    *out = (struct memory_sizes){
        .shard_nbytes =
            separate_memory && !job_rests_on_host(job) ? memory_aligned(job_place_on_device(job, linked, NULL)) : 0,
        .window_nbytes = memory_aligned(host_rest_window_nbytes(job)),
        .kept_nbytes =
            linked && job->mesh.nkept ? memory_aligned(gather.kept_nbytes * (job->nranks / job->mesh.nkept)) : 0,
        .contribution_nbytes = separate_memory ? memory_aligned((uint64_t)l->grad_nelem * sizeof(float)) : 0,
        .received_nbytes = linked ? memory_aligned(comm_linked_nbytes(job->nranks, l->own_nelem, l->grad_nelem,
                                                                      job_reduce_widest(job), job_rounds(job)))
                                  : 0,
        .state_nbytes = state_nbytes(job),
        .ring_nbytes = memory_aligned(gather.buffer_nbytes),
        .activation_nbytes = memory_aligned(c->nbytes),
        .sample_nbytes = separate_memory ? memory_aligned(memory_samples(job, c).device_nbytes) : 0
    };
    return rc;
}

uint64_t memory_sum(const struct memory_sizes *s)
{
    return s->shard_nbytes + s->kept_nbytes + s->contribution_nbytes + s->received_nbytes + s->state_nbytes +
           s->window_nbytes + s->ring_nbytes + s->activation_nbytes + s->sample_nbytes;
}

static void *cut(struct memory_map *map, uint64_t *at, uint64_t nbytes)
{
    char *p = map->buffer.data;
    p += *at;
    *at += memory_aligned(nbytes);
    return nbytes ? p : NULL;
}

static void cut_all(const struct job *job, const struct memory_sizes *s, struct memory_map *map)
{
    const struct layout *l = &job->layout;
    const uint64_t moments = state_tree_nbytes(job);
    uint64_t at = 0;
    map->values = cut(map, &at, s->shard_nbytes);
    map->kept = cut(map, &at, s->kept_nbytes);
    map->contribution = cut(map, &at, s->contribution_nbytes);
    map->received = cut(map, &at, s->received_nbytes);
    map->own = cut(map, &at, memory_sums_nbytes(job));
    map->m = cut(map, &at, moments);
    map->v = cut(map, &at, moments);
    map->masters = cut(map, &at, l->masters ? moments : 0);
    map->offload = cut(map, &at, offload_nbytes(job));
    map->row_sums = cut(map, &at, memory_row_sums_nbytes(l));
    map->window = cut(map, &at, s->window_nbytes);
    map->ring = cut(map, &at, s->ring_nbytes);
    map->activations = cut(map, &at, s->activation_nbytes);
    map->samples = cut(map, &at, s->sample_nbytes);
}

uint64_t memory_host_room(const struct job *job)
{
    if (job->opt->rank_nbytes)
        return job->opt->rank_nbytes;
    return host_memory(job->nlocal ? job->nlocal : job->nranks);
}

/* Of the state in host memory: the one that is saved, and two for the loss of ranks, on two hosts. */
static uint64_t ncopies(const struct job *job)
{
    return !job_keeps_snapshots(job) ? 1 : job->opt->several_hosts ? 5 : 3;
}

/* The memory that a rank may take; ranks that share a device get equal parts. Leaves room for a device's driver and
 * libraries, or on the CPU for the communicator and snapshots, which memory_sizes does not include. */
static uint64_t room_of(const struct job *job, const struct rank_device *where)
{
    const struct layout *l = &job->layout;
    uint64_t room = where->module ? where->facts.free_nbytes / where->nsharing : memory_host_room(job);
    uint64_t taken = where->module ? RESERVED_NBYTES
                                   : job_rest_nbytes(job) + (uint64_t)l->grad_nelem * sizeof(float) +
                                         job_trade_nbytes(job) + memory_snapshot_nbytes(job) * ncopies(job);
    room -= room / 32;
    return room > taken ? room - taken : 0;
}

void memory_recompute(struct compute *c, struct compute *const *all, size_t nall, int64_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < nall; i++) {
        compute_recompute(all[i], n);
        sum += memory_aligned(all[i]->nbytes);
    }
    c->nbytes = nall == 1 ? all[0]->nbytes : sum;
}

int memory_choose(const struct job *job, const struct rank_device *where, bool linked, struct compute *c,
                  struct compute *const *all, size_t n, struct fsdpck_error *err)
{
    const uint64_t room = room_of(job, where);
    struct memory_sizes sizes;
    int64_t recomputed = 0, most = 0;
    int rc = 0;
    for (size_t i = 0; i < n; i++)
        most = all[i]->nchoices > most ? all[i]->nchoices : most;
    memory_recompute(c, all, n, 0);
    while (most && !rc) {
        rc = memory_count(job, where->device->separate_memory, linked, c, &sizes, err);
        if (rc || memory_sum(&sizes) <= room || recomputed == most)
            break;
        memory_recompute(c, all, n, ++recomputed);
    }
    return rc;
}

/* Settings that would reduce the memory. */
static const char *advice(const struct job *job)
{
    const struct train_config *c = job->config;
    if (job->micro_ntok)
        return "more ranks, or fewer tokens of a text (image.max_sequence_length), take less";
    if (c->fsdp.checkpointing == TRAIN_RECOMPUTE_NONE)
        return "fsdp.activation_checkpointing \"auto\" keeps as much of each block as fits; a smaller data.seq_len or "
               "train.micro_batch_size, or more ranks, take less too";
    if (c->train.micro_batch_size > 1)
        return "a smaller train.micro_batch_size or data.seq_len, or more ranks, take less";
    return "a smaller data.seq_len, or more ranks on devices of their own, take less";
}

void memory_hint(const struct job *job, struct fsdpck_error *err)
{
    if (err->code == FSDPCK_ERR_NOMEM && !err->hint[0])
        fsdpck_error_hint(err, "%s", advice(job));
}

static double gib(uint64_t nbytes)
{
    return (double)nbytes / 1073741824.0;
}

static int refuse(const struct job *job, const struct rank_device *where, const struct memory_sizes *s, const char *why,
                  struct fsdpck_error *err)
{
    char room[200];
    snprintf(room, sizeof room, "%s%s", why ? ": " : "", why ? why : "");
    if (where->module)
        snprintf(room, sizeof room, ", and device %d (%.100s) has %.2f GiB free of %.2f", where->index,
                 where->facts.name, gib(where->facts.free_nbytes), gib(where->facts.total_nbytes));
    fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL,
                     "a rank needs %.2f GiB (parameters %.2f, gradients %.2f, optimizer %.2f, gathered groups %.2f, "
                     "activations of %lld tokens %.2f, samples %.2f)%s",
                     gib(memory_sum(s)), gib(s->shard_nbytes + s->kept_nbytes),
                     gib(s->contribution_nbytes + s->received_nbytes), gib(s->state_nbytes),
                     gib(s->ring_nbytes + s->window_nbytes), (long long)job_largest_ntok(job),
                     gib(s->activation_nbytes), gib(s->sample_nbytes), room);
    memory_hint(job, err);
    return err->code;
}

int memory_alloc(const struct job *job, const struct rank_device *where, const struct memory_sizes *sizes,
                 struct memory_map *out, struct fsdpck_error *err)
{
    const struct kern_location location = { .kind = KERN_MEMORY_DEVICE, .index = where->index, .huge_pages = true };
    char message[KERN_MESSAGE_BYTES] = "";
    *out = (struct memory_map){ .sizes = *sizes };
    if (where->module && memory_sum(sizes) > where->facts.free_nbytes)
        return refuse(job, where, sizes, NULL, err);
    if (where->device->memory->alloc(location, memory_sum(sizes), &out->buffer, message) != KERN_OK)
        return refuse(job, where, sizes, message, err);
    cut_all(job, sizes, out);
    return 0;
}
