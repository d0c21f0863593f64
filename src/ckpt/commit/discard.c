/* SPDX-License-Identifier: Apache-2.0 */
/* Removes a checkpoint (fsdpck_remove) or renames it (fsdpck_set_aside) in the order of the commit protocol (commit.c),
 * so that fsdpck_leftovers() recognises what a crash leaves. */
#include <fsdpck/check.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "commit/commit_impl.h"
#include "base/hash.h"
#include "base/ioutil.h"

struct discard {
    const struct fsdpck_io *io;
    const char *path; /* as the caller wrote it */
    struct commit_output output;
    char uuid[37];
    struct commit_lock lock, writer;
    struct fsdpck_error *err;
};

/* Refuses a link: its owner set it up, and its target must not be removed through it. */
static int check_path(const struct discard *d)
{
    struct fsdpck_stat st;
    int rc = d->io->stat(d->io->ctx, d->path, false, &st);
    if (rc < 0)
        return fsdpck_error_sys(d->err, -rc, d->path, "cannot look at it");
    if (st.type == FSDPCK_FILE_SYMLINK)
        return fsdpck_error_set(d->err, FSDPCK_ERR_EXISTS, d->path, "is a symbolic link: it is left as it is");
    return st.type == FSDPCK_FILE_DIRECTORY
               ? 0
               : fsdpck_error_set(d->err, FSDPCK_ERR_EXISTS, d->path, "is no directory: it is left as it is");
}

static int check_own(const struct discard *d)
{
    struct commit_ownership own;
    int rc = fsdpck_ownership_scan(d->io, d->output.path, FSDPCK_COMMIT_CHECKPOINT, NULL, 0, &own, d->err);
    if (rc)
        return rc;
    if (own.foreign) {
        rc = fsdpck_error_set(d->err, FSDPCK_ERR_EXISTS, d->path,
                              "holds '%s', which belongs to no checkpoint or model: it is left as it is", own.foreign);
        fsdpck_error_hint(d->err, "move the file away");
    }
    fsdpck_ownership_free(&own);
    return rc;
}

/* Locks the name against writers. */
static int begin(struct discard *d)
{
    uint8_t uuid[16];
    int rc = d->io->random(d->io->ctx, uuid, sizeof uuid);
    if (rc < 0)
        return fsdpck_error_sys(d->err, -rc, NULL, "cannot get random bytes");
    fsdpck_uuid_from_random(uuid);
    fsdpck_uuid_format(uuid, d->uuid);
    rc = fsdpck_output_resolve(d->io, d->path, &d->output, d->err);
    if (!rc)
        rc = check_path(d);
    if (rc)
        return rc;
    char *lock = fsdpck_commit_name_path(d->output.parent, d->output.base, NAME_LOCK, NULL, d->err);
    return fsdpck_lock_take(d->io, lock, d->path, d->uuid, &d->lock, d->err);
}

static void end(struct discard *d)
{
    fsdpck_lock_release(d->io, &d->writer);
    fsdpck_lock_remove(d->io, &d->lock);
    fsdpck_output_free(&d->output);
}

static int rename_away(const struct discard *d, const char *to)
{
    int rc = d->io->rename(d->io->ctx, d->output.path, to);
    return rc < 0 ? fsdpck_error_sys(d->err, -rc, d->path, "cannot rename it out of the way")
                  : fsdpck_fsync_path(d->io, d->output.parent, d->err);
}

static int remove_it(struct discard *d)
{
    char *junk = fsdpck_commit_name_path(d->output.parent, d->output.base, NAME_STAGING, d->uuid, d->err);
    int rc = !junk ? FSDPCK_ERR_NOMEM : check_own(d);
    if (!rc)
        rc = fsdpck_lock_take(d->io,
                              fsdpck_commit_name_path(d->output.parent, d->output.base, NAME_WRITER, d->uuid, d->err),
                              d->path, d->uuid, &d->writer, d->err);
    if (!rc)
        rc = fsdpck_fsync_path(d->io, d->output.parent, d->err);
    if (!rc)
        rc = rename_away(d, junk);
    if (rc && junk && !fsdpck_is_directory(d->io, junk))
        fsdpck_lock_remove(d->io, &d->writer); /* nothing was renamed, so no writer file is needed */
    if (!rc)
        rc = fsdpck_remove_tree(d->io, junk, d->err);
    if (!rc)
        rc = fsdpck_fsync_path(d->io, d->output.parent, d->err);
    if (!rc)
        fsdpck_lock_remove(d->io, &d->writer);
    free(junk);
    return rc;
}

int fsdpck_remove(const char *path, const struct fsdpck_options *opt, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    struct discard d = { .io = opt && opt->io ? opt->io : &fsdpck_io_posix,
                         .path = path,
                         .lock = COMMIT_LOCK_NONE,
                         .writer = COMMIT_LOCK_NONE,
                         .err = err ? err : &own };
    int rc = begin(&d);
    if (!rc)
        rc = remove_it(&d);
    end(&d);
    return rc;
}

int fsdpck_set_aside(const char *path, const struct fsdpck_options *opt, char **aside, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    struct discard d = { .io = opt && opt->io ? opt->io : &fsdpck_io_posix,
                         .path = path,
                         .lock = COMMIT_LOCK_NONE,
                         .writer = COMMIT_LOCK_NONE,
                         .err = err ? err : &own };
    char *to = NULL;
    int rc = begin(&d);
    if (!rc)
        rc = (to = fsdpck_commit_name_path(d.output.parent, d.output.base, NAME_DAMAGED, d.uuid, d.err)) != NULL
                 ? rename_away(&d, to)
                 : FSDPCK_ERR_NOMEM;
    end(&d);
    if (!rc && aside) {
        *aside = to;
        to = NULL;
    }
    free(to);
    return rc;
}
