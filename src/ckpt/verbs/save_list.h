/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between the ranks of a save, through the directory: the name of an empty file beside the shards gives a hash
 * of the list of tensors, and whether the rank failed. These files are removed before the commit. */
#ifndef CKPT_SAVE_LIST_H
#define CKPT_SAVE_LIST_H

#include <fsdpck/save.h>

#define FSDPCK_SAVE_LIST_MAX 96u

struct fsdpck_save_list {
    char name[FSDPCK_SAVE_LIST_MAX],
        failed[FSDPCK_SAVE_LIST_MAX]; /* of the file, and what a rank that fails renames it to */
};

/* The names for a request. Two ranks have the same where number of ranks, names, paths, dtypes, shapes, meshes,
 * placements and aliases are the same. */
int fsdpck_save_list_name(const struct fsdpck_save_request *req, const uint8_t save_id[16],
                          struct fsdpck_save_list *list, struct fsdpck_error *err);
/* Rank 0, before the others look. */
int fsdpck_save_list_put(const struct fsdpck_io *io, const char *dir, const struct fsdpck_save_list *list,
                         struct fsdpck_error *err);
/* The others: FSDPCK_ERR_USAGE where rank 0 has another list. */
int fsdpck_save_list_check(const struct fsdpck_io *io, const char *dir, const struct fsdpck_save_list *list,
                           uint32_t rank, struct fsdpck_error *err);
/* A rank that checked, and failed afterwards: whatever its file looks like, it does not count. */
void fsdpck_save_list_fail(const struct fsdpck_io *io, const char *dir, const struct fsdpck_save_list *list);
/* Rank 0, when all are through: an error where one has failed. */
int fsdpck_save_list_take(const struct fsdpck_io *io, const char *dir, const struct fsdpck_save_list *list,
                          struct fsdpck_error *err);

#endif
