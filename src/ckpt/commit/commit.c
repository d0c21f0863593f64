/* SPDX-License-Identifier: Apache-2.0 */
/* The commit protocol: puts the new output in the place of nothing, or of the old one; a reader never sees a mixture.
 * It does not know the contents. This file begins and abandons a commit; commit_finish.c completes it.
 *
 * The usual way is staged. A save with id U writes everything to X.tmp-U beside the output X (names: commit_impl.h):
 *
 *     lock .X.fsdpck-lock         one writer per output; others get FSDPCK_ERR_BUSY at once
 *     lock .X.writer-U, fsync the directory, mkdir X.tmp-U
 *     write and fsync each file, fsync X.tmp-U
 *     rename X.tmp-U to X, or exchange the two; fsync the directory: this is the commit
 *     remove the old one (now X.tmp-U), fsync the directory, remove the writer file, remove the lock
 *
 * The writer file lies beside the staging directory, not in it. So it exists before and after that directory, and is
 * never part of a result. If the file system cannot exchange names, X is renamed to X.old-U first. A crash at that
 * point leaves X missing and X.old-U complete; fsdpck_leftovers() undoes this. An X.old-U is always complete: it is
 * renamed to X.tmp-U before its first file is removed.
 *
 * In place: if OUT cannot be renamed (a mount point, no right to write beside it) or should not be (it is the working
 * directory of a process, most likely a shell), commit_in_place.c writes inside it. It takes the lock inside OUT, and
 * also beside OUT if possible.
 *
 * A failure before the commit restores the old state. A failure after the commit (an old file that cannot be removed)
 * is not an error: fsdpck_leftovers() finds what is left over. If fsync of the directory fails after the rename, the
 * rename is undone. Undoing is impossible in place, and for a file if names cannot be exchanged; the error then says
 * that the new output is in place. */
#include "commit/commit_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/ioutil.h"

const char *fsdpck_commit_dir(const struct fsdpck_commit *c)
{
    return c->dir;
}
const char *fsdpck_commit_target(const struct fsdpck_commit *c)
{
    return c->output.path;
}
bool fsdpck_commit_in_place(const struct fsdpck_commit *c)
{
    return c->in_place;
}
const char *fsdpck_commit_record(const struct fsdpck_commit *c)
{
    return c->record;
}

void fsdpck_commit_free(struct fsdpck_commit *c)
{
    fsdpck_lock_release(c->io, &c->writer);
    fsdpck_lock_release(c->io, &c->inner_lock);
    fsdpck_lock_release(c->io, &c->lock);
    fsdpck_output_free(&c->output);
    fsdpck_strings_free(&c->made_parents);
    fsdpck_strings_free(&c->old);
    free(c->out);
    free(c->record_name);
    free(c->dir);
    free(c->record);
    free(c);
}

bool fsdpck_commit_end_writer(struct fsdpck_commit *c, bool clean)
{
    bool gone = clean && fsdpck_lock_remove(c->io, &c->writer);
    fsdpck_lock_remove(c->io, &c->inner_lock);
    fsdpck_lock_remove(c->io, &c->lock);
    return gone;
}

bool fsdpck_commit_remove_staging(struct fsdpck_commit *c)
{
    struct fsdpck_stat st;
    if (c->io->stat(c->io->ctx, c->dir, false, &st) == -ENOENT)
        return true; /* a file: rename() replaced the old one */
    return fsdpck_remove_tree(c->io, c->dir, NULL) == 0 && fsdpck_fsync_path(c->io, c->output.parent, NULL) == 0;
}

static void remove_parents(struct fsdpck_commit *c)
{
    char **made = c->made_parents.data;
    for (size_t i = c->made_parents.count; i-- > 0;)
        if (c->io->rmdir(c->io->ctx, made[i]) != 0)
            return; /* another process put something there */
}

void fsdpck_commit_abandon(struct fsdpck_commit *c)
{
    if (!c)
        return;
    bool clean = true;
    if (c->writer.fd >= 0 && c->in_place)
        clean = fsdpck_in_place_undo(c->io, c->output.path, c->uuid, NULL) == 0;
    else if (c->staged)
        clean = fsdpck_commit_remove_staging(c) && !c->old_remains;
    fsdpck_commit_end_writer(c, clean);
    remove_parents(c);
    fsdpck_commit_free(c);
}

/* ---- begin */

int fsdpck_commit_exists(const struct fsdpck_commit *c, const char *what, bool can_force, struct fsdpck_error *err)
{
    int rc = fsdpck_error_set(err, FSDPCK_ERR_EXISTS, c->out, "%s", what);
    if (can_force)
        fsdpck_error_hint(err, "--force replaces it, once the new one is complete");
    return rc;
}

static int check_old_file(const struct fsdpck_commit *c, const struct fsdpck_stat *st, struct fsdpck_error *err)
{
    if (st->type == FSDPCK_FILE_DIRECTORY)
        return fsdpck_commit_exists(c, "there is a directory of this name, a file is to be written", false, err);
    if (st->type != FSDPCK_FILE_REGULAR)
        return fsdpck_commit_exists(c, "this is a device, pipe or socket, a regular file is to be written", false, err);
    if (fsdpck_output_is_mount(c->io, &c->output))
        return fsdpck_commit_exists(c, "the file is a mount point, which cannot be replaced", false, err);
    return c->force ? 0 : fsdpck_commit_exists(c, "the file exists", true, err);
}

