/* SPDX-License-Identifier: Apache-2.0 */
/* The second half of the commit protocol (commit.c): gives the new output its name and removes the old one. It does not
 * know the contents. */
#include "commit/commit_impl.h"

#include <errno.h>
#include <stdlib.h>

#include "base/ioutil.h"

static int rename_failed(const struct fsdpck_commit *c, int rc, struct fsdpck_error *err)
{
    if (rc == -EXDEV || rc == -EBUSY) {
        rc = fsdpck_error_sys(err, -rc, c->out, "the new one is complete, but cannot be renamed to this name");
        fsdpck_error_hint(err,
                          "is it a mount point, in use, or in a lower layer of a container? Write to another name");
        return rc;
    }
    return fsdpck_error_sys(err, -rc, c->out, "cannot rename the new one to this name");
}

static void hint_new_stands(struct fsdpck_error *err)
{
    fsdpck_error_hint(
        err,
        "the new one stands, but may not outlive a loss of power: see that the disk is well, then run `fsdpck clean`");
}

/* Renames to a free name, or over an empty directory; -EEXIST if the name is neither. */
static int rename_to_free(const struct fsdpck_commit *c, bool *was_empty)
{
    const struct fsdpck_io *io = c->io;
    struct fsdpck_stat st;
    *was_empty = false;
    int rc = io->rename_new(io->ctx, c->dir, c->output.path);
    if (rc == -EINVAL) {
        rc = io->stat(io->ctx, c->output.path, false, &st);
        rc = rc == -ENOENT ? io->rename(io->ctx, c->dir, c->output.path) : rc < 0 ? rc : -EEXIST;
    }
    if (rc == -EEXIST && c->kind != FSDPCK_COMMIT_FILE) {
        rc = io->rename(io->ctx, c->dir, c->output.path); /* rename(2) itself refuses a directory that is not empty */
        *was_empty = !rc;
    }
    return rc == -ENOTEMPTY || rc == -ENOTDIR ? -EEXIST : rc;
}

/* Makes the commit durable, or undoes it. */
static int install(struct fsdpck_commit *c, bool was_empty, struct fsdpck_error *err)
{
    int rc = fsdpck_fsync_path(c->io, c->output.parent, err);
    if (!rc)
        return 0;
    c->io->rename(c->io->ctx, c->output.path, c->dir);
    if (was_empty)
        c->io->mkdir(c->io->ctx, c->output.path, 0777);
    return rc;
}

/* Exchanges X.tmp-U and X via X.old-U, for file systems without an exchange. A crash after the first step leaves X
 * missing; fsdpck_leftovers() repairs this. Each step is possible only after the one before it, so the steps cannot
 * reach the disk in another order. For this, the name X.tmp-U must be durable first: without that name, the last step
 * could take place without the second. */
static int exchange_in_steps(struct fsdpck_commit *c)
{
    const struct fsdpck_io *io = c->io;
    struct fsdpck_error e = { 0 };
    if (fsdpck_fsync_path(io, c->output.parent, &e) != 0)
        return e.sys_errno != 0 ? -e.sys_errno : -EIO;
    char *old = fsdpck_commit_name_path(c->output.parent, c->output.base, NAME_OLD, c->uuid, NULL);
    int rc = !old ? -ENOMEM : io->rename(io->ctx, c->output.path, old);
    if (!rc) {
        rc = io->rename(io->ctx, c->dir, c->output.path);
        c->old_remains = io->rename(io->ctx, old, !rc ? c->dir : c->output.path) != 0;
    }
    free(old);
    return rc;
}

/* Replaces one file by another: rename(2) does this in one step, but the step cannot be undone. */
static int exchange(struct fsdpck_commit *c)
{
    int rc = c->io->exchange(c->io->ctx, c->dir, c->output.path);
    if (rc != -EINVAL)
        return rc;
    return c->kind == FSDPCK_COMMIT_FILE ? c->io->rename(c->io->ctx, c->dir, c->output.path) : exchange_in_steps(c);
}

static int replace(struct fsdpck_commit *c, struct fsdpck_error *err)
{
    int rc = exchange(c);
    if (rc < 0)
        return rename_failed(c, rc, err);
    rc = fsdpck_fsync_path(c->io, c->output.parent, err);
    if (rc && (c->old_remains || exchange(c) != 0))
        hint_new_stands(err);
    return rc;
}

static int finish_staged(struct fsdpck_commit *c, struct fsdpck_error *err)
{
    bool was_empty;
    int rc = c->kind != FSDPCK_COMMIT_FILE ? fsdpck_fsync_path(c->io, c->dir, err) : 0;
    if (rc)
        return rc;
    rc = rename_to_free(c, &was_empty);
    if (!rc) {
        rc = install(c, was_empty, err);
        if (!rc)
            fsdpck_commit_end_writer(c, true);
        return rc;
    }
    if (rc != -EEXIST)
        return rename_failed(c, rc, err);
    if (!c->force)
        return fsdpck_commit_exists(c, "something of this name appeared while the new one was written", true, err);
    rc = replace(c, err);
    if (!rc)
        fsdpck_commit_end_writer(c, !c->old_remains && fsdpck_commit_remove_staging(c));
    return rc;
}

/* Removes the journal after the writer file: a writer file without a journal means a save that was never committed. */
static void end_writer_in_place(struct fsdpck_commit *c)
{
    const struct fsdpck_io *io = c->io;
    char *journal = fsdpck_commit_name_path(c->dir, "", NAME_JOURNAL, c->uuid, NULL);
    bool clean = journal && fsdpck_in_place_complete(io, c->dir, c->uuid, NULL) == 0;
    if (fsdpck_commit_end_writer(c, clean) && fsdpck_fsync_path(io, c->dir, NULL) == 0)
        io->unlink(io->ctx, journal);
    free(journal);
}

static int finish_in_place(struct fsdpck_commit *c, bool *committed, struct fsdpck_error *err)
{
    int rc = fsdpck_in_place_commit(c->io, c->dir, c->record_name, c->uuid, &c->old, committed, err);
    if (!rc)
        end_writer_in_place(c);
    else if (*committed) {
        hint_new_stands(err);
        fsdpck_commit_end_writer(c, false);
    }
    return rc;
}

int fsdpck_commit_finish(struct fsdpck_commit *c, struct fsdpck_error *err)
{
    bool committed = false;
    int rc = c->in_place ? finish_in_place(c, &committed, err) : finish_staged(c, err);
    if (!rc || committed)
        fsdpck_commit_free(c);
    else
        fsdpck_commit_abandon(c);
    return rc;
}
