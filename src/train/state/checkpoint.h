/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a checkpoint, copied out of a rank and written by libfsdpck. */
#ifndef TRAIN_CHECKPOINT_H
#define TRAIN_CHECKPOINT_H

#include <fsdpck/save.h>

#include "rank/rank.h"

enum {
    CHECKPOINT_TREES = 3
}; /* values, first and second moments: (own_nelem) each, laid out by param.own_at from own_first on */

struct checkpoint_list;

/* The rows of a trained parameter in one tree, in the memory of their rank. Not for a state in a file. */
float *checkpoint_rows(const struct rank *r, const struct param *p, int tree);

/* Lists names, shapes and boxes of this rank's rows. `trees` is borrowed; the caller may fill it later. If the state is
 * in a file, only trees[0] is used, for what checkpoint_keep() copies. */
int checkpoint_list_new(const struct rank *r, float *const trees[CHECKPOINT_TREES], struct checkpoint_list **out,
                        struct fsdpck_error *err);
void checkpoint_list_free(struct checkpoint_list *list); /* NULL does nothing */
/* Enqueues copies of the rank's state to trees. */
void checkpoint_copy(const struct rank *r, struct kern_stream *stream, float *const trees[CHECKPOINT_TREES]);
/* For a state in a file: keeps it as it is, and puts values that are only in memory into the file or to loose
 * (memory_snapshot_nbytes). */
int checkpoint_keep(const struct rank *r, float *loose, struct fsdpck_error *err);
/* Collective over comm; any thread may call it. state: from state_write(). */
int checkpoint_write(const struct checkpoint_list *list, struct comm *comm, const struct job *job, const char *path,
                     const char *state, const struct fsdpck_options *fs, struct fsdpck_error *err);
/* The same in other ways. */
struct checkpoint_write_options {
    bool values_only; /* without the moments */
    bool force;       /* replaces what is there */
};
int checkpoint_write_as(const struct checkpoint_list *list, const struct checkpoint_write_options *how,
                        struct comm *comm, const struct job *job, const char *path, const char *state,
                        const struct fsdpck_options *fs, struct fsdpck_error *err);

/* Checks that each tree has every trained tensor, with its shape, and no other tensor. */
int checkpoint_check_tensors(const struct job *job, const struct fsdpck_source *src, struct fsdpck_error *err);
/* Reads this rank's part of the three trees, which checkpoint_check_tensors() has found complete. */
int checkpoint_read(struct rank *r, struct fsdpck_source *src, struct fsdpck_error *err);
/* Reads this rank's part of the state; does not publish it (rank_publish() does). After a failure the state is
 * undefined. */
int rank_resume(struct rank *r, const char *path, struct fsdpck_error *err);
/* Called before the ranks start. Checks key by key that the checkpoint fits this run. *step: number of completed
 * steps. */
int job_check_resume(const struct job *job, const char *path, uint64_t *step, struct fsdpck_error *err);

#endif
