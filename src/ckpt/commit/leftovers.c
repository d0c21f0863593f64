/* SPDX-License-Identifier: Apache-2.0 */
/* Finds what writers left over beside or inside a path, and removes it if the writer is dead. It is the counterpart of
 * the commit protocol (commit.c, commit_in_place.c). A left-over is kept unless its writer is proved dead. It does not
 * know a checkpoint's contents. */
#include <fsdpck/check.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commit/commit_impl.h"
#include "base/ioutil.h"

/* A scan of one directory. */
struct scan {
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

static void report_leftover(const struct scan *s, const char *path, bool alive, const char *why, bool removed)
{
    struct fsdpck_leftover l = { .path = path, .alive = alive, .why = why, .removed = removed };
    if (s->report)
        s->report(s->report_ctx, &l);
}

static bool is_missing(const struct scan *s, const char *path)
{
    struct fsdpck_stat st;
    return s->io->stat(s->io->ctx, path, false, &st) == -ENOENT;
}

/* Removes a lock or writer file whose owner is dead. It locks the file first, because another process may just have
 * taken it over. */
static int remove_lock(const struct scan *s, const char *path, const char *uuid, bool *removed)
{
    struct commit_lock lock = COMMIT_LOCK_NONE;
    struct fsdpck_error e = { 0 };
    char *copy = strdup(path);
    int rc = !copy ? fsdpck_error_nomem(&e, strlen(path) + 1) : fsdpck_lock_take(s->io, copy, path, uuid, &lock, &e);
    *removed = !rc && fsdpck_lock_drop(s->io, &lock);
    if (rc && rc != FSDPCK_ERR_BUSY)
        return fsdpck_error_set(s->err, e.code, e.file, "%s", e.message);
    return 0;
}

/* ---- X.tmp-U and X.old-U */

static int remove_staging(const struct scan *s, const char *path)
{
    int rc = fsdpck_remove_tree(s->io, path, s->err);
    return rc ? rc : fsdpck_fsync_path(s->io, s->dir, s->err);
}

/* A directory named X.old-U is always complete, so it is renamed before its first file is removed. */
static int remove_old(const struct scan *s, const struct commit_name *n, const char *path)
{
    char *junk = fsdpck_trace_path(s->dir, n->base, TRACE_STAGING, n->uuid, s->err);
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
static bool is_youngest_old(const struct scan *s, const struct commit_name *n, const char *path)
{
    struct fsdpck_stat own, other;
    struct commit_name m;
    bool youngest = s->io->stat(s->io->ctx, path, false, &own) == 0;
    for (size_t i = 0; youngest && i < s->count; i++) {
        fsdpck_trace_parse(s->names[i], &m);
        if (m.trace != TRACE_OLD || strcmp(m.base, n->base) != 0 || strcmp(m.uuid, n->uuid) == 0)
            continue;
        char *rival = fsdpck_path_join(s->dir, s->names[i], NULL);
        if (!rival || (s->io->stat(s->io->ctx, rival, false, &other) == 0 && other.mtime_ns > own.mtime_ns))
            youngest = false;
        free(rival);
    }
    return youngest;
}

/* Moves the old one back, under the lock of the name: a writer may just have begun a new one. */
static int move_back(const struct scan *s, const struct commit_name *n, const char *path, const char *home, bool *moved)
{
    struct commit_lock lock = COMMIT_LOCK_NONE;
    struct fsdpck_error e = { 0 };
    *moved = false;
    if (s->locked)
        return 0; /* the caller is about to write a new one; until then the old one is safe here */
    int rc =
        fsdpck_lock_take(s->io, fsdpck_trace_path(s->dir, n->base, TRACE_LOCK, NULL, &e), home, n->uuid, &lock, &e);
    if (rc == FSDPCK_ERR_BUSY)
        return 0;
    if (rc)
        return fsdpck_error_set(s->err, e.code, e.file, "%s", e.message);
    if (is_missing(s, home)) {
        rc = s->io->rename(s->io->ctx, path, home);
        *moved = !rc;
        rc = rc < 0 ? fsdpck_error_sys(s->err, -rc, home, "cannot move the old one back to this name")
                    : fsdpck_fsync_path(s->io, s->dir, s->err);
    }
    fsdpck_lock_drop(s->io, &lock);
    return rc;
}

static int dead_old(const struct scan *s, const struct commit_name *n, const char *path, const char *why)
{
    char text[640];
    bool moved = false;
    char *home = fsdpck_path_join(s->dir, n->base, s->err);
    int rc = !home ? FSDPCK_ERR_NOMEM : 0;
    if (!rc && is_missing(s, home) && !is_youngest_old(s, n, path)) {
        report_leftover(s, path, false, why, false); /* keep it until the youngest is back in its place */
    } else if (!rc && is_missing(s, home)) {
        if (s->remove)
            rc = move_back(s, n, path, home, &moved);
        snprintf(text, sizeof text,
                 moved ? "%s; it is complete and '%.255s' was missing: moved back to that name"
                       : "%s; it is complete and '%.255s' is missing: clean moves it back",
                 why, n->base);
        if (!rc)
            report_leftover(s, path, false, text, moved);
    } else if (!rc) {
        rc = s->remove ? remove_old(s, n, path) : 0;
        if (!rc)
            report_leftover(s, path, false, why, s->remove);
    }
    free(home);
    return rc;
}

/* Returns the writer file of an entry: the one beside it, or NULL if only the directory's own one (in place) exists,
 * because in_place() handles that save. */
static char *writer_of(const struct scan *s, const struct commit_name *n)
{
    char *beside = fsdpck_trace_path(s->dir, n->base, TRACE_WRITER, n->uuid, s->err);
    char *inner = fsdpck_trace_path(s->dir, "", TRACE_WRITER, n->uuid, s->err);
    if (beside && inner && is_missing(s, beside) && !is_missing(s, inner)) {
        free(beside);
        beside = NULL;
    }
    free(inner);
    return beside;
}

static int staging_or_old(const struct scan *s, const struct commit_name *n, const char *path)
{
    struct commit_verdict v;
    char *writer = writer_of(s, n);
    if (!writer)
        return s->err && s->err->code != 0 ? s->err->code : 0;
    fsdpck_writer_probe(s->io, writer, &v);
    free(writer);
    if (v.alive || (!s->remove && n->trace == TRACE_STAGING)) {
        report_leftover(s, path, v.alive, v.why, false);
        return 0;
    }
    if (n->trace == TRACE_OLD)
        return dead_old(s, n, path, v.why);
    int rc = remove_staging(s, path);
    if (!rc)
        report_leftover(s, path, false, v.why, true);
    return rc;
}

/* ---- X.damaged-U and step-N.removed: one rename made them, so no writer is active */

static int set_aside(const struct scan *s, const char *path)
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
static int half_removed(const struct scan *s, const char *path)
{
    bool is_ours = false;
    int rc = fsdpck_is_directory(s->io, path) ? fsdpck_own_is_remnant(s->io, path, &is_ours, s->err) : 0;
    if (rc || !is_ours)
        return rc;
    rc = s->remove ? remove_staging(s, path) : 0;
    if (!rc)
        report_leftover(s, path, false, "its removal was interrupted", s->remove);
    return rc;
}

/* ---- writer files and locks: left-overs too, but not reported if the entry that they stand for was */

static bool was_listed(const struct scan *s, const struct commit_name *n)
{
    struct commit_name m;
    for (size_t i = 0; i < s->count; i++) {
        fsdpck_trace_parse(s->names[i], &m);
        if ((m.trace == TRACE_STAGING || m.trace == TRACE_OLD) && strcmp(m.base, n->base) == 0 &&
            strcmp(m.uuid, n->uuid) == 0)
            return true;
    }
    return false;
}

static bool still_needed(const struct scan *s, const struct commit_name *n)
{
    char *staging = fsdpck_trace_path(s->dir, n->base, TRACE_STAGING, n->uuid, NULL);
    char *old = fsdpck_trace_path(s->dir, n->base, TRACE_OLD, n->uuid, NULL);
    bool needed = !staging || !old || !is_missing(s, staging) || !is_missing(s, old);
    free(staging);
    free(old);
    return needed;
}

static int owner_file(const struct scan *s, const struct commit_name *n, const char *path)
{
    struct commit_verdict v;
    bool removed = false;
    int rc = 0;
    if (n->trace == TRACE_WRITER && still_needed(s, n))
        return 0;
    fsdpck_writer_probe(s->io, path, &v);
    if (v.alive && n->trace == TRACE_LOCK)
        return 0; /* the writer's other files are reported instead */
    if (!v.alive && s->remove)
        rc = remove_lock(s, path, n->uuid, &removed);
    if (!rc && !(n->trace == TRACE_WRITER && was_listed(s, n)))
        report_leftover(s, path, v.alive, v.why, removed);
    return rc;
}

/* ---- a save inside the directory */

static void tell_in_place(const struct scan *s, const struct commit_name *n, const struct commit_verdict *v,
                          bool committed)
{
    const char *why = !committed  ? v->why
                      : s->remove ? "the save is complete, its clean-up was not: done"
                                  : "the save is complete, its clean-up is not";
    for (size_t i = 0; i < s->count; i++) {
        struct commit_name m;
        fsdpck_trace_parse(s->names[i], &m);
        if (!fsdpck_trace_has(s->names[i], n->uuid) || (committed && m.trace == TRACE_NONE))
            continue;
        char *path = fsdpck_path_join(s->dir, s->names[i], NULL);
        if (path)
            report_leftover(s, path, v->alive, why, s->remove && !v->alive);
        free(path);
    }
}

static int remove_journal(const struct scan *s, const char *uuid)
{
    char *journal = fsdpck_trace_path(s->dir, "", TRACE_JOURNAL, uuid, s->err);
    int rc = !journal ? FSDPCK_ERR_NOMEM : fsdpck_remove_tree(s->io, journal, s->err);
    free(journal);
    return rc;
}

/* Completes or undoes a save as commit_finish.c does; removes the journal last (see there). */
static int clear_locked(const struct scan *s, const char *uuid, const char *writer, bool committed)
{
    bool removed = false;
    int rc = committed ? fsdpck_in_place_complete(s->io, s->dir, uuid, s->err)
                       : fsdpck_in_place_undo(s->io, s->dir, uuid, s->err);
    if (!rc)
        rc = remove_lock(s, writer, uuid, &removed);
    if (rc || !committed || !removed)
        return rc;
    rc = fsdpck_fsync_path(s->io, s->dir, s->err);
    return !rc ? remove_journal(s, uuid) : rc;
}

/* Holds the lock of the directory, because its present files decide whether to complete or undo the save. */
static int clear_in_place(const struct scan *s, const char *uuid, const char *writer, bool *committed,
                          struct commit_verdict *v)
{
    struct commit_lock lock = COMMIT_LOCK_NONE;
    struct fsdpck_error e = { 0 };
    int rc = s->locked ? 0
                       : fsdpck_lock_take(s->io, fsdpck_trace_path(s->dir, "", TRACE_LOCK, NULL, &e), s->dir, uuid,
                                          &lock, &e);
    if (rc == FSDPCK_ERR_BUSY) {
        v->alive = true;
        snprintf(v->why, sizeof v->why, "its writer is gone, another one is at work");
        return 0;
    }
    if (rc)
        return fsdpck_error_set(s->err, e.code, e.file, "%s", e.message);
    rc = fsdpck_in_place_committed(s->io, s->dir, uuid, committed, s->err);
    if (!rc)
        rc = clear_locked(s, uuid, writer, *committed);
    fsdpck_lock_drop(s->io, &lock);
    return rc;
}

static int in_place(const struct scan *s, const struct commit_name *n, const char *writer)
{
    struct commit_verdict v;
    bool committed = false;
    int rc = 0;
    fsdpck_writer_probe(s->io, writer, &v);
    if (!v.alive)
        rc = s->remove ? clear_in_place(s, n->uuid, writer, &committed, &v)
                       : fsdpck_in_place_committed(s->io, s->dir, n->uuid, &committed, s->err);
    if (!rc)
        tell_in_place(s, n, &v, committed);
    return rc;
}

/* A journal without a writer file: the save is complete except for removing the journal. */
static int lone_journal(const struct scan *s, const struct commit_name *n, const char *path)
{
    char *writer = fsdpck_trace_path(s->dir, "", TRACE_WRITER, n->uuid, s->err);
    int rc = !writer ? FSDPCK_ERR_NOMEM : 0;
    if (!rc && is_missing(s, writer)) {
        rc = s->remove ? remove_journal(s, n->uuid) : 0;
        if (!rc)
            report_leftover(s, path, false, "writer is done", s->remove);
    }
    free(writer);
    return rc;
}

/* ---- the scan */

static int entry(const struct scan *s, const char *name, bool owners)
{
    struct commit_name n;
    fsdpck_trace_parse(name, &n);
    bool is_owner = n.trace == TRACE_LOCK || n.trace == TRACE_WRITER || n.trace == TRACE_JOURNAL;
    if (n.trace == TRACE_NONE || is_owner != owners || (s->only && strcmp(s->only, n.base) != 0))
        return 0;
    char *path = fsdpck_path_join(s->dir, name, s->err);
    int rc = FSDPCK_ERR_NOMEM;
    if (!path)
        return rc;
    if (n.trace == TRACE_DAMAGED)
        rc = set_aside(s, path);
    else if (n.trace == TRACE_REMOVED)
        rc = half_removed(s, path);
    else if (!is_owner)
        rc = staging_or_old(s, &n, path);
    else if (n.base[0] == '\0' && n.trace == TRACE_WRITER)
        rc = in_place(s, &n, path);
    else if (n.trace == TRACE_JOURNAL)
        rc = lone_journal(s, &n, path);
    else
        rc = owner_file(s, &n, path);
    free(path);
    return rc;
}

/* Handles writer and lock files last: the other entries are judged by them. */
static int scan_directory(struct scan *s)
{
    int rc = fsdpck_list_sorted(s->io, s->dir, &s->names, &s->count, s->err);
    for (int owners = 0; owners < 2; owners++)
        for (size_t i = 0; !rc && i < s->count; i++)
            rc = entry(s, s->names[i], owners);
    fsdpck_list_free(s->names, s->count);
    s->names = NULL;
    s->count = 0;
    return rc;
}

void fsdpck_commit_clear_dead(const struct fsdpck_io *io, const struct commit_output *output, bool in_place)
{
    struct fsdpck_error ignored = { 0 };
    struct scan s = {
        .io = io, .dir = output->parent, .only = output->base, .remove = true, .locked = !in_place, .err = &ignored
    };
    if (output->base[0] != '\0' && !in_place)
        scan_directory(&s);
    if (!fsdpck_is_directory(io, output->path))
        return;
    ignored = (struct fsdpck_error){ 0 };
    s = (struct scan){ .io = io, .dir = output->path, .only = "", .remove = true, .locked = in_place, .err = &ignored };
    scan_directory(&s);
}

int fsdpck_leftovers(const char *path, enum fsdpck_clean clean, const struct fsdpck_options *opt,
                     fsdpck_leftover_fn report, void *report_ctx, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    struct commit_output output;
    struct scan s = { .remove = clean >= FSDPCK_CLEAN_DEAD,
                      .remove_damaged = clean == FSDPCK_CLEAN_ALL,
                      .report = report,
                      .report_ctx = report_ctx,
                      .err = &own };
    s.io = opt && opt->io ? opt->io : &fsdpck_io_posix;
    int rc = fsdpck_output_resolve(s.io, path, &output, &own);
    if (!rc && output.base[0] != '\0') {
        s.dir = output.parent;
        s.only = output.base;
        rc = scan_directory(&s);
        if (rc && own.sys_errno == EACCES && fsdpck_is_directory(s.io, output.path)) {
            memset(&own, 0, sizeof own); /* no permission beside the path: scan inside it only */
            rc = 0;
        }
    }
    if (!rc && fsdpck_is_directory(s.io, output.path)) {
        s.dir = output.path;
        s.only = NULL;
        rc = scan_directory(&s);
    }
    fsdpck_output_free(&output);
    if (rc && err && err->code == 0)
        *err = own;
    return rc;
}
