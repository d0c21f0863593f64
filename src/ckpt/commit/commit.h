/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces an output atomically: a reader sees the old one (or nothing) or the new one. FORMAT.md, "Commit", has the
 * protocol: staging, lock, fsync, rename.
 *
 * fsdpck_commit_begin() resolves OUT, checks an existing output, and makes and locks the staging directory. The caller
 * writes and fsyncs files below fsdpck_commit_dir(). Then fsdpck_commit_finish() makes the staging directory the
 * output, durably; or fsdpck_commit_abandon() removes it. */
#ifndef CKPT_COMMIT_H
#define CKPT_COMMIT_H

#include <fsdpck/io.h>

enum fsdpck_commit_kind {
    FSDPCK_COMMIT_CHECKPOINT, /* a directory whose record is index.json */
    FSDPCK_COMMIT_FOLDER,     /* any other directory: an export */
    FSDPCK_COMMIT_FILE,       /* one file */
};

struct fsdpck_commit; /* opaque */

/* Begins to replace OUT. On success the caller owns *c, which fsdpck_commit_finish() or fsdpck_commit_abandon() frees.
 * uuid: the save id, 16 random bytes. record: name of the file by which readers recognise the output ("index.json",
 * "model.safetensors.index.json"); NULL for FILE. If OUT cannot be renamed (a mount point), the commit writes in place,
 * inside OUT, and renames the record last. force: replace an existing OUT.
 * Returns FSDPCK_ERR_EXISTS if force is false and OUT exists and is not an empty directory, or if force is true and OUT
 * holds a file that belongs to no result (commit_ownership.c); FSDPCK_ERR_BUSY if another writer uses OUT.
 * Removes the left-overs of dead writers of the same OUT. */
int fsdpck_commit_begin(const struct fsdpck_io *io, const char *out, enum fsdpck_commit_kind kind, const char *record,
                        const uint8_t uuid[16], bool force, struct fsdpck_commit **c, struct fsdpck_error *err);
/* The same, if it is known which files besides weights the new folder will have. new_files: (nnew_files) their paths
 * relative to OUT, used only during the call. */
int fsdpck_commit_begin_with(const struct fsdpck_io *io, const char *out, enum fsdpck_commit_kind kind,
                             const char *record, const uint8_t uuid[16], bool force, const char *const *new_files,
                             size_t nnew_files, struct fsdpck_commit **c, struct fsdpck_error *err);
/* Returns the directory to create files in (FILE: the path of the file to create). Borrowed. */
const char *fsdpck_commit_dir(const struct fsdpck_commit *c);
/* Returns the final path of OUT: absolute, without links. Borrowed. */
const char *fsdpck_commit_target(const struct fsdpck_commit *c);
/* Returns whether the commit writes in place. Then the names of data files must contain the save id, because the old
 * files still exist, and the record must be written to fsdpck_commit_record(). */
bool fsdpck_commit_in_place(const struct fsdpck_commit *c);
/* Returns the path to write the record to: dir/record, or in place dir/record.tmp-UUID. Borrowed. */
const char *fsdpck_commit_record(const struct fsdpck_commit *c);
/* In place, call this for every file or folder other than the record, after creating it. name: relative to the
 * directory. Checks that the first part of the name contains the save id, by which abandon and fsdpck_leftovers()
 * recognise the file: STEM-UUID.EXT keeps its name; NAME.tmp-UUID is renamed to NAME right after the record. The commit
 * then removes the old files that fsdpck had written. Does nothing if the commit is staged. */
int fsdpck_commit_created(struct fsdpck_commit *c, const char *name, struct fsdpck_error *err);
/* Makes the new files the output. The caller must have fsynced all of them. Always frees c. On failure OUT is as it was
 * before, unless a hint says that the new one is in place. */
int fsdpck_commit_finish(struct fsdpck_commit *c, struct fsdpck_error *err);
/* Removes the new files and frees c. NULL does nothing. */
void fsdpck_commit_abandon(struct fsdpck_commit *c);

/* Computes the path of the staging directory that rank 0 makes for this save: the resolved OUT and ".tmp-UUID". *dir is
 * malloc'ed. */
int fsdpck_commit_staging_path(const struct fsdpck_io *io, const char *out, const uint8_t uuid[16], char **dir,
                               struct fsdpck_error *err);
/* Finds the save that rank 0 has begun: gets its save id, the directory to create files in (malloc'ed), and whether it
 * is in place. FSDPCK_ERR_PEER: there is no lock, so rank 0 did not begin. */
int fsdpck_commit_join(const struct fsdpck_io *io, const char *out, uint8_t uuid[16], char **dir, bool *in_place,
                       struct fsdpck_error *err);
/* Resolves OUT, which may be missing: *path is absolute, without links, malloc'ed. */
int fsdpck_commit_resolve(const struct fsdpck_io *io, const char *out, char **path, struct fsdpck_error *err);
/* Removes a file or a directory tree without following links. Returns 0 also if there is nothing at this path. */
int fsdpck_remove_tree(const struct fsdpck_io *io, const char *path, struct fsdpck_error *err);

#endif