static int refuse_foreign(const struct fsdpck_commit *c, const struct commit_ownership *own, const char *foreign,
                          struct fsdpck_error *err)
{
    int rc;
    if (own->checkpoint || own->model)
        rc = fsdpck_error_set(err, FSDPCK_ERR_EXISTS, c->out,
                              "the directory holds '%s', which may be no part of the checkpoint or model there: "
                              "--force replaces only those",
                              foreign);
    else
        rc = fsdpck_error_set(
            err, FSDPCK_ERR_EXISTS, c->out,
            "the directory exists and holds neither a checkpoint nor a model, but '%s': --force replaces only those",
            foreign);
    fsdpck_error_hint(err, "move it away, or write to another name");
    return rc;
}

/* --force replaces an older result only. Replacing a directory removes all its contents, so a mistyped OUT must not
 * delete somebody's home. In place, foreign files are kept unless the new result needs their names. */
static int check_forced(const struct fsdpck_commit *c, const struct commit_ownership *own, struct fsdpck_error *err)
{
    const char *foreign = c->in_place && (own->checkpoint || own->model) ? own->contested : own->foreign;
    return !foreign ? 0 : refuse_foreign(c, own, foreign, err);
}

static int stop_at_first(void *ctx, const char *name)
{
    (void)ctx;
    (void)name;
    return 1;
}

static int check_unforced(const struct fsdpck_commit *c, const struct commit_ownership *own, struct fsdpck_error *err)
{
    if (c->in_place)
        return fsdpck_in_place_check_empty(c->io, c->output.path, err);
    int rc = c->io->list(c->io->ctx, c->output.path, stop_at_first, NULL);
    if (rc < 0)
        return fsdpck_error_sys(err, -rc, c->out, "cannot list");
    return !rc ? 0
               : fsdpck_commit_exists(c, "the directory exists and is not empty", check_forced(c, own, NULL) == 0, err);
}

static int check_old_directory(struct fsdpck_commit *c, const struct fsdpck_stat *st, struct fsdpck_error *err)
{
    struct commit_ownership own;
    if (st->type != FSDPCK_FILE_DIRECTORY)
        return fsdpck_commit_exists(c, "there is a file of this name, a directory is to be written", false, err);
    int rc = fsdpck_ownership_scan(c->io, c->output.path, c->kind, c->new_files, c->nnew_files, &own, err);
    if (rc)
        return rc;
    rc = c->force ? check_forced(c, &own, err) : check_unforced(c, &own, err);
    if (!rc && c->in_place)
        rc = fsdpck_in_place_old(&own, c->record_name, &c->old, err);
    fsdpck_ownership_free(&own);
    return rc;
}

static int check_old(struct fsdpck_commit *c, struct fsdpck_error *err)
{
    struct fsdpck_stat st;
    int rc = c->io->stat(c->io->ctx, c->output.path, false, &st);
    if (rc == -ENOENT)
        return 0;
    if (rc < 0)
        return fsdpck_error_sys(err, -rc, c->out, "cannot look at the output");
    return c->kind == FSDPCK_COMMIT_FILE ? check_old_file(c, &st, err) : check_old_directory(c, &st, err);
}

static bool may_not_write(int sys_errno)
{
    return sys_errno == EACCES || sys_errno == EROFS || sys_errno == EPERM;
}

/* Locks the output, and decides whether to write in place. */
static int lock_output(struct fsdpck_commit *c, struct fsdpck_error *err)
{
    struct fsdpck_error beside = { 0 };
    bool is_dir = c->kind != FSDPCK_COMMIT_FILE && fsdpck_is_directory(c->io, c->output.path);
    c->in_place = is_dir && (fsdpck_output_is_mount(c->io, &c->output) || fsdpck_output_holds_cwd(c->io, &c->output));
    if (c->output.base[0] != '\0') {
        char *path = fsdpck_commit_name_path(c->output.parent, c->output.base, NAME_LOCK, NULL, &beside);
        int rc = fsdpck_lock_take(c->io, path, c->out, c->uuid, &c->lock, &beside);
        if (rc && is_dir && may_not_write(beside.sys_errno))
            c->in_place = true;
        else if (rc) {
            *err = beside;
            return rc;
        }
    }
    if (!c->in_place)
        return 0;
    return fsdpck_lock_take(c->io, fsdpck_commit_name_path(c->output.path, "", NAME_LOCK, NULL, err), c->out, c->uuid,
                            &c->inner_lock, err);
}

/* Makes the writer file. It must be durable before the first file that it announces. */
static int begin_writer(struct fsdpck_commit *c, const char *dir, const char *base, struct fsdpck_error *err)
{
    int rc = fsdpck_lock_take(c->io, fsdpck_commit_name_path(dir, base, NAME_WRITER, c->uuid, err), c->out, c->uuid,
                              &c->writer, err);
    return rc ? rc : fsdpck_fsync_path(c->io, dir, err);
}

