/* SPDX-License-Identifier: Apache-2.0 */
/* Left-overs of saves that were staged beside their output: staging directories, old outputs, outputs that were set
 * aside, and the files of dead writers. */
#include "commit/leftovers_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"

/* ---- X.tmp-U and X.old-U */

static int remove_staging(const struct leftover_scan *s, const char *path)
{
    int rc = fsdpck_remove_tree(s->io, path, s->err);
    return rc ? rc : fsdpck_fsync_path(s->io, s->dir, s->err);
}

/* A directory named X.old-U is always complete, so it is renamed before its first file is removed. */
static int remove_old(const struct leftover_scan *s, const struct commit_name *n, const char *path)
{
    char *junk = fsdpck_commit_name_path(s->dir, n->base, NAME_STAGING, n->uuid, s->err);
    int rc = !junk ? FSDPCK_ERR_NOMEM : fsdpck_remove_tree(s->io, junk, s->err);
    if (!rc) {
        rc = s->io->rename(s->io->ctx, path, junk);
        rc = rc < 0 ? fsdpck_error_sys(s->err, -rc, path, "cannot rename") : fsdpck_fsync_path(s->io, s->dir, s->err);
    }
    if (!rc)
        rc = remove_staging(s, junk);
    free(junk);
    return rc;
}

/* If X is missing and several X.old-U exist, the youngest was the last to have the name X. */
static bool is_youngest_old(const struct leftover_scan *s, const struct commit_name *n, const char *path)
{
    struct fsdpck_stat own, other;
    struct commit_name m;
    bool youngest = s->io->stat(s->io->ctx, path, false, &own) == 0;
    for (size_t i = 0; youngest && i < s->count; i++) {
        fsdpck_commit_name_parse(s->names[i], &m);
        if (m.kind != NAME_OLD || strcmp(m.base, n->base) != 0 || strcmp(m.uuid, n->uuid) == 0)
            continue;
        char *rival = fsdpck_path_join(s->dir, s->names[i], NULL);
        if (!rival || (s->io->stat(s->io->ctx, rival, false, &other) == 0 && other.mtime_ns > own.mtime_ns))
            youngest = false;
        free(rival);
    }
    return youngest;
}

/* Moves the old one back, under the lock of the name: a writer may just have begun a new one. */
static int move_back(const struct leftover_scan *s, const struct commit_name *n, const char *path, const char *home,
                     bool *moved)
{
    struct commit_lock lock = COMMIT_LOCK_NONE;
    struct fsdpck_error e = { 0 };
    *moved = false;
    if (s->locked)
        return 0; /* the caller is about to write a new one; until then the old one is safe here */
    int rc = fsdpck_lock_take(s->io, fsdpck_commit_name_path(s->dir, n->base, NAME_LOCK, NULL, &e), home, n->uuid,
                              &lock, &e);
    if (rc == FSDPCK_ERR_BUSY)
        return 0;
    if (rc)
        return fsdpck_error_set(s->err, e.code, e.file, "%s", e.message);
    if (fsdpck_leftover_is_missing(s, home)) {
        rc = s->io->rename(s->io->ctx, path, home);
        *moved = !rc;
        rc = rc < 0 ? fsdpck_error_sys(s->err, -rc, home, "cannot move the old one back to this name")
                    : fsdpck_fsync_path(s->io, s->dir, s->err);
    }
    fsdpck_lock_remove(s->io, &lock);
    return rc;
}

static int clear_old(const struct leftover_scan *s, const struct commit_name *n, const char *path, const char *why)
{
    char text[640];
    bool moved = false;
    char *home = fsdpck_path_join(s->dir, n->base, s->err);
    int rc = !home ? FSDPCK_ERR_NOMEM : 0;
    if (!rc && fsdpck_leftover_is_missing(s, home) && !is_youngest_old(s, n, path)) {
        fsdpck_leftover_report(s, path, false, why, false); /* keep it until the youngest is back in its place */
    } else if (!rc && fsdpck_leftover_is_missing(s, home)) {
        if (s->remove)
            rc = move_back(s, n, path, home, &moved);
        snprintf(text, sizeof text,
                 moved ? "%s; it is complete and '%.255s' was missing: moved back to that name"
                       : "%s; it is complete and '%.255s' is missing: clean moves it back",
                 why, n->base);
        if (!rc)
            fsdpck_leftover_report(s, path, false, text, moved);
    } else if (!rc) {
        rc = s->remove ? remove_old(s, n, path) : 0;
        if (!rc)
            fsdpck_leftover_report(s, path, false, why, s->remove);
    }
    free(home);
    return rc;
}

