/* SPDX-License-Identifier: Apache-2.0 */
/* The texts and pictures that a run encodes once, before it trains: listed before the ranks start, and computed by
 * them. Each is an entry of the cache, with the same bytes for any number of ranks. */
#ifndef TRAIN_ENCODING_H
#define TRAIN_ENCODING_H

#include "comm/comm.h"
#include "data/picture_cache.h"
#include "image/listing.h"
#include "image/pipeline.h"

struct encoding_entry {
    struct picture_matrix to;
    struct listed from; /* owned: of a text the caption, of a picture the path, without the other one */
};

struct encoding_list {
    struct encoding_entry *entries; /* (n) owned */
    size_t n, room;
    size_t *missing; /* (nmissing) the entries that are not in the cache, as all ranks know them; owned */
    size_t nmissing;
};

struct encoding {
    const struct train_config *config; /* with the pipeline; borrowed */
    struct fsdpck_options fs;
    struct pipeline pipeline;
    int64_t ntext, text_width, nchannel; /* of the transformer */
    bool rounded;                        /* embeddings are bf16 */
    struct picture_cache cache;
    struct picture_names found; /* in the cache, when this process started or its ranks last looked */
    struct encoding_list texts, pictures;
    bool complete; /* ranks of an earlier start have left all entries in the cache */
};

/* creates: the folder of the cache. */
int encoding_new(const struct train_config *config, const struct fsdpck_options *fs, bool creates,
                 struct encoding **out, struct fsdpck_error *err);
void encoding_free(struct encoding *e); /* NULL does nothing */
struct picture_matrix encoding_text(const struct encoding *e, uint64_t name);
struct picture_matrix encoding_latents(const struct encoding *e, uint64_t name, int64_t height, int64_t width);
int encoding_add_text(struct encoding *e, uint64_t name, const char *text, struct fsdpck_error *err);
int encoding_add_picture(struct encoding *e, const struct picture_matrix *to, const struct listed *from,
                         struct fsdpck_error *err);
/* After the last one was added: each is listed once, in the order in which they were first added. */
int encoding_settle(struct encoding *e, struct fsdpck_error *err);
/* True if the cache has a file of its size. */
bool encoding_may_have(const struct encoding *e, const struct picture_matrix *m);
/* The entries that have no file in the cache. */
void encoding_count(const struct encoding *e, uint64_t *ntexts, uint64_t *npictures);
/* Of all entries: ranks with the same hash encode the same. */
uint64_t encoding_hash(const struct encoding *e);
/* The largest picture, in pixels. */
void encoding_largest(const struct encoding *e, int64_t *height, int64_t *width);

/* Collective: reads and checks what is in the cache, each rank its part; sets `missing`. */
int encoding_find(struct encoding *e, struct comm *comm, struct fsdpck_error *err);

#endif
