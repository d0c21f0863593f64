/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the assets of a model folder: the files besides weights. Checks names and types only; opens no file. */
#include "hf/assets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "base/suffix.h"
#include "commit/commit_view.h"
#include "engine/source_impl.h"

#define MAX_DEPTH  16
#define MAX_ASSETS 100000u

struct found {
    char *path; /* relative; "" for the folder itself */
    char *from; /* full path */
    uint64_t nbytes;
};

struct scan {
    struct fsdpck_source *src;
    const char *folder;
    struct fsdpck_commit_view view; /* the valid files of the folder itself */
    struct fsdpck_vec runs;         /* char *: entries with checkpoints deeper inside */
    struct fsdpck_vec dirs;         /* struct found: folders still to scan */
    struct fsdpck_vec found;        /* struct found */
};

static bool is_weights(const char *name)
{
    static const char *const suffixes[] = { ".safetensors", ".bin",  ".pt",   ".pth", ".ckpt",  ".h5",
                                            ".msgpack",     ".onnx", ".gguf", ".ot",  ".distcp" };
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        if (ends_with(name, suffixes[i]))
            return true;
    return false;
}

/* DeepSpeed writes these beside its weights: the name of the newest checkpoint, and scripts that convert it. */
static bool is_beside_deepspeed(const char *name)
{
    return fsdpck_deepspeed_names_tag(name) || strcmp(name, "zero_to_fp32.py") == 0 ||
           strcmp(name, "zero_to_torch.py") == 0;
}

/* Whether the source reads files below the folder. */
static bool is_read(const struct scan *s, const char *folder)
{
    const size_t n = strlen(folder);
    for (size_t i = 0; i < s->src->files.count; i++)
        if (strncmp(source_files(s->src)[i].path, folder, n) == 0 && source_files(s->src)[i].path[n] == '/')
            return true;
    return false;
}

static void note_skipped(const struct scan *s, const char *path, const char *why)
{
    char line[1024];
    if (!s->src->opt.note)
        return;
    snprintf(line, sizeof line, "left '%s' behind: %s", path, why);
    s->src->opt.note(s->src->opt.ctx, line);
}

static int push_dir(struct scan *s, char *path, char *from, struct fsdpck_error *err)
{
    unsigned depth = 0;
    for (const char *p = path; *p; p++)
        depth += *p == '/';
    if (depth >= MAX_DEPTH)
        return fsdpck_error_set(err, FSDPCK_ERR_LIMIT, s->folder, "folder '%s' is nested deeper than %d levels", path,
                                MAX_DEPTH);
    struct found *d = fsdpck_vec_push(&s->dirs, err);
    if (!d)
        return FSDPCK_ERR_NOMEM;
    *d = (struct found){ path, from, 0 };
    return 0;
}

static int push_file(struct scan *s, char *path, char *from, uint64_t nbytes, struct fsdpck_error *err)
{
    if (s->found.count == MAX_ASSETS)
        return fsdpck_error_set(err, FSDPCK_ERR_LIMIT, s->folder, "more than %u files besides weights", MAX_ASSETS);
    struct found *f = fsdpck_vec_push(&s->found, err);
    if (!f)
        return FSDPCK_ERR_NOMEM;
    *f = (struct found){ path, from, nbytes };
    return 0;
}

/* Takes ownership of path and full. Does not follow links to folders: they may form cycles. */
static int scan_entry(struct scan *s, char *path, char *full, struct fsdpck_error *err)
{
    const struct fsdpck_io *io = s->src->io;
    struct fsdpck_stat own, target;
    bool kept = false;
    int rc = 0;
    if (!path || !full) {
        free(path);
        free(full);
        return FSDPCK_ERR_NOMEM;
    }
    if (!fsdpck_path_is_plain(path)) {
        note_skipped(s, path, "its name is not plain");
    } else if (io->stat(io->ctx, full, false, &own) < 0 || io->stat(io->ctx, full, true, &target) < 0) {
        note_skipped(s, path, "it cannot be opened (a link to nowhere?)");
    } else if (own.type == FSDPCK_FILE_DIRECTORY) {
        rc = push_dir(s, path, full, err);
        kept = !rc;
    } else if (target.type == FSDPCK_FILE_REGULAR) {
        rc = push_file(s, path, full, target.nbytes, err);
        kept = !rc;
    } else {
        note_skipped(s, path,
                     own.type == FSDPCK_FILE_SYMLINK && target.type == FSDPCK_FILE_DIRECTORY ? "a link to a folder"
                                                                                             : "not a regular file");
    }
    if (!kept) {
        free(path);
        free(full);
    }
    return rc;
}

/* A checkpoint that is deeper than an entry of the folder belongs to a training run, and so does everything else in
 * that entry (metrics, caches). */
