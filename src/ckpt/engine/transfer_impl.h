/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the two halves of a transfer: transfer.c divides memory and work and joins the results, transfer_lane.c
 * moves the bytes of one lane. */
#ifndef CKPT_TRANSFER_IMPL_H
#define CKPT_TRANSFER_IMPL_H

#include <pthread.h>

#include "engine/fetch.h"
#include "engine/lanes.h"
#include "engine/stream.h"
#include "engine/turns.h"
#include "tensor/rows.h"

/* The buffers of one thread. */
struct transfer_worker {
    struct fsdpck_fetch fetch;
    struct fsdpck_rows rows;
    uint8_t *band;   /* a page longer than the band, to match the file's alignment */
    uint8_t *cast;   /* the same size, after a cast */
    uint8_t *gather; /* a chunk's part of a band, if it is not a run */
    uint8_t *staging;
    struct fsdpck_stream *streams; /* (max_chunks) */
    struct fsdpck_packer packer;
};

struct lane_result {
    uint32_t crc32; /* of a lane with a single chunk: of its nbytes bytes */
    uint64_t nbytes;
    struct fsdpck_content content; /* of its whole rows */
};

struct transfer_engine {
    struct fsdpck_transfer *t;
    const struct fsdpck_options *opt;
    struct fsdpck_lanes lanes;
    struct lane_result *results; /* (lanes.count) */
    struct fsdpck_turns *turns;  /* if any chunk is compressed */
    struct fsdpck_out_files *out;
    struct transfer_worker *workers;
    unsigned nworkers;
    uint64_t band_nbytes, staging_nbytes; /* of each worker */
    size_t max_chunks;                    /* of a lane */
    pthread_mutex_t lock;                 /* guards done_nbytes, and calls to opt->progress */
    uint64_t done_nbytes, total_nbytes;   /* of payloads */
};

/* Returns whether the tensor (position in the selection) passes through the transfer's edit. */
static inline bool fsdpck_transfer_edits(const struct fsdpck_transfer *t, uint32_t tensor)
{
    return t->edit && t->edit->wants(t->edit->ctx, tensor);
}

/* Moves lane `number` with the buffers of a worker. Stores the CRC-32s of its chunks and its content id in e->results,
 * or (a lane of several chunks) in the chunks. Reports progress. Several threads may each move a lane. */
int fsdpck_transfer_lane(struct transfer_engine *e, size_t number, unsigned worker, struct fsdpck_error *err);

#endif