/* Returns the writer file of an entry: the one beside it, or NULL if only the directory's own one (in place) exists,
 * because fsdpck_leftover_in_place() handles that save. */
static char *writer_of(const struct leftover_scan *s, const struct commit_name *n)
{
    char *beside = fsdpck_commit_name_path(s->dir, n->base, NAME_WRITER, n->uuid, s->err);
    char *inner = fsdpck_commit_name_path(s->dir, "", NAME_WRITER, n->uuid, s->err);
    if (beside && inner && fsdpck_leftover_is_missing(s, beside) && !fsdpck_leftover_is_missing(s, inner)) {
        free(beside);
        beside = NULL;
    }
    free(inner);
    return beside;
}

int fsdpck_leftover_staging_or_old(const struct leftover_scan *s, const struct commit_name *n, const char *path)
{
    struct commit_writer_status status;
    char *writer = writer_of(s, n);
    if (!writer)
        return s->err && s->err->code != 0 ? s->err->code : 0;
    fsdpck_writer_probe(s->io, writer, &status);
    free(writer);
    if (status.alive || (!s->remove && n->kind == NAME_STAGING)) {
        fsdpck_leftover_report(s, path, status.alive, status.why, false);
        return 0;
    }
    if (n->kind == NAME_OLD)
        return clear_old(s, n, path, status.why);
    int rc = remove_staging(s, path);
    if (!rc)
        fsdpck_leftover_report(s, path, false, status.why, true);
    return rc;
}

/* ---- X.damaged-U and step-N.removed: one rename made them, so no writer is active */

int fsdpck_leftover_set_aside(const struct leftover_scan *s, const char *path)
{
    struct fsdpck_leftover l = {
        .path = path, .why = "damaged, and set aside", .removed = s->remove_damaged, .set_aside = true
    };
    int rc = s->remove_damaged ? remove_staging(s, path) : 0;
    if (!rc && s->report)
        s->report(s->report_ctx, &l);
    return rc;
}

/* Any program may use this name, so the folder must hold only files of a checkpoint. */
int fsdpck_leftover_half_removed(const struct leftover_scan *s, const char *path)
{
    bool is_ours = false;
    int rc = fsdpck_is_directory(s->io, path) ? fsdpck_is_checkpoint_remnant(s->io, path, &is_ours, s->err) : 0;
    if (rc || !is_ours)
        return rc;
    rc = s->remove ? remove_staging(s, path) : 0;
    if (!rc)
        fsdpck_leftover_report(s, path, false, "its removal was interrupted", s->remove);
    return rc;
}

/* ---- writer files and locks: left-overs too, but not reported if the entry that they stand for was */

static bool was_listed(const struct leftover_scan *s, const struct commit_name *n)
{
    struct commit_name m;
    for (size_t i = 0; i < s->count; i++) {
        fsdpck_commit_name_parse(s->names[i], &m);
        if ((m.kind == NAME_STAGING || m.kind == NAME_OLD) && strcmp(m.base, n->base) == 0 &&
            strcmp(m.uuid, n->uuid) == 0)
            return true;
    }
    return false;
}

static bool still_needed(const struct leftover_scan *s, const struct commit_name *n)
{
    char *staging = fsdpck_commit_name_path(s->dir, n->base, NAME_STAGING, n->uuid, NULL);
    char *old = fsdpck_commit_name_path(s->dir, n->base, NAME_OLD, n->uuid, NULL);
    bool needed = !staging || !old || !fsdpck_leftover_is_missing(s, staging) || !fsdpck_leftover_is_missing(s, old);
    free(staging);
    free(old);
    return needed;
}

int fsdpck_leftover_owner_file(const struct leftover_scan *s, const struct commit_name *n, const char *path)
{
    struct commit_writer_status status;
    bool removed = false;
    int rc = 0;
    if (n->kind == NAME_WRITER && still_needed(s, n))
        return 0;
    fsdpck_writer_probe(s->io, path, &status);
    if (status.alive && n->kind == NAME_LOCK)
        return 0; /* the writer's other files are reported instead */
    if (!status.alive && s->remove)
        rc = fsdpck_leftover_remove_lock(s, path, n->uuid, &removed);
    if (!rc && !(n->kind == NAME_WRITER && was_listed(s, n)))
        fsdpck_leftover_report(s, path, status.alive, status.why, removed);
    return rc;
}
