/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between the ranks of a save, through the directory. The name of an empty file beside the shards gives a hash
 * of the list of tensors, and tells whether the rank failed. These files are removed before the commit. */
#ifndef CKPT_SAVE_LIST_H
#define CKPT_SAVE_LIST_H

#include <fsdpck/save.h>

#define FSDPCK_SAVE_LIST_MAX 96u

struct fsdpck_save_list {
    char name[FSDPCK_SAVE_LIST_MAX],
        failed[FSDPCK_SAVE_LIST_MAX]; /* the file's name, and the name after its rank failed */
};

/* Makes the names for a request. Two ranks have the same names if number of ranks, names, paths, dtypes, shapes,
 * meshes, placements and aliases are equal, and names and paths of items. */
int fsdpck_save_list_name(const struct fsdpck_save_request *req, const uint8_t save_id[16],
                          struct fsdpck_save_list *list, struct fsdpck_error *err);
/* Rank 0: before the others check. */
int fsdpck_save_list_put(const struct fsdpck_io *io, const char *dir, const struct fsdpck_save_list *list,
                         struct fsdpck_error *err);
/* Other ranks: FSDPCK_ERR_USAGE if rank 0 has another list. */
int fsdpck_save_list_check(const struct fsdpck_io *io, const char *dir, const struct fsdpck_save_list *list,
                           uint32_t rank, struct fsdpck_error *err);
/* A rank that failed after its check: its shard file does not count, whatever its contents. */
void fsdpck_save_list_fail(const struct fsdpck_io *io, const char *dir, const struct fsdpck_save_list *list);
/* Rank 0, after all ranks have finished: fails if one of them has failed. */
int fsdpck_save_list_take(const struct fsdpck_io *io, const char *dir, const struct fsdpck_save_list *list,
                          struct fsdpck_error *err);

#endif
