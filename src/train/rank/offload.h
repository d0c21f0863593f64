/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's optimizer state in a file, and its way through memory: while a chunk is updated, the chunks behind it are
 * read and those before it are written. As many chunks as there are buffers are read ahead of the next update and
 * written behind the last one, while the model computes. */
#ifndef TRAIN_OFFLOAD_H
#define TRAIN_OFFLOAD_H

#include "rank/offload_file.h"
#include "rank/offload_sizes.h"

struct offload;

/* One chunk of the state in memory. */
struct offload_view {
    struct offload_chunk chunk;
    float *trees[OFFLOAD_TREES]; /* (chunk.nelem) each; values: only with sizes.values */
};

/* memory: (sizes->memory_nbytes) aligned to 4096, borrowed as is folder. folder: NULL for a file in host memory. io:
 * NULL for the system's. */
int offload_new(const struct layout *l, const struct offload_sizes *sizes, uint32_t rank, const char *folder,
                const struct fsdpck_io *io, void *memory, struct offload **out, struct fsdpck_error *err);
void offload_free(struct offload *o); /* NULL does nothing */
/* False: what is there takes page cache. */
bool offload_is_direct(const struct offload *o);

/* --- reading and writing elements, before the first update --- */

/* Makes all of the state zero. */
void offload_clear(struct offload *o);
/* Gives the elements of a tree from optimizer element `at` on, up to the end of its chunk, for reading and writing.
 * They are valid until the next call for another tree or chunk, which writes them, or until offload_close(). */
int offload_open(struct offload *o, int tree, int64_t at, float **data, int64_t *nelem, struct fsdpck_error *err);
/* True if offload_open() for this element would not write what it gave last. */
bool offload_is_open(const struct offload *o, int tree, int64_t at);
int offload_close(struct offload *o, struct fsdpck_error *err);
/* The first element of the chunk that offload_open() gave last. */
float *offload_window(const struct offload *o);

/* --- updates: one begin, then (nchunks) times take and give --- */

void offload_begin(struct offload *o);
/* Waits until the next chunk has been read. Fewer than sizes->nbuffers chunks may be taken and not given yet. */
int offload_take(struct offload *o, struct offload_view *out, struct fsdpck_error *err);
/* The first chunk that was taken and not given is up to date, and may be written. */
void offload_give(struct offload *o);

/* --- checkpoints --- */

/* Keeps the state as it is, until the next call: updates are written elsewhere. Not during an update. Without
 * sizes.values, the file has no values of its own: the caller may put down those in memory by offload_open(), tree 0,
 * and offload_close(). */
void offload_keep(struct offload *o);
/* Reads elements of the state that was kept, while updates go on. One thread at a time. */
int offload_read_kept(struct offload *o, int tree, int64_t at, int64_t nelem, float *dst, struct fsdpck_error *err);

struct offload_times offload_times(struct offload *o);

#endif
