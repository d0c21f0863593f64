/* SPDX-License-Identifier: Apache-2.0 */
/* Which files of a directory count for a reader while a save is written in place, or after its writer was killed: the
 * old ones or the new ones, never both. */
#ifndef CKPT_COMMIT_VIEW_H
#define CKPT_COMMIT_VIEW_H

#include <fsdpck/io.h>

#include "base/vec.h"

/* Zeroed: everything counts. */
struct fsdpck_commit_view {
    char record[256]; /* of a save that was committed and is not yet cleaned up: the file by which it is read; "": there
                         is none */
    char committed[37];           /* its id */
    struct fsdpck_vec replaced;   /* char *: the files that it replaces */
    struct fsdpck_vec unfinished; /* char *: ids of saves that do not count */
    struct fsdpck_vec moved;      /* char *: names of files that wait as NAME.tmp-ID to get their own */
};

/* names (count): the entries of dir. Costs nothing where no save left a trace there; else the record is read and
 * hashed. */
int fsdpck_commit_view(const struct fsdpck_io *io, const char *dir, char *const *names, size_t count,
                       struct fsdpck_commit_view *view, struct fsdpck_error *err);
void fsdpck_commit_view_free(struct fsdpck_commit_view *view);
/* Whether a file of this name counts. */
bool fsdpck_commit_view_has(const struct fsdpck_commit_view *view, const char *name);
/* Where name waits as NAME.tmp-ID, the bytes of NAME: then those are how long NAME is; else 0. */
size_t fsdpck_commit_view_waits(const struct fsdpck_commit_view *view, const char *name);
/* Removes from the list (as of fsdpck_list_sorted) the names that do not count. */
void fsdpck_commit_view_filter(const struct fsdpck_commit_view *view, char **names, size_t *count);
/* "dir/name", or "dir/name.tmp-ID" where that counts; malloc'ed. */
char *fsdpck_commit_view_path(const struct fsdpck_commit_view *view, const char *dir, const char *name,
                              struct fsdpck_error *err);

#endif
