/* Finds the assets of a model folder: what is there besides weights. It looks at names and types only, never into a file. */
#include "hf/assets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "base/suffix.h"

#define MAX_DEPTH 16
#define MAX_ASSETS 100000u

struct found {
    char *path; /* relative */
    uint64_t nbytes;
};

struct scan {
    struct fsdpck_source *src;
    const char *folder;
    struct fsdpck_vec dirs;  /* char *: relative paths of folders still to be looked at, "" for the folder itself */
    struct fsdpck_vec found; /* struct found */
};

static bool is_weights(const char *name)
{
    static const char *const suffixes[] = { ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf", ".ot", ".distcp" };
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        if (ends_with(name, suffixes[i]))
            return true;
    return false;
}

static void say(const struct scan *s, const char *path, const char *why)
{
    char line[1024];
    if (!s->src->opt.note)
        return;
    snprintf(line, sizeof line, "left '%s' behind: %s", path, why);
    s->src->opt.note(s->src->opt.ctx, line);
}

static int push_dir(struct scan *s, char *path, struct fsdpck_error *err)
{
    unsigned depth = 0;
    for (const char *p = path; *p; p++)
        depth += *p == '/';
    if (depth >= MAX_DEPTH)
        return fsdpck_error_set(err, FSDPCK_ERR_LIMIT, s->folder, "folder '%s' is nested deeper than %d levels", path, MAX_DEPTH);
    char **slot = fsdpck_vec_push(&s->dirs, err);
    if (!slot)
        return FSDPCK_ERR_NOMEM;
    *slot = path;
    return 0;
}

static int push_file(struct scan *s, char *path, uint64_t nbytes, struct fsdpck_error *err)
{
    if (s->found.count == MAX_ASSETS)
        return fsdpck_error_set(err, FSDPCK_ERR_LIMIT, s->folder, "more than %u files besides weights", MAX_ASSETS);
    struct found *f = fsdpck_vec_push(&s->found, err);
    if (!f)
        return FSDPCK_ERR_NOMEM;
    *f = (struct found){ path, nbytes };
    return 0;
}

/* Takes path, or frees it. Links to folders are not followed: they may lead in circles. */
static int scan_entry(struct scan *s, char *path, struct fsdpck_error *err)
{
    const struct fsdpck_io *io = s->src->io;
    struct fsdpck_stat own, target;
    bool kept = false;
    int rc = 0;
    char *full = fsdpck_path_join(s->folder, path, err);
    if (!full) {
        free(path);
        return FSDPCK_ERR_NOMEM;
    }
    if (!fsdpck_path_is_plain(path)) {
        say(s, path, "its name is not plain");
    } else if (io->stat(io->ctx, full, false, &own) < 0 || io->stat(io->ctx, full, true, &target) < 0) {
        say(s, path, "it cannot be opened (a link to nowhere?)");
    } else if (own.type == FSDPCK_FILE_DIRECTORY) {
        rc = push_dir(s, path, err);
        kept = rc == 0;
    } else if (target.type == FSDPCK_FILE_REGULAR) {
        rc = push_file(s, path, target.nbytes, err);
        kept = rc == 0;
    }
    if (!kept)
        free(path);
    free(full);
    return rc;
}

static int scan_names(struct scan *s, const char *dir, char *const *names, size_t n, struct fsdpck_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < n && *dir; i++)
        if (is_weights(names[i])) {
            say(s, dir, "a folder with weights of its own");
            return 0;
        }
    for (size_t i = 0; i < n && rc == 0; i++) {
        if (names[i][0] == '.' || is_weights(names[i]) || ends_with(names[i], ".index.json"))
            continue;
        char *path = fsdpck_path_join(dir, names[i], err);
        rc = path ? scan_entry(s, path, err) : FSDPCK_ERR_NOMEM;
    }
    return rc;
}

static int scan_dir(struct scan *s, const char *dir, struct fsdpck_error *err)
{
    char **names = NULL;
    size_t n = 0;
    char *full = *dir ? fsdpck_path_join(s->folder, dir, err) : NULL;
    if (*dir && !full)
        return FSDPCK_ERR_NOMEM;
    int rc = fsdpck_list_sorted(s->src->io, full ? full : s->folder, &names, &n, err);
    if (rc == 0)
        rc = scan_names(s, dir, names, n, err);
    fsdpck_list_free(names, n);
    free(full);
    return rc;
}

static int by_path(const void *a, const void *b) { return strcmp(((const struct found *)a)->path, ((const struct found *)b)->path); }

static int add_found(struct scan *s, struct fsdpck_error *err)
{
    struct found *f = s->found.data;
    int rc = 0;
    if (s->found.count)
        qsort(f, s->found.count, sizeof *f, by_path);
    for (size_t i = 0; i < s->found.count && rc == 0; i++) {
        char *full = fsdpck_path_join(s->folder, f[i].path, err);
        if (!full || !fsdpck_source_add_asset(s->src, f[i].path, full, f[i].nbytes, err))
            rc = FSDPCK_ERR_NOMEM;
        free(full);
    }
    return rc;
}

int fsdpck_assets_scan(struct fsdpck_source *src, const char *folder, struct fsdpck_error *err)
{
    struct scan s = { src, folder, FSDPCK_VEC(char *), FSDPCK_VEC(struct found) };
    int rc = scan_dir(&s, "", err);
    while (rc == 0 && s.dirs.count) {
        char *dir = ((char **)s.dirs.data)[--s.dirs.count];
        rc = scan_dir(&s, dir, err);
        free(dir);
    }
    if (rc == 0)
        rc = add_found(&s, err);
    for (size_t i = 0; i < s.dirs.count; i++)
        free(((char **)s.dirs.data)[i]);
    for (size_t i = 0; i < s.found.count; i++)
        free(((struct found *)s.found.data)[i].path);
    fsdpck_vec_free(&s.dirs);
    fsdpck_vec_free(&s.found);
    return rc;
}
