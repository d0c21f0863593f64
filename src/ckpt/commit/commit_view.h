/* SPDX-License-Identifier: Apache-2.0 */
/* Tells a reader which files of a directory are valid while a save is written in place, or after its writer was killed:
 * the old files or the new ones, never both. */
#ifndef CKPT_COMMIT_VIEW_H
#define CKPT_COMMIT_VIEW_H

#include <fsdpck/io.h>

#include "base/vec.h"

/* Zero-initialised: every file is valid. */
struct fsdpck_commit_view {
    char record[256];             /* the record's name, of a save that was committed but not cleaned up; "": none */
    char committed[37];           /* id of that save */
    struct fsdpck_vec replaced;   /* char *: the files that it replaces: not valid */
    struct fsdpck_vec unfinished; /* char *: ids of saves that were not committed: their files are not valid */
    struct fsdpck_vec pending;    /* char *: each NAME whose new file is still called NAME.tmp-ID */
};

/* names: (count) the entries of dir. Reads nothing if no save left a temporary name among them; otherwise reads and
 * hashes the record. The caller frees *view after success. */
int fsdpck_commit_view(const struct fsdpck_io *io, const char *dir, char *const *names, size_t count,
                       struct fsdpck_commit_view *view, struct fsdpck_error *err);
void fsdpck_commit_view_free(struct fsdpck_commit_view *view);
/* Returns whether a file of this name is valid. */
bool fsdpck_commit_view_has(const struct fsdpck_commit_view *view, const char *name);
/* Returns the length of NAME if `name` is NAME.tmp-ID of the committed save, which is still to be renamed; else 0. */
size_t fsdpck_commit_view_pending(const struct fsdpck_commit_view *view, const char *name);
/* Removes from the list (from fsdpck_list_sorted()) the names that are not valid. */
void fsdpck_commit_view_filter(const struct fsdpck_commit_view *view, char **names, size_t *count);
/* Returns the path of the valid file: "dir/name", or "dir/name.tmp-ID" while it is to be renamed; malloc'ed. */
char *fsdpck_commit_view_path(const struct fsdpck_commit_view *view, const char *dir, const char *name,
                              struct fsdpck_error *err);

#endif
