/* SPDX-License-Identifier: Apache-2.0 */
/* Before a run trains on pictures: finds them and their captions, and computes latents and embeddings that are not in
 * the cache yet, with one part of the pipeline in memory after another. */
#ifndef TRAIN_PREPARE_H
#define TRAIN_PREPARE_H

#include "data/data_pictures.h"

struct prepare {
    const struct train_config *config; /* with the pipeline */
    struct fsdpck_options fs;
    unsigned nthreads;
    const char *pictures; /* a folder, or a JSONL file */
    /* Other texts that embeddings are wanted of, and their names in the cache, which are set: (ntexts) */
    const char *const *texts;
    uint64_t *text_names;
    size_t ntexts;
    bool once;     /* every picture is there once for each resolution: no repeats and flips */
    bool on_paper; /* nothing is computed or written; out->nto_encode says how much would be */
    /* Processes that a launcher started share the work: this is number `share` of nsharing, and does its own part
     * first, then what is missing. nsharing 0: it is alone. */
    uint32_t share, nsharing;
    /* done of total pictures; NULL: not wanted. A stop ends the work. */
    void (*progress)(void *ctx, uint64_t done, uint64_t total);
    const volatile int *stop;
    void *ctx;
};

/* *out needs picture_set_free() also after a failure. */
int image_prepare(const struct prepare *p, struct picture_set *out, struct fsdpck_error *err);

#endif
