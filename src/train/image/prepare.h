/* SPDX-License-Identifier: Apache-2.0 */
/* Before a run trains on pictures: finds them and their captions, and lists what the ranks must encode. */
#ifndef TRAIN_PREPARE_H
#define TRAIN_PREPARE_H

#include "data/data_pictures.h"
#include "image/encoding.h"

struct prepare {
    const char *pictures; /* a folder, or a JSONL file */
    /* Other texts that embeddings are wanted of, and their names in the cache, which are set: (ntexts) */
    const char *const *texts;
    uint64_t *text_names;
    size_t ntexts;
    bool once;     /* every picture is there once for each resolution: no repeats and flips */
    bool on_paper; /* pictures are not read */
    const volatile int *stop;
};

/* Adds entries to the encoding. *out needs picture_set_free() also after a failure. */
int image_prepare(const struct prepare *p, struct encoding *encoding, struct picture_set *out,
                  struct fsdpck_error *err);

#endif
