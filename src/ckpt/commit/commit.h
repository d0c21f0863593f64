/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces an output atomically, so that readers see the old one (or nothing) or the new one: staging, lock, fsync,
 * rename (design: FORMAT.md "Commit").
 *
 *     fsdpck_commit_begin()   resolves OUT, refuses or accepts an existing output, makes and locks the staging
 * directory …write and fsync files below fsdpck_commit_dir()… fsdpck_commit_finish()  makes it the output, durably; or
 *     fsdpck_commit_abandon() removes every trace
 */
#ifndef CKPT_COMMIT_H
#define CKPT_COMMIT_H

#include <fsdpck/io.h>

enum fsdpck_commit_kind {
    FSDPCK_COMMIT_CHECKPOINT, /* a directory whose commit record is index.json: may be written in place where it cannot
                                 be renamed */
    FSDPCK_COMMIT_FOLDER,     /* any other directory (an export): in place, its record file is moved in last */
    FSDPCK_COMMIT_FILE,       /* one file */
};

struct fsdpck_commit; /* opaque */

/* uuid: 16 random bytes of this save. record: name of the file that, in place, is renamed last ("index.json",
 * "model.safetensors.index.json", NULL for FILE). An existing OUT is FSDPCK_ERR_EXISTS unless it is an empty directory,
 * or force and nothing in it is somebody else's (commit_own.c); another writer at work on the same OUT is
 * FSDPCK_ERR_BUSY. Removes the left-overs of dead writers of the same OUT. */
int fsdpck_commit_begin(const struct fsdpck_io *io, const char *out, enum fsdpck_commit_kind kind, const char *record,
                        const uint8_t uuid[16], bool force, struct fsdpck_commit **c, struct fsdpck_error *err);
/* The same for a folder of which more is known: brings (nbrings, need not outlive the call) are the paths, relative to
 * OUT, of files that the new one will have besides weights. */
int fsdpck_commit_begin_bringing(const struct fsdpck_io *io, const char *out, enum fsdpck_commit_kind kind,
                                 const char *record, const uint8_t uuid[16], bool force, const char *const *brings,
                                 size_t nbrings, struct fsdpck_commit **c, struct fsdpck_error *err);
/* Directory to create files in (FILE: the path of the file to create). */
const char *fsdpck_commit_dir(const struct fsdpck_commit *c);
/* Where OUT is, or will be: absolute, without links. */
const char *fsdpck_commit_target(const struct fsdpck_commit *c);
/* True where files are made inside OUT itself (a mount point): data files must then carry the save id in their names,
 * since the old ones are still there, and the record is written as fsdpck_commit_record() says. */
bool fsdpck_commit_in_place(const struct fsdpck_commit *c);
/* Where the record file is to be written: dir/record, or dir/record.tmp-UUID in place. */
const char *fsdpck_commit_record(const struct fsdpck_commit *c);
/* In place, every other file or folder that is created must carry the save id in (the first part of) its name, and this
 * checks that it does: STEM-UUID.EXT stays as it is; NAME.tmp-UUID, for what must have a fixed name, is moved to NAME
 * right after the record. By the save id abandon and fsdpck_leftovers() know what to remove. Old files that fsdpck
 * writes are removed after the commit. Staged: no-op. name: relative to the directory. */
int fsdpck_commit_created(struct fsdpck_commit *c, const char *name, struct fsdpck_error *err);
/* Every file below must have been fsynced. Frees c, whatever happens; on failure the old state stands. */
int fsdpck_commit_finish(struct fsdpck_commit *c, struct fsdpck_error *err);
void fsdpck_commit_abandon(struct fsdpck_commit *c); /* NULL does nothing */

/* For ranks that join a staging directory which rank 0 made: OUT resolved as begin does, ".tmp-UUID" appended;
 * malloc'ed. */
int fsdpck_commit_staging_path(const struct fsdpck_io *io, const char *out, const uint8_t uuid[16], char **dir,
                               struct fsdpck_error *err);
/* For ranks that join a save which rank 0 has begun: its save id, and the directory to create files in (malloc'ed).
 * in_place: as above. */
int fsdpck_commit_join(const struct fsdpck_io *io, const char *out, uint8_t uuid[16], char **dir, bool *in_place,
                       struct fsdpck_error *err);
/* Where OUT is, or would be: absolute, without links; malloc'ed. */
int fsdpck_commit_resolve(const struct fsdpck_io *io, const char *out, char **path, struct fsdpck_error *err);
/* Removes a file or a directory tree without following links; what is missing already is fine. */
int fsdpck_remove_tree(const struct fsdpck_io *io, const char *path, struct fsdpck_error *err);

#endif
