/* SPDX-License-Identifier: Apache-2.0 */
/* Finds what writers left over beside or inside a path, and removes it if the writer is dead. It is the counterpart of
 * the commit protocol (commit.c, commit_in_place.c). A left-over is kept unless its writer is proved dead. It does not
 * know a checkpoint's contents. This file scans directories; leftovers_staged.c and leftovers_in_place.c handle the
 * entries. */
#include "commit/leftovers_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"

void fsdpck_leftover_report(const struct leftover_scan *s, const char *path, bool alive, const char *why, bool removed)
{
    struct fsdpck_leftover l = { .path = path, .alive = alive, .why = why, .removed = removed };
    if (s->report)
        s->report(s->report_ctx, &l);
}

bool fsdpck_leftover_is_missing(const struct leftover_scan *s, const char *path)
{
    struct fsdpck_stat st;
    return s->io->stat(s->io->ctx, path, false, &st) == -ENOENT;
}

/* Removes a lock or writer file whose owner is dead. It locks the file first, because another process may just have
 * taken it over. */
int fsdpck_leftover_remove_lock(const struct leftover_scan *s, const char *path, const char *uuid, bool *removed)
{
    struct commit_lock lock = COMMIT_LOCK_NONE;
    struct fsdpck_error e = { 0 };
    char *copy = strdup(path);
    int rc = !copy ? fsdpck_error_nomem(&e, strlen(path) + 1) : fsdpck_lock_take(s->io, copy, path, uuid, &lock, &e);
    *removed = !rc && fsdpck_lock_remove(s->io, &lock);
    if (rc && rc != FSDPCK_ERR_BUSY)
        return fsdpck_error_set(s->err, e.code, e.file, "%s", e.message);
    return 0;
}

/* ---- the scan */

static int handle_entry(const struct leftover_scan *s, const char *name, bool owners)
{
    struct commit_name n;
    fsdpck_commit_name_parse(name, &n);
    bool is_owner = n.kind == NAME_LOCK || n.kind == NAME_WRITER || n.kind == NAME_JOURNAL;
    if (n.kind == NAME_NONE || is_owner != owners || (s->only && strcmp(s->only, n.base) != 0))
        return 0;
    char *path = fsdpck_path_join(s->dir, name, s->err);
    int rc = FSDPCK_ERR_NOMEM;
    if (!path)
        return rc;
    if (n.kind == NAME_DAMAGED)
        rc = fsdpck_leftover_set_aside(s, path);
    else if (n.kind == NAME_REMOVED)
        rc = fsdpck_leftover_half_removed(s, path);
    else if (!is_owner)
        rc = fsdpck_leftover_staging_or_old(s, &n, path);
    else if (n.base[0] == '\0' && n.kind == NAME_WRITER)
        rc = fsdpck_leftover_in_place(s, &n, path);
    else if (n.kind == NAME_JOURNAL)
        rc = fsdpck_leftover_lone_journal(s, &n, path);
    else
        rc = fsdpck_leftover_owner_file(s, &n, path);
    free(path);
    return rc;
}

/* Handles writer and lock files last: the other entries are judged by them. */
static int scan_directory(struct leftover_scan *s)
{
    int rc = fsdpck_list_sorted(s->io, s->dir, &s->names, &s->count, s->err);
    for (int owners = 0; owners < 2; owners++)
        for (size_t i = 0; !rc && i < s->count; i++)
            rc = handle_entry(s, s->names[i], owners);
    fsdpck_list_free(s->names, s->count);
    s->names = NULL;
    s->count = 0;
    return rc;
}

void fsdpck_commit_clear_dead(const struct fsdpck_io *io, const struct commit_output *output, bool in_place)
{
    struct fsdpck_error ignored = { 0 };
    struct leftover_scan s = {
        .io = io, .dir = output->parent, .only = output->base, .remove = true, .locked = !in_place, .err = &ignored
    };
    if (output->base[0] != '\0' && !in_place)
        scan_directory(&s);
    if (!fsdpck_is_directory(io, output->path))
        return;
    ignored = (struct fsdpck_error){ 0 };
    s = (struct leftover_scan){
        .io = io, .dir = output->path, .only = "", .remove = true, .locked = in_place, .err = &ignored
    };
    scan_directory(&s);
}

int fsdpck_leftovers(const char *path, enum fsdpck_clean clean, const struct fsdpck_options *opt,
                     fsdpck_leftover_fn report, void *report_ctx, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    struct commit_output output;
    struct leftover_scan s = { .remove = clean >= FSDPCK_CLEAN_DEAD,
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
