/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the parts of the commit protocol: the resolved path of OUT, the names of temporary files, locks of writers,
 * and the files that a commit may remove. */
#ifndef CKPT_COMMIT_IMPL_H
#define CKPT_COMMIT_IMPL_H

#include "commit/commit.h"
#include "base/vec.h"

/* ---- commit_resolve.c: the path of OUT ---- */

struct commit_output {
    char *path;   /* absolute, without links and trailing slashes; may be missing */
    char *parent; /* directory that contains it; "/" for "/" itself */
    char *base;   /* last part of path; "" for "/" itself */
};
/* The caller frees *output with fsdpck_output_free(), even after failure. */
int fsdpck_output_resolve(const struct fsdpck_io *io, const char *out, struct commit_output *output,
                          struct fsdpck_error *err);
void fsdpck_output_free(struct commit_output *output);
/* Makes the missing directories above the output, durably. Appends the path of each (char *, malloc'ed) to made,
 * outermost first. */
int fsdpck_output_make_parents(const struct fsdpck_io *io, const struct commit_output *output, struct fsdpck_vec *made,
                               struct fsdpck_error *err);
/* Returns whether the output is a mount point, which cannot be renamed. */
bool fsdpck_output_is_mount(const struct fsdpck_io *io, const struct commit_output *output);
/* Returns whether the output is, or contains, the working directory of this process. Renaming it would leave the user's
 * shell in a directory that is gone. */
bool fsdpck_output_holds_cwd(const struct fsdpck_io *io, const struct commit_output *output);

/* ---- commit_names.c: the names of temporary files ----
 *
 * X is the base name of the output, U the save id.
 *
 *     X.tmp-U           the staging directory or file: readers must treat it as incomplete
 *     X.old-U           a complete old output that was renamed; it is renamed to X.tmp-U before it is removed
 *     X.damaged-U       a damaged output that was set aside; only its owner may remove it
 *     .X.writer-U       names the writer of U, which locks it while it runs; durable before X.tmp-U is made,
 *                       removed after X.tmp-U is durably removed
 *     .X.fsdpck-lock    locked by the one writer of X
 *     step-N.removed    a checkpoint that a version before 1 was removing (N: digits)
 *
 * In place (inside OUT, without X): .writer-U, .fsdpck-lock, and .commit-U, the journal of commit_in_place.c. */

enum commit_name_kind {
    NAME_NONE, /* any other name */
    NAME_STAGING,
    NAME_OLD,
    NAME_DAMAGED,
    NAME_REMOVED,
    NAME_WRITER,
    NAME_JOURNAL,
    NAME_LOCK
};

struct commit_name {
    enum commit_name_kind kind;
    char base[256]; /* X; "" in place */
    char uuid[37];  /* U; "" if the kind has none */
};
void fsdpck_commit_name_parse(const char *name, struct commit_name *out);
/* Returns "dir/NAME", malloc'ed, or NULL with err filled. uuid is ignored for a lock. */
char *fsdpck_commit_name_path(const char *dir, const char *base, enum commit_name_kind kind, const char *uuid,
                              struct fsdpck_error *err);
/* Returns whether the first part of the path contains the save id: the file was made by that save. */
bool fsdpck_commit_name_has_id(const char *name, const char *uuid);
/* Returns whether `name`, one of the entries `list` of a directory, is a lock, a journal, or a file of a save whose
 * writer file is in the list: that save did not finish, or was not cleaned up. */
bool fsdpck_commit_name_is_inner(char *const *list, size_t count, const char *name);
/* Returns whether name is NAME.tmp-UUID. *nbytes gets the length of NAME. */
bool fsdpck_commit_name_is_temporary(const char *name, const char *uuid, size_t *nbytes);

/* Lists of strings (char *, malloc'ed). */
/* Appends s and owns it, even after failure. s NULL: returns FSDPCK_ERR_NOMEM; err has been filled already. */
int fsdpck_strings_take(struct fsdpck_vec *strings, char *s, struct fsdpck_error *err);
int fsdpck_strings_add(struct fsdpck_vec *strings, const char *s, struct fsdpck_error *err); /* appends a copy */
void fsdpck_strings_free(struct fsdpck_vec *strings);

/* ---- commit_lock.c: locks of writers ---- */

struct commit_lock {
    int fd;     /* -1: not held */
    char *path; /* malloc'ed */
};
#define COMMIT_LOCK_NONE \
    { \
        -1, NULL \
    }

/* Creates the file, or takes over that of a dead writer, and locks it. Owns path, even after failure. FSDPCK_ERR_BUSY
 * names `subject` and the holder. */
int fsdpck_lock_take(const struct fsdpck_io *io, char *path, const char *subject, const char *uuid,
                     struct commit_lock *lock, struct fsdpck_error *err);
/* Removes the file, then unlocks it. Returns whether the file is gone. */
bool fsdpck_lock_remove(const struct fsdpck_io *io, struct commit_lock *lock);
/* Unlocks the file and keeps it. */
void fsdpck_lock_release(const struct fsdpck_io *io, struct commit_lock *lock);

