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
/* The names of all files there. NFS remembers for a while that a file was missing: one that another host may still
 * write must not be looked up before. */
struct picture_names {
    uint64_t *ids; /* (n) in order; owned */
    size_t n;
};
/* *out: empty if there is no folder; needs picture_names_free() also after a failure. */
int picture_names_read(const struct picture_cache *c, struct picture_names *out, struct fsdpck_error *err);
bool picture_names_have(const struct picture_names *names, uint64_t id);
void picture_names_free(struct picture_names *names);

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
