/* SPDX-License-Identifier: Apache-2.0 */
/* Left-overs of saves that were written inside their output: completes a save that was committed, undoes any other. */
#include "commit/leftovers_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"

static void report_in_place(const struct leftover_scan *s, const struct commit_name *n,
                            const struct commit_writer_status *status, bool committed)
{
    const char *why = !committed  ? status->why
                      : s->remove ? "the save is complete, its clean-up was not: done"
                                  : "the save is complete, its clean-up is not";
    for (size_t i = 0; i < s->count; i++) {
        struct commit_name m;
        fsdpck_commit_name_parse(s->names[i], &m);
        if (!fsdpck_commit_name_has_id(s->names[i], n->uuid) || (committed && m.kind == NAME_NONE))
            continue;
        char *path = fsdpck_path_join(s->dir, s->names[i], NULL);
        if (path)
            fsdpck_leftover_report(s, path, status->alive, why, s->remove && !status->alive);
        free(path);
    }
}

static int remove_journal(const struct leftover_scan *s, const char *uuid)
{
    char *journal = fsdpck_commit_name_path(s->dir, "", NAME_JOURNAL, uuid, s->err);
    int rc = !journal ? FSDPCK_ERR_NOMEM : fsdpck_remove_tree(s->io, journal, s->err);
    free(journal);
    return rc;
}

/* Completes or undoes a save as commit_finish.c does; removes the journal last (see there). */
static int clear_locked(const struct leftover_scan *s, const char *uuid, const char *writer, bool committed)
{
    bool removed = false;
    int rc = committed ? fsdpck_in_place_complete(s->io, s->dir, uuid, s->err)
                       : fsdpck_in_place_undo(s->io, s->dir, uuid, s->err);
    if (!rc)
        rc = fsdpck_leftover_remove_lock(s, writer, uuid, &removed);
    if (rc || !committed || !removed)
        return rc;
    rc = fsdpck_fsync_path(s->io, s->dir, s->err);
    return !rc ? remove_journal(s, uuid) : rc;
}

/* Holds the lock of the directory, because its present files decide whether to complete or undo the save. */
static int clear_in_place(const struct leftover_scan *s, const char *uuid, const char *writer, bool *committed,
                          struct commit_writer_status *status)
{
    struct commit_lock lock = COMMIT_LOCK_NONE;
    struct fsdpck_error e = { 0 };
    int rc = s->locked ? 0
                       : fsdpck_lock_take(s->io, fsdpck_commit_name_path(s->dir, "", NAME_LOCK, NULL, &e), s->dir, uuid,
                                          &lock, &e);
    if (rc == FSDPCK_ERR_BUSY) {
        status->alive = true;
        snprintf(status->why, sizeof status->why, "its writer is gone, another one is at work");
        return 0;
    }
    if (rc)
        return fsdpck_error_set(s->err, e.code, e.file, "%s", e.message);
    rc = fsdpck_in_place_committed(s->io, s->dir, uuid, committed, s->err);
    if (!rc)
        rc = clear_locked(s, uuid, writer, *committed);
    fsdpck_lock_remove(s->io, &lock);
    return rc;
}

int fsdpck_leftover_in_place(const struct leftover_scan *s, const struct commit_name *n, const char *writer)
{
    struct commit_writer_status status;
    bool committed = false;
    int rc = 0;
    fsdpck_writer_probe(s->io, writer, &status);
    if (!status.alive)
        rc = s->remove ? clear_in_place(s, n->uuid, writer, &committed, &status)
                       : fsdpck_in_place_committed(s->io, s->dir, n->uuid, &committed, s->err);
    if (!rc)
        report_in_place(s, n, &status, committed);
    return rc;
}

int fsdpck_leftover_lone_journal(const struct leftover_scan *s, const struct commit_name *n, const char *path)
{
    char *writer = fsdpck_commit_name_path(s->dir, "", NAME_WRITER, n->uuid, s->err);
    int rc = !writer ? FSDPCK_ERR_NOMEM : 0;
    if (!rc && fsdpck_leftover_is_missing(s, writer)) {
        rc = s->remove ? remove_journal(s, n->uuid) : 0;
        if (!rc)
            fsdpck_leftover_report(s, path, false, "writer is done", s->remove);
    }
    free(writer);
    return rc;
}
