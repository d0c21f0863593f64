/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the parts of the commit protocol: the resolved path of OUT, the names of temporaries, and writer locks. */
#ifndef CKPT_COMMIT_IMPL_H
#define CKPT_COMMIT_IMPL_H

#include "commit/commit.h"
#include "base/vec.h"

/* ---- commit_resolve.c: where OUT really is */

struct commit_output {
    char *path;   /* absolute, without links and trailing slashes; may be missing */
    char *parent; /* directory that holds it; "/" for "/" itself */
    char *base;   /* last part; "" for "/" itself */
};
int fsdpck_output_resolve(const struct fsdpck_io *io, const char *out, struct commit_output *output,
                          struct fsdpck_error *err);
void fsdpck_output_free(struct commit_output *output);
/* Makes the missing directories above, durably; those it made are appended to made (char *, malloc'ed), outermost
 * first. */
int fsdpck_output_make_parents(const struct fsdpck_io *io, const struct commit_output *output, struct fsdpck_vec *made,
                               struct fsdpck_error *err);
/* Returns true if the output itself cannot be renamed because it is a mount point. */
bool fsdpck_output_is_mount(const struct fsdpck_io *io, const struct commit_output *output);
/* Whether the process works in the place or below it: renaming it away would leave the user's shell in a directory that
 * is gone. */
bool fsdpck_output_holds_cwd(const struct fsdpck_io *io, const struct commit_output *output);

/* ---- commit_names.c: the names of temporaries. X is the base name of what is written, U the save id.
 *
 *     X.tmp-U           the staging directory or file: never complete as far as anyone may assume
 *     X.old-U           a complete old one that was moved out of the way: deleting it starts with a rename to X.tmp-U
 *     X.damaged-U       a damaged one that was moved out of the way, for its owner to judge
 *     .X.writer-U       locked while the writer of U lives; says who that is. Durable before X.tmp-U is made, removed
 *                       after that is durably gone
 *     .X.fsdpck-lock    locked by the one writer of X
 *     step-N.removed    what versions before 1 called a checkpoint while its files went (N: digits)
 * In place (inside OUT, no X): .writer-U, .fsdpck-lock, and .commit-U, the journal of commit_in_place.c. */

enum commit_trace {
    TRACE_NONE,
    TRACE_STAGING,
    TRACE_OLD,
    TRACE_DAMAGED,
    TRACE_REMOVED,
    TRACE_WRITER,
    TRACE_JOURNAL,
    TRACE_LOCK
};

struct commit_name {
    enum commit_trace trace;
    char base[256];
    char uuid[37];
};
void fsdpck_trace_parse(const char *name, struct commit_name *out);
/* "dir/NAME", malloc'ed. uuid is not used for a lock. */
char *fsdpck_trace_path(const char *dir, const char *base, enum commit_trace trace, const char *uuid,
                        struct fsdpck_error *err);
/* Whether name belongs to the save: its first part holds the save id. */
bool fsdpck_trace_has(const char *name, const char *uuid);
/* Whether name is a trace inside the directory whose entries are listed: a lock, a journal, or a file of a save whose
 * writer file is there (it was never finished, or its clean-up was not). */
bool fsdpck_trace_is_inner(char *const *list, size_t count, const char *name);
/* Whether name is NAME.tmp-UUID; then *nbytes is that of NAME. */
bool fsdpck_trace_is_temporary(const char *name, const char *uuid, size_t *nbytes);

/* Lists of malloc'ed strings. take: owns s whatever happens; a NULL s is an error that stands in err already. */
int fsdpck_strings_take(struct fsdpck_vec *strings, char *s, struct fsdpck_error *err);
int fsdpck_strings_add(struct fsdpck_vec *strings, const char *s, struct fsdpck_error *err); /* a copy */
void fsdpck_strings_free(struct fsdpck_vec *strings);

/* ---- commit_lock.c: who is at work */

struct commit_lock {
    int fd;     /* -1: not held */
    char *path; /* malloc'ed */
};
#define COMMIT_LOCK_NONE \
    { \
        -1, NULL \
    }

/* Creates (or takes over) the file and locks it. Takes path, whatever happens. FSDPCK_ERR_BUSY names `subject` and the
 * holder. */
int fsdpck_lock_take(const struct fsdpck_io *io, char *path, const char *subject, const char *uuid,
                     struct commit_lock *lock, struct fsdpck_error *err);
/* Removes the file, while it is still locked, and unlocks it; true when the file is gone. */
bool fsdpck_lock_drop(const struct fsdpck_io *io, struct commit_lock *lock);
void fsdpck_lock_leave(const struct fsdpck_io *io, struct commit_lock *lock); /* unlocks and leaves the file */

struct commit_verdict {
    bool alive; /* or cannot be proved dead */
    char why[256];
};
/* Judges the writer whose lock or writer file this is. */
void fsdpck_writer_probe(const struct fsdpck_io *io, const char *path, struct commit_verdict *out);