static int begin_staged(struct fsdpck_commit *c, struct fsdpck_error *err)
{
    c->dir = fsdpck_commit_name_path(c->output.parent, c->output.base, NAME_STAGING, c->uuid, err);
    if (!c->dir)
        return FSDPCK_ERR_NOMEM;
    c->record = c->record_name ? fsdpck_path_join(c->dir, c->record_name, err) : strdup(c->dir);
    if (!c->record)
        return fsdpck_error_nomem(err, strlen(c->dir) + 1);
    int rc = begin_writer(c, c->output.parent, c->output.base, err);
    if (rc)
        return rc;
    if (c->kind != FSDPCK_COMMIT_FILE) {
        rc = c->io->mkdir(c->io->ctx, c->dir, 0777);
        if (rc < 0)
            return fsdpck_error_sys(err, -rc, c->dir, "cannot create the directory");
    }
    c->staged = true;
    return 0;
}

static int begin_in_place(struct fsdpck_commit *c, struct fsdpck_error *err)
{
    c->dir = strdup(c->output.path);
    if (!c->dir)
        return fsdpck_error_nomem(err, strlen(c->output.path) + 1);
    c->record = fsdpck_commit_name_path(c->dir, c->record_name, NAME_STAGING, c->uuid, err);
    if (!c->record)
        return FSDPCK_ERR_NOMEM;
    return begin_writer(c, c->dir, "", err);
}

static int begin(struct fsdpck_commit *c, struct fsdpck_error *err)
{
    size_t n = strlen(c->out);
    int rc = fsdpck_output_resolve(c->io, c->out, &c->output, err);
    if (rc)
        return rc;
    if (c->kind == FSDPCK_COMMIT_FILE && (c->out[n - 1] == '/' || c->output.base[0] == '\0'))
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, c->out, "the path names a directory, a file is to be written");
    rc = fsdpck_output_make_parents(c->io, &c->output, &c->made_parents, err);
    if (!rc)
        rc = lock_output(c, err);
    if (!rc)
        fsdpck_commit_clear_dead(c->io, &c->output, c->in_place);
    if (!rc)
        rc = check_old(c, err);
    if (!rc)
        rc = c->in_place ? begin_in_place(c, err) : begin_staged(c, err);
    return rc;
}

int fsdpck_commit_begin(const struct fsdpck_io *io, const char *out, enum fsdpck_commit_kind kind, const char *record,
                        const uint8_t uuid[16], bool force, struct fsdpck_commit **c, struct fsdpck_error *err)
{
    return fsdpck_commit_begin_with(io, out, kind, record, uuid, force, NULL, 0, c, err);
}

int fsdpck_commit_begin_with(const struct fsdpck_io *io, const char *out, enum fsdpck_commit_kind kind,
                             const char *record, const uint8_t uuid[16], bool force, const char *const *new_files,
                             size_t nnew_files, struct fsdpck_commit **out_commit, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    struct fsdpck_commit *c = calloc(1, sizeof *c);
    *out_commit = NULL;
    if (!c)
        return fsdpck_error_nomem(err, sizeof *c);
    c->io = io;
    c->kind = kind;
    c->force = force;
    c->new_files = new_files;
    c->nnew_files = nnew_files;
    c->lock = c->inner_lock = c->writer = (struct commit_lock)COMMIT_LOCK_NONE;
    c->made_parents = c->old = (struct fsdpck_vec)FSDPCK_VEC(char *);
    fsdpck_uuid_format(uuid, c->uuid);
    c->out = strdup(out);
    c->record_name = record && kind != FSDPCK_COMMIT_FILE ? strdup(record) : NULL;
    int rc = !c->out || (!c->record_name && kind != FSDPCK_COMMIT_FILE) ? fsdpck_error_nomem(&own, strlen(out) + 1)
                                                                        : begin(c, &own);
    if (rc) {
        fsdpck_commit_abandon(c);
        if (err && err->code == 0)
            *err = own;
        return rc;
    }
    *out_commit = c;
    return 0;
}

int fsdpck_commit_created(struct fsdpck_commit *c, const char *name, struct fsdpck_error *err)
{
    if (!c->in_place || fsdpck_commit_name_has_id(name, c->uuid))
        return 0;
    return fsdpck_error_set(err, FSDPCK_ERR_USAGE, c->out,
                            "'%s' is written in place and must carry the save id %s in its name", name, c->uuid);
}

int fsdpck_commit_staging_path(const struct fsdpck_io *io, const char *out, const uint8_t uuid[16], char **dir,
                               struct fsdpck_error *err)
{
    struct commit_output output;
    char text[37];
    fsdpck_uuid_format(uuid, text);
    int rc = fsdpck_output_resolve(io, out, &output, err);
    if (rc)
        return rc;
    *dir = fsdpck_commit_name_path(output.parent, output.base, NAME_STAGING, text, err);
    fsdpck_output_free(&output);
    return *dir != NULL ? 0 : FSDPCK_ERR_NOMEM;
}