static int note_run(struct scan *s, const char *dir, const char *name, struct fsdpck_error *err)
{
    size_t n = strcspn(dir, "/");
    if (dir[n] == '\0' || !ends_with(name, ".distcp"))
        return 0;
    char *run = strndup(dir, n), **slot = run ? fsdpck_vec_push(&s->runs, err) : NULL;
    if (!slot) {
        free(run);
        return fsdpck_error_nomem(err, n + 1);
    }
    *slot = run;
    return 0;
}

/* Scans an entry "NAME", or one with a temporary name that will become NAME. */
static int scan_name(struct scan *s, const struct found *dir, const char *name, struct fsdpck_error *err)
{
    size_t pending_nbytes = *dir->path ? 0 : fsdpck_commit_view_pending(&s->view, name);
    char *as = strndup(name, pending_nbytes ? pending_nbytes : strlen(name));
    int rc = as ? 0 : fsdpck_error_nomem(err, strlen(name) + 1);
    if (!rc && as[0] != '.' && !is_weights(as) && !ends_with(as, ".index.json") && !is_beside_deepspeed(as))
        rc = scan_entry(s, fsdpck_path_join(dir->path, as, err), fsdpck_path_join(dir->from, name, err), err);
    free(as);
    return rc;
}

static int scan_names(struct scan *s, const struct found *dir, char *const *names, size_t n, struct fsdpck_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < n && *dir->path; i++)
        if (is_weights(names[i])) {
            if (!is_read(s, dir->from))
                note_skipped(s, dir->path, "a folder with weights of its own");
            return note_run(s, dir->path, names[i], err);
        }
    for (size_t i = 0; i < n && !rc; i++)
        rc = scan_name(s, dir, names[i], err);
    return rc;
}

static int scan_dir(struct scan *s, const struct found *dir, struct fsdpck_error *err)
{
    char **names = NULL;
    size_t n = 0;
    int rc = fsdpck_list_sorted(s->src->io, dir->from, &names, &n, err);
    if (!rc && !*dir->path)
        rc = fsdpck_commit_view(s->src->io, s->folder, names, n, &s->view, err);
    if (!rc && !*dir->path)
        fsdpck_commit_view_filter(&s->view, names, &n);
    if (!rc)
        rc = scan_names(s, dir, names, n, err);
    fsdpck_list_free(names, n);
    return rc;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct found *)a)->path, ((const struct found *)b)->path);
}

static bool is_of_run(const struct scan *s, const char *path)
{
    char **runs = s->runs.data;
    for (size_t i = 0; i < s->runs.count; i++)
        if (strncmp(path, runs[i], strlen(runs[i])) == 0 && path[strlen(runs[i])] == '/')
            return true;
    return false;
}

static int add_found(struct scan *s, struct fsdpck_error *err)
{
    struct found *f = s->found.data;
    int rc = 0;
    if (s->found.count)
        qsort(f, s->found.count, sizeof *f, by_path);
    for (size_t i = 0; i < s->found.count && !rc; i++)
        if (is_of_run(s, f[i].path))
            note_skipped(s, f[i].path, "it belongs to a run");
        else if (!fsdpck_source_add_asset(s->src, f[i].path, f[i].from, f[i].nbytes, err))
            rc = FSDPCK_ERR_NOMEM;
    return rc;
}

static void free_found(struct fsdpck_vec *list)
{
    struct found *f = list->data;
    for (size_t i = 0; i < list->count; i++) {
        free(f[i].path);
        free(f[i].from);
    }
    fsdpck_vec_free(list);
}

int fsdpck_assets_scan(struct fsdpck_source *src, const char *folder, struct fsdpck_error *err)
{
    struct scan s = { .src = src,
                      .folder = folder,
                      .runs = FSDPCK_VEC(char *),
                      .dirs = FSDPCK_VEC(struct found),
                      .found = FSDPCK_VEC(struct found) };
    char top[] = "", *from = strdup(folder);
    int rc = from ? scan_dir(&s, &(struct found){ top, from, 0 }, err) : fsdpck_error_nomem(err, strlen(folder) + 1);
    free(from);
    while (!rc && s.dirs.count) {
        struct found dir = ((struct found *)s.dirs.data)[--s.dirs.count];
        rc = scan_dir(&s, &dir, err);
        free(dir.path);
        free(dir.from);
    }
    if (!rc)
        rc = add_found(&s, err);
    free_found(&s.dirs);
    free_found(&s.found);
    for (size_t i = 0; i < s.runs.count; i++)
        free(((char **)s.runs.data)[i]);
    fsdpck_commit_view_free(&s.view);
    fsdpck_vec_free(&s.runs);
    return rc;
}
