/* SPDX-License-Identifier: Apache-2.0 */
/* Matrices that are computed once before a run trains on pictures: latents of pictures and embeddings of texts, each a
 * file in output_dir/cache, named by a hash of all that determines it. A file appears whole or not at all. */
#ifndef TRAIN_PICTURE_CACHE_H
#define TRAIN_PICTURE_CACHE_H

#include "data/cache_folder.h"

struct picture_cache {
    char folder[CACHE_FOLDER];
};

/* One matrix: what it is, and its shape. */
struct picture_matrix {
    uint64_t id;
    int64_t nrow, ncol;
    bool rounded; /* bf16 in the file; fp32 in memory */
};

/* creates: the folder, where it is missing. */
int picture_cache_open(const char *output_dir, bool creates, struct picture_cache *out, struct fsdpck_error *err);
/* True if a file of this size is there, whatever is in it. */
bool picture_cache_may_have(const struct picture_cache *c, const struct picture_matrix *m);
/* True if a sound file of this shape is there. */
bool picture_cache_has(const struct picture_cache *c, const struct picture_matrix *m);
int picture_cache_put(const struct picture_cache *c, const struct picture_matrix *m, const float *data,
                      struct fsdpck_error *err);
/* data: (nrow, ncol). Damage is FSDPCK_ERR_DAMAGED. */
int picture_cache_get(const struct picture_cache *c, const struct picture_matrix *m, float *data,
                      struct fsdpck_error *err);

#endif
