/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the entries of an encoding that are missing: the ranks share them, with one part of the pipeline in memory
 * after another. */
#ifndef TRAIN_ENCODE_H
#define TRAIN_ENCODE_H

#include "image/encoding.h"
#include "image/text_embed.h"

struct encode {
    struct encoding *encoding;      /* after encoding_find() */
    struct sampler_options options; /* dtype, threads and device of this rank */
    uint32_t local;                 /* its number on its host */
    /* of rank 0: done of total entries; NULL: not wanted */
    void (*progress)(void *ctx, uint64_t done, uint64_t total);
    void *ctx;
};

/* Collective. A stop ends the work on all ranks (FSDPCK_ERR_STOPPED); what is done stays in the cache. Rank 0 notes how
 * many texts or pictures are not used as they are. */

/* Embeds texts with the sharded encoder, and frees the memory that it had. encoder: among the ranks of comm, whose
 * memory it uses. */
int encode_texts(const struct encode *e, struct text_encoder *encoder, struct comm *comm, struct fsdpck_error *err);
/* Encodes pictures with an autoencoder on each rank. */
int encode_pictures(const struct encode *e, struct comm *comm, struct fsdpck_error *err);

#endif
