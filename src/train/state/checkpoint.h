/* What a checkpoint lists, copied out of a rank and written by libfsdpck. */
#ifndef TRAIN_CHECKPOINT_H
#define TRAIN_CHECKPOINT_H

#include <fsdpck/save.h>

#include "run/rank.h"

enum { CHECKPOINT_TREES = 3 }; /* values, first and second moments: (own_nelem) each, as layout.own_at has them */

struct checkpoint_list;

/* Names, shapes and boxes of this rank's rows in `trees`, which are borrowed and filled later. */
int checkpoint_list_new(const struct rank *r, float *const trees[CHECKPOINT_TREES], struct checkpoint_list **out, struct fsdpck_error *err);
void checkpoint_list_free(struct checkpoint_list *list); /* NULL does nothing */
/* The rank's state as it is when the stream comes to it, to trees. */
void checkpoint_copy(const struct rank *r, struct kern_stream *stream, float *const trees[CHECKPOINT_TREES]);
/* Collective over comm, in any thread. state: from state_write. */
int checkpoint_write(const struct checkpoint_list *list, struct comm *comm, const struct job *job, const char *path, const char *state,
                     const struct fsdpck_options *fs, struct fsdpck_error *err);

#endif
