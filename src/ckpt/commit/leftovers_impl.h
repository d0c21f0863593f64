/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files that find and remove left-overs: the scan of one directory, and what is done with each kind of
 * entry in it. The names of left-overs are those of commit_impl.h. Each function takes one entry, reports it if it is a
 * left-over, and removes it if the scan removes and its writer is proved dead. Each returns 0, or a code with s->err
 * filled. */
#ifndef CKPT_LEFTOVERS_IMPL_H
#define CKPT_LEFTOVERS_IMPL_H

#include <fsdpck/check.h>

#include "commit/commit_impl.h"

/* A scan of one directory. */
struct leftover_scan {
    const struct fsdpck_io *io;
    const char *dir;
    const char *only; /* only left-overs of this base name; NULL: all */
    bool remove, remove_damaged;
    bool locked; /* the caller holds the lock: the name's, or that of the directory written in place */
    fsdpck_leftover_fn report;
    void *report_ctx;
    char **names; /* sorted; the entries at the start of the scan */
    size_t count;
    struct fsdpck_error *err;
};

/* leftovers.c: reports one left-over to the caller of the scan. */
void fsdpck_leftover_report(const struct leftover_scan *s, const char *path, bool alive, const char *why, bool removed);
/* Returns whether nothing has this name; false if that cannot be found out. */
bool fsdpck_leftover_is_missing(const struct leftover_scan *s, const char *path);
/* Removes a lock or writer file whose owner is dead. *removed: whether it is gone. Returns 0 and sets *removed to
 * false if another process has taken it over. */
int fsdpck_leftover_remove_lock(const struct leftover_scan *s, const char *path, const char *uuid, bool *removed);

/* ---- leftovers_staged.c: saves beside their output ---- */

/* X.tmp-U and X.old-U. */
int fsdpck_leftover_staging_or_old(const struct leftover_scan *s, const struct commit_name *n, const char *path);
/* X.damaged-U */
int fsdpck_leftover_set_aside(const struct leftover_scan *s, const char *path);
/* step-N.removed */
int fsdpck_leftover_half_removed(const struct leftover_scan *s, const char *path);
/* .X.writer-U, .X.fsdpck-lock, and .fsdpck-lock. Call it after all other entries. */
int fsdpck_leftover_owner_file(const struct leftover_scan *s, const struct commit_name *n, const char *path);

/* ---- leftovers_in_place.c: saves inside their output ---- */

/* All files of the save whose writer file this is. */
int fsdpck_leftover_in_place(const struct leftover_scan *s, const struct commit_name *n, const char *writer);
/* A journal without a writer file: the save is complete except for removing the journal. */
int fsdpck_leftover_lone_journal(const struct leftover_scan *s, const struct commit_name *n, const char *path);

#endif
