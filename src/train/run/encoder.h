/* SPDX-License-Identifier: Apache-2.0 */
/* The start of a run on pictures: its ranks encode texts and pictures, before they make room for the transformer. */
#ifndef TRAIN_ENCODER_H
#define TRAIN_ENCODER_H

#include "image/text_embed.h"
#include "rank/device.h"

struct encoder {
    struct text_encoder texts;
    struct comm_world *world; /* memory for the text encoder, of local ranks; NULL: the launcher's ranks make it */
};

/* Finds out whether the text encoder can be used. Computes nothing. */
int encoder_check(const struct job *job, struct fsdpck_error *err);
/* Before the ranks start. Does nothing if there is nothing to encode. *out needs encoder_close() also after a
 * failure; it must not move. */
int encoder_open(const struct job *job, struct job_status *job_status, struct encoder *out, struct fsdpck_error *err);
void encoder_close(struct encoder *e);
/* Unmaps the memory in the process of the supervisor, after the ranks have started, so that it is back when they have
 * unmapped it. */
void encoder_unmap(struct encoder *e);
/* Collective, in a rank's process. launched: the communicator of ranks that a launcher started, before they share
 * memory; NULL: local ranks. */
int encoder_run(struct encoder *e, const struct job *job, uint32_t rank, struct comm *launched,
                struct fsdpck_error *err);
/* The bytes that a rank takes for it, on a device that counts: of the text encoder or the autoencoder, whichever takes
 * more; 0 if all is in the cache. */
int encoder_count(const struct job *job, const struct rank_device *where, uint64_t *nbytes, struct fsdpck_error *err);

#endif