/* ---- leftovers.c */

/* For a writer that has locked the place (in place, the directory itself): removes what dead writers of the same output
 * left, so that a small disk does not fill, and completes the clean-up of a save that was committed. A failure leaves
 * it for later. */
void fsdpck_commit_clear_dead(const struct fsdpck_io *io, const struct commit_output *output, bool in_place);

/* ---- commit_own.c: which files in a directory a replacement may remove */

struct commit_own {
    bool checkpoint, model;  /* it holds one */
    struct fsdpck_vec names; /* char *: entries of the directory that belong to the results in it */
    char *foreign;           /* the first file that does not, relative to the directory; NULL: none */
    char *contested; /* with foreign files about, the first that a new result would replace and that may be somebody
                        else's too */
};
/* kind: of the new result, brings (nbrings): paths of files that it will have; where there is a result, those of the
 * same name count as its own. Traces of saves are neither. Owned by the caller. */
int fsdpck_own_scan(const struct fsdpck_io *io, const char *dir, enum fsdpck_commit_kind kind,
                    const char *const *brings, size_t nbrings, struct commit_own *own, struct fsdpck_error *err);
void fsdpck_own_free(struct commit_own *own);
/* Whether a directory holds what is left of a checkpoint whose removal was interrupted, and nothing else; an empty one
 * does. */
int fsdpck_own_is_remnant(const struct fsdpck_io *io, const char *dir, bool *is, struct fsdpck_error *err);
/* Whether a file of this name may belong to a result at all. */
bool fsdpck_own_may_be(const char *name);

/* ---- commit_in_place.c */

/* Appends to names (char *) the entries of own->names that a new save in place replaces: not its record, and no
 * documents. Records come first: they go first. */
int fsdpck_in_place_old(const struct commit_own *own, const char *record, struct fsdpck_vec *names,
                        struct fsdpck_error *err);
/* FSDPCK_ERR_EXISTS where dir holds anything but what is no one's result: temporaries, lost+found. */
int fsdpck_in_place_check_empty(const struct fsdpck_io *io, const char *dir, struct fsdpck_error *err);
/* The commit. *committed tells whether the record was renamed: after that nothing of the save may be removed. */
int fsdpck_in_place_commit(const struct fsdpck_io *io, const char *dir, const char *record, const char *uuid,
                           const struct fsdpck_vec *old, bool *committed, struct fsdpck_error *err);
/* Does the remaining work after a commit; may be repeated. */
int fsdpck_in_place_complete(const struct fsdpck_io *io, const char *dir, const char *uuid, struct fsdpck_error *err);
/* Removes every file of the save but its writer file. */
int fsdpck_in_place_undo(const struct fsdpck_io *io, const char *dir, const char *uuid, struct fsdpck_error *err);
/* Whether the record in dir is the one that the journal of this save announced. */
int fsdpck_in_place_committed(const struct fsdpck_io *io, const char *dir, const char *uuid, bool *committed,
                              struct fsdpck_error *err);
/* The same, with the record's name and what the save replaces (char *; freed, then filled). */
int fsdpck_in_place_standing(const struct fsdpck_io *io, const char *dir, const char *uuid, bool *committed,
                             char record[256], struct fsdpck_vec *replaced, struct fsdpck_error *err);

/* ---- commit.c, commit_finish.c */

struct fsdpck_commit {
    const struct fsdpck_io *io;
    enum fsdpck_commit_kind kind;
    bool force, in_place;
    const char *const *brings; /* (nbrings) of the caller, while the commit begins */
    size_t nbrings;
    char uuid[37];
    struct commit_output output;
    char *out;         /* as the user wrote it, for messages */
    char *record_name; /* NULL for a file */
    char *dir;         /* where files are made; FILE: the file */
    char *record;      /* path of the record file */
    bool staged;       /* dir was made by us */
    bool old_stays;    /* X.old-U could not be renamed again: it is left for others to judge */
    struct commit_lock lock, inner_lock, writer;
    struct fsdpck_vec made; /* char *: parents that were made, outermost first */
    struct fsdpck_vec old;  /* char *: in place, names that the new save replaces */
};

void fsdpck_commit_free(struct fsdpck_commit *c);
int fsdpck_commit_exists(const struct fsdpck_commit *c, const char *what, bool can_force, struct fsdpck_error *err);
/* The end of a writer, good or bad: its temporaries are durably gone where `clean`; else its writer file stays,
 * unlocked, for others to judge. True when the writer file is gone. */
bool fsdpck_commit_end_writer(struct fsdpck_commit *c, bool clean);
/* Removes what stands under the staging name; true when that is durable. */
bool fsdpck_commit_remove_staging(struct fsdpck_commit *c);

#endif
