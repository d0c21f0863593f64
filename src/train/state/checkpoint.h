/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a checkpoint, copied out of a rank and written by libfsdpck. */
#ifndef TRAIN_CHECKPOINT_H
#define TRAIN_CHECKPOINT_H

#include <fsdpck/save.h>

#include "rank/rank.h"

enum { CHECKPOINT_TREES = 3 }; /* values, first and second moments: (own_nelem) each, as layout.own_at has them */

struct checkpoint_list;

/* Names, shapes and boxes of this rank's rows in `trees`, which are borrowed and filled later. */
int checkpoint_list_new(const struct rank *r, float *const trees[CHECKPOINT_TREES], struct checkpoint_list **out,
                        struct fsdpck_error *err);
void checkpoint_list_free(struct checkpoint_list *list); /* NULL does nothing */
/* The rank's state as it is when the stream comes to it, to trees. */
void checkpoint_copy(const struct rank *r, struct kern_stream *stream, float *const trees[CHECKPOINT_TREES]);
/* Collective over comm, in any thread. state: from state_write. */
int checkpoint_write(const struct checkpoint_list *list, struct comm *comm, const struct job *job, const char *path,
                     const char *state, const struct fsdpck_options *fs, struct fsdpck_error *err);

/* This rank's part of the state, not published yet. After a failure it holds no meaning. */
int rank_resume(struct rank *r, const char *path, struct fsdpck_error *err);
/* Before the ranks part: whether the checkpoint fits this run, key by key. *step: steps done. */
int job_check_resume(const struct job *job, const char *path, uint64_t *step, struct fsdpck_error *err);

#endif