struct commit_writer_status {
    bool alive;    /* or it cannot be proved dead */
    char why[256]; /* the reason, for people: "writer is gone" */
};
/* Finds out whether the writer that made this lock or writer file still runs. */
void fsdpck_writer_probe(const struct fsdpck_io *io, const char *path, struct commit_writer_status *out);

/* ---- leftovers.c ---- */

/* Removes what dead writers of the same output left, so that it does not fill a small disk, and completes the clean-up
 * of a save that was committed. The caller has locked the output (in_place: the directory itself). Ignores failures:
 * the next clean-up tries again. */
void fsdpck_commit_clear_dead(const struct fsdpck_io *io, const struct commit_output *output, bool in_place);

/* ---- commit_ownership.c: the files in a directory that a replacement may remove ---- */

struct commit_ownership {
    bool checkpoint, model;  /* the directory holds one */
    struct fsdpck_vec names; /* char *: entries of the directory that belong to the results in it */
    char *foreign;           /* the first file that does not, relative to the directory; NULL: none */
    char *contested; /* if there are foreign files: the first one that a new result would replace and that may be
                        somebody else's; NULL: none */
};
/* Scans a directory. kind: of the new result. new_files: (nnew_files) paths of its files besides weights; if the
 * directory holds a result, files of these names count as its own. Skips temporary files of saves. The caller frees
 * *own after success. */
int fsdpck_ownership_scan(const struct fsdpck_io *io, const char *dir, enum fsdpck_commit_kind kind,
                          const char *const *new_files, size_t nnew_files, struct commit_ownership *own,
                          struct fsdpck_error *err);
void fsdpck_ownership_free(struct commit_ownership *own);
/* *is: the directory is empty, or holds only files of a checkpoint whose removal was interrupted. */
int fsdpck_is_checkpoint_remnant(const struct fsdpck_io *io, const char *dir, bool *is, struct fsdpck_error *err);

/* ---- commit_in_place.c ---- */

/* Appends to names (char *) the entries of own->names that a new save in place replaces: neither its record nor
 * documents. Records come first, so that they are removed first. */
int fsdpck_in_place_old(const struct commit_ownership *own, const char *record, struct fsdpck_vec *names,
                        struct fsdpck_error *err);
/* Returns FSDPCK_ERR_EXISTS if dir holds anything but temporary files of saves and lost+found. */
int fsdpck_in_place_check_empty(const struct fsdpck_io *io, const char *dir, struct fsdpck_error *err);
/* Commits: writes the journal and renames the record. old: (char *) the files to replace. *committed: whether the
 * record was renamed; if so, no file of the save may be removed, even after failure. */
int fsdpck_in_place_commit(const struct fsdpck_io *io, const char *dir, const char *record, const char *uuid,
                           const struct fsdpck_vec *old, bool *committed, struct fsdpck_error *err);
/* Renames and removes files after a commit. May be repeated. */
int fsdpck_in_place_complete(const struct fsdpck_io *io, const char *dir, const char *uuid, struct fsdpck_error *err);
/* Removes every file of the save except its writer file. */
int fsdpck_in_place_undo(const struct fsdpck_io *io, const char *dir, const char *uuid, struct fsdpck_error *err);
/* *committed: the record in dir is the one that this save's journal names. */
int fsdpck_in_place_committed(const struct fsdpck_io *io, const char *dir, const char *uuid, bool *committed,
                              struct fsdpck_error *err);
/* The same; also gets the record's name and the files that the save replaces (char *: the list is freed, then
 * filled). */
int fsdpck_in_place_state(const struct fsdpck_io *io, const char *dir, const char *uuid, bool *committed,
                          char record[256], struct fsdpck_vec *replaced, struct fsdpck_error *err);

/* ---- commit.c, commit_finish.c ---- */

struct fsdpck_commit {
    const struct fsdpck_io *io;
    enum fsdpck_commit_kind kind;
    bool force, in_place;
    const char *const *new_files; /* (nnew_files) the caller's; valid only while the commit begins */
    size_t nnew_files;
    char uuid[37];
    struct commit_output output;
    char *out;         /* as the user wrote it, for messages */
    char *record_name; /* NULL for a file */
    char *dir;         /* where files are made; FILE: the file */
    char *record;      /* path of the record file */
    bool staged;       /* this commit made dir */
    bool old_remains;  /* X.old-U could not be renamed; a later clean-up decides about it */
    struct commit_lock lock, inner_lock, writer;
    struct fsdpck_vec made_parents; /* char *: directories above OUT that the commit made, outermost first */
    struct fsdpck_vec old;          /* char *: in place, names that the new save replaces */
};

void fsdpck_commit_free(struct fsdpck_commit *c);
/* Sets FSDPCK_ERR_EXISTS with `what`, and (can_force) a hint at --force. Returns the code. */
int fsdpck_commit_exists(const struct fsdpck_commit *c, const char *what, bool can_force, struct fsdpck_error *err);
/* Ends a writer, after success or failure: releases its locks. clean: its temporary files are durably gone, so the
 * writer file is removed too; otherwise it stays, unlocked, for a later clean-up. Returns whether it is gone. */
bool fsdpck_commit_end_writer(struct fsdpck_commit *c, bool clean);
/* Removes the staging directory or file. Returns whether the removal is durable. */
bool fsdpck_commit_remove_staging(struct fsdpck_commit *c);

#endif
