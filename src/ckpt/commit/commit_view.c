/* SPDX-License-Identifier: Apache-2.0 */
/* Tells a reader which files of a directory are valid while old and new files exist together in it (commit_in_place.c).
 * It writes nothing. */
#include "commit/commit_view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commit/commit_impl.h"
#include "base/ioutil.h"

static bool holds(const struct fsdpck_vec *strings, const char *s)
{
    char **list = strings->data;
    for (size_t i = 0; i < strings->count; i++)
        if (strcmp(list[i], s) == 0)
            return true;
    return false;
}

static int classify_save(const struct fsdpck_io *io, const char *dir, const char *uuid, struct fsdpck_commit_view *view,
                         struct fsdpck_error *err)
{
    char record[256];
    bool committed;
    struct fsdpck_vec replaced = FSDPCK_VEC(char *);
    int rc = fsdpck_in_place_state(io, dir, uuid, &committed, record, &replaced, err);
    if (!rc && committed && view->record[0] == '\0') {
        strcpy(view->record, record);
        strcpy(view->committed, uuid);
        fsdpck_strings_free(&view->replaced);
        view->replaced = replaced;
        return 0;
    }
    fsdpck_strings_free(&replaced);
    return !rc && !committed ? fsdpck_strings_add(&view->unfinished, uuid, err) : rc;
}

static int find_pending(char *const *names, size_t count, struct fsdpck_commit_view *view, struct fsdpck_error *err)
{
    int rc = 0;
    for (size_t i = 0; !rc && i < count; i++) {
        struct commit_name n;
        fsdpck_commit_name_parse(names[i], &n);
        if (n.kind == NAME_STAGING && strcmp(n.uuid, view->committed) == 0)
            rc = fsdpck_strings_add(&view->pending, n.base, err);
    }
    return rc;
}

int fsdpck_commit_view(const struct fsdpck_io *io, const char *dir, char *const *names, size_t count,
                       struct fsdpck_commit_view *view, struct fsdpck_error *err)
{
    int rc = 0;
    *view = (struct fsdpck_commit_view){ .replaced = FSDPCK_VEC(char *),
                                         .unfinished = FSDPCK_VEC(char *),
                                         .pending = FSDPCK_VEC(char *) };
    for (size_t i = 0; !rc && i < count; i++) {
        struct commit_name n;
        fsdpck_commit_name_parse(names[i], &n);
        bool is_trace = n.base[0] == '\0' && (n.kind == NAME_WRITER || n.kind == NAME_JOURNAL);
        if (is_trace && strcmp(n.uuid, view->committed) != 0 && !holds(&view->unfinished, n.uuid))
            rc = classify_save(io, dir, n.uuid, view, err);
    }
    if (!rc && view->record[0] != '\0')
        rc = find_pending(names, count, view, err);
    if (rc)
        fsdpck_commit_view_free(view);
    return rc;
}

void fsdpck_commit_view_free(struct fsdpck_commit_view *view)
{
    fsdpck_strings_free(&view->replaced);
    fsdpck_strings_free(&view->unfinished);
    fsdpck_strings_free(&view->pending);
    *view = (struct fsdpck_commit_view){ 0 };
}

size_t fsdpck_commit_view_pending(const struct fsdpck_commit_view *view, const char *name)
{
    size_t nbytes;
    return view->record[0] != '\0' && fsdpck_commit_name_is_temporary(name, view->committed, &nbytes) ? nbytes : 0;
}

bool fsdpck_commit_view_has(const struct fsdpck_commit_view *view, const char *name)
{
    char **unfinished = view->unfinished.data;
    for (size_t i = 0; i < view->unfinished.count; i++)
        if (fsdpck_commit_name_has_id(name, unfinished[i]))
            return false;
    if (view->record[0] == '\0' || strcmp(name, view->record) == 0)
        return true;
    return !holds(&view->replaced, name) && !holds(&view->pending, name);
}

void fsdpck_commit_view_filter(const struct fsdpck_commit_view *view, char **names, size_t *count)
{
    size_t kept = 0;
    for (size_t i = 0; i < *count; i++) {
        if (fsdpck_commit_view_has(view, names[i]))
            names[kept++] = names[i];
        else
            free(names[i]);
    }
    *count = kept;
}

char *fsdpck_commit_view_path(const struct fsdpck_commit_view *view, const char *dir, const char *name,
                              struct fsdpck_error *err)
{
    return holds(&view->pending, name) ? fsdpck_commit_name_path(dir, name, NAME_STAGING, view->committed, err)
                                       : fsdpck_path_join(dir, name, err);
}
