/* SPDX-License-Identifier: Apache-2.0 */
/* Copies a model folder's assets into an output. Collects them before writing anything, so that a missing file is an
 * early error; then copies, hashes and fsyncs them. Does not interpret them, except for the dtype in config.json. */
#include "hf/assets.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commit/commit.h"
#include "hf/assets_edit.h"
#include "hf/config.h"
#include "base/hash.h"
#include "base/ioutil.h"

#define COPY_NBYTES ((size_t)1 << 20)

/* ---- collecting ---- */

struct gathering {
    const struct fsdpck_source *from;
    char root[PATH_MAX];  /* the folder, with links resolved */
    char cache[PATH_MAX]; /* the model's own folder in the Hugging Face cache, if root lies in one; else "" */
    const char *target;   /* final path of the output, with links resolved */
    struct fsdpck_error *err;
};

static bool is_below(const char *path, const char *dir)
{
    size_t n = strlen(dir);
    return n > 0 && strncmp(path, dir, n) == 0 && (path[n] == '/' || dir[n - 1] == '/');
}

/* ".../models--ORG--NAME/snapshots/REVISION": its files are links to .../models--ORG--NAME/blobs. */
static void find_cache(struct gathering *g)
{
    const char *snapshots = strstr(g->root, "/snapshots/"), *models = snapshots;
    while (models && models > g->root && models[-1] != '/')
        models--;
    if (models && strncmp(models, "models--", 8) == 0)
        snprintf(g->cache, sizeof g->cache, "%.*s", (int)(snapshots - g->root), g->root);
}

static bool is_in_cache(const struct gathering *g, const char *path)
{
    return is_below(path, g->cache) && (strncmp(path + strlen(g->cache), "/blobs/", 7) == 0 ||
                                        strncmp(path + strlen(g->cache), "/snapshots/", 11) == 0);
}

static int begin_gathering(struct gathering *g)
{
    const struct fsdpck_io *io = g->from->io;
    int rc = io->resolve(io->ctx, g->from->path, g->root, sizeof g->root);
    if (rc < 0)
        return fsdpck_error_sys(g->err, -rc, g->from->path, "cannot resolve the path");
    find_cache(g);
    return 0;
}

/* A downloaded folder must not cause a copy of the user's private files: a link must not leave the folder. */
static int check_place(const struct gathering *g, const struct source_asset *a)
{
    const struct fsdpck_io *io = g->from->io;
    char path[PATH_MAX];
    int rc = io->resolve(io->ctx, a->from, path, sizeof path);
    if (rc < 0)
        return fsdpck_error_sys(g->err, -rc, a->from, "cannot resolve the path");
    if (is_below(path, g->root) || is_in_cache(g, path))
        return 0;
    rc = fsdpck_error_set(g->err, FSDPCK_ERR_UNSUPPORTED, a->from,
                          "is a symbolic link that leads out of its folder, to '%s': it is not copied", path);
    fsdpck_error_hint(g->err, "replace the link by a copy of the file, or remove it");
    return rc;
}

static int add_asset(const struct gathering *g, const struct source_asset *a, struct fsdpck_asset_out *out)
{
    const struct fsdpck_source *from = g->from;
    struct fsdpck_error *err = g->err;
    struct fsdpck_stat st;
    int rc = from->io->stat(from->io->ctx, a->from, true, &st);
    if (rc < 0)
        return fsdpck_error_sys(err, -rc, a->from, "cannot open");
    if (st.type != FSDPCK_FILE_REGULAR)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, a->from, "is not a regular file");
    if ((rc = check_place(g, a)) != 0)
        return rc;
    if (a->has_hash && st.nbytes != a->pub.nbytes)
        return fsdpck_error_set(err, FSDPCK_ERR_DAMAGED, a->from, "has %llu bytes, the checkpoint says %llu",
                                (unsigned long long)st.nbytes, (unsigned long long)a->pub.nbytes);
    out->path = strdup(a->pub.path);
    out->from = strdup(a->from);
    if (!out->path || !out->from)
        return fsdpck_error_nomem(err, strlen(a->from) + 1);
    out->nbytes = st.nbytes;
    out->check_hash = a->has_hash;
    memcpy(out->hash, a->hash, sizeof out->hash);
    return 0;
}

/* Returns whether path is in the same entry of the model folder as the output: files in that entry do not belong to the
 * model. */
static bool holds_target(const struct gathering *g, const char *path)
{
    if (!g->target || !is_below(g->target, g->root))
        return false;
    const char *entry = g->target + strlen(g->root) + 1;
    size_t n = strcspn(entry, "/");
    return strncmp(path, entry, n) == 0 && path[n] == '/';
}

static void note_left_behind(const struct gathering *g, const char *path)
{
    char line[1024];
    if (!g->from->opt.note)
        return;
    snprintf(line, sizeof line, "left '%.*s' behind: the output is written in it", (int)strcspn(path, "/"), path);
    g->from->opt.note(g->from->opt.ctx, line);
}

static int add_assets(struct gathering *g, struct fsdpck_assets_out *out)
{
    size_t n = g->from->assets.count;
    bool noted = false;
    int rc = n ? begin_gathering(g) : 0;
    if (!rc && n && !(out->list = calloc(n, sizeof *out->list)))
        return fsdpck_error_nomem(g->err, n * sizeof *out->list);
    for (size_t i = 0; i < n && !rc; i++) {
        const struct source_asset *a = &source_assets(g->from)[i];
        if (!holds_target(g, a->pub.path)) {
            rc = add_asset(g, a, &out->list[out->count++]);
        } else if (!noted) {
            note_left_behind(g, a->pub.path);
            noted = true;
        }
    }
    return rc;
}

/* Lists the folder's assets, as if it were a source with nothing else. */
static int add_folder(struct gathering *g, const char *folder, struct fsdpck_assets_out *out)
{
    const struct fsdpck_source *src = g->from;
    struct fsdpck_source only = {
        .opt = src->opt, .io = src->io, .path = folder, .assets = FSDPCK_VEC(struct source_asset)
    };
    int rc = fsdpck_assets_scan(&only, folder, g->err);
    g->from = &only;
    if (!rc)
        rc = add_assets(g, out);
    g->from = src;
    fsdpck_vec_free(&only.assets);
    fsdpck_arena_free(&only.arena);
    return rc;
}

int fsdpck_assets_gather(const struct fsdpck_source *src, const char *folder, const char *target, bool cast,
                         enum fsdpck_dtype dtype, struct fsdpck_assets_out *out, struct fsdpck_error *err)
{
    struct gathering g = { .from = src, .err = err };
    char *resolved = NULL;
    *out = (struct fsdpck_assets_out){ 0 };
    int rc = fsdpck_commit_resolve(src->io, target, &resolved, err);
    g.target = resolved;
    if (!rc)
        rc = folder ? add_folder(&g, folder, out) : add_assets(&g, out);
    if (!rc)
        rc = fsdpck_assets_edit(src->io, out, cast ? &dtype : NULL, src->dequantized, err);
    free(resolved);
    if (rc)
        fsdpck_assets_free(out);
    return rc;
}

/* Gets the text of config.json among the assets, or NULL. *owned must be freed. */
static int config_text(const struct fsdpck_io *io, const struct fsdpck_assets_out *assets, const char **text,
                       uint64_t *nbytes, char **owned, struct fsdpck_error *err)
{
    const struct fsdpck_asset_out *config = fsdpck_assets_config(assets);
    int rc = 0;
    *text = *owned = NULL;
    *nbytes = 0;
    if (config && config->data) {
        *text = config->data;
        *nbytes = config->nbytes;
    } else if (config) {
        rc = fsdpck_read_file(io, config->from, FSDPCK_CONFIG_MAX_NBYTES, owned, nbytes, err);
        *text = *owned;
    }
    return rc;
}

/* Ignores a config.json that is not JSON; running out of memory is an error. */
static int unless_malformed(const struct fsdpck_error *why, uint64_t nbytes, struct fsdpck_error *err)
{
    return why->code == FSDPCK_ERR_NOMEM ? fsdpck_error_nomem(err, nbytes) : 0;
}

int fsdpck_assets_tied(const struct fsdpck_io *io, const struct fsdpck_assets_out *assets, bool *tied,
                       struct fsdpck_error *err)
{
    struct fsdpck_error why = { 0 };
    const char *text;
    char *owned;
    uint64_t nbytes;
    *tied = false;
    int rc = config_text(io, assets, &text, &nbytes, &owned, err);
    if (text && fsdpck_config_tied("config.json", text, nbytes, tied, &why) != 0) {
        *tied = false;
        rc = unless_malformed(&why, nbytes, err);
    }
    free(owned);
    return rc;
}

int fsdpck_assets_dtype(const struct fsdpck_io *io, const struct fsdpck_assets_out *assets, bool *found,
                        enum fsdpck_dtype *dtype, struct fsdpck_error *err)
{
    static const char *const keys[] = { "torch_dtype", "dtype" };
    struct fsdpck_error why = { 0 };
    const char *text;
    char *owned;
    uint64_t nbytes;
    *found = false;
    int rc = config_text(io, assets, &text, &nbytes, &owned, err);
    if (text &&
        fsdpck_config_dtype("config.json", text, nbytes, keys, sizeof keys / sizeof *keys, found, dtype, &why) != 0) {
        *found = false;
        rc = unless_malformed(&why, nbytes, err);
    }
    free(owned);
    return rc;
}

void fsdpck_assets_free(struct fsdpck_assets_out *assets)
{
    for (size_t i = 0; i < assets->count; i++) {
        free(assets->list[i].path);
        free(assets->list[i].from);
        free(assets->list[i].data);
    }
    free(assets->list);
    *assets = (struct fsdpck_assets_out){ 0 };
}

/* ---- writing ---- */

static int make_dir(const struct fsdpck_io *io, const char *path, struct fsdpck_error *err)
{
    int rc = io->mkdir(io->ctx, path, 0777);
    return rc < 0 && rc != -EEXIST ? fsdpck_error_sys(err, -rc, path, "cannot make the folder") : 0;
}

/* Calls step for each folder between the first `base` bytes of path and its file. Changes path temporarily. */
static int each_parent(const struct fsdpck_io *io, char *path, size_t base,
                       int (*step)(const struct fsdpck_io *, const char *, struct fsdpck_error *),
                       struct fsdpck_error *err)
{
    int rc = 0;
    for (char *slash = strchr(path + base, '/'); slash && !rc; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        rc = step(io, path, err);
        *slash = '/';
    }
    return rc;
}

static int copy_bytes(const struct fsdpck_io *io, struct fsdpck_asset_out *a, int in, const char *to, int fd,
                      struct fsdpck_hasher *h, char *buf, struct fsdpck_error *err)
{
    struct fsdpck_stat st;
    int rc = io->fstat(io->ctx, in, &st);
    if (rc < 0)
        return fsdpck_error_sys(err, -rc, a->from, "cannot stat");
    a->nbytes = st.nbytes;
    for (uint64_t at = 0; at < st.nbytes; at += COPY_NBYTES) {
        uint64_t n = st.nbytes - at < COPY_NBYTES ? st.nbytes - at : COPY_NBYTES;
        if ((rc = fsdpck_read_full(io, in, a->from, buf, n, at, err)) != 0 ||
            (rc = fsdpck_write_full(io, fd, to, buf, n, at, err)) != 0)
            return rc;
        fsdpck_hasher_add(h, buf, n);
    }
    rc = io->fsync(io->ctx, fd);
    return rc < 0 ? fsdpck_error_sys(err, -rc, to, "cannot fsync") : 0;
}

static int copy_file(const struct fsdpck_io *io, struct fsdpck_asset_out *a, const char *to,
                     struct fsdpck_hash128 *hash, struct fsdpck_error *err)
{
    struct fsdpck_hasher *h = fsdpck_hasher_new();
    char *buf = malloc(COPY_NBYTES);
    int in = -1, fd = -1, rc;
    if (!h || !buf) {
        rc = fsdpck_error_nomem(err, COPY_NBYTES);
        goto out;
    }
    if ((in = io->open(io->ctx, a->from, FSDPCK_OPEN_READ, 0)) < 0) {
        rc = fsdpck_error_sys(err, -in, a->from, "cannot open");
        goto out;
    }
    if ((fd = io->open(io->ctx, to, FSDPCK_OPEN_WRITE | FSDPCK_OPEN_CREATE, 0666)) < 0) {
        rc = fsdpck_error_sys(err, -fd, to, "cannot create");
        goto out;
    }
    rc = copy_bytes(io, a, in, to, fd, h, buf, err);
    fsdpck_hasher_finish(h, hash);
out:
    if (in >= 0)
        io->close(io->ctx, in);
    if (fd >= 0) {
        int closed = io->close(io->ctx, fd);
        if (closed < 0 && !rc)
            rc = fsdpck_error_sys(err, -closed, to, "cannot close");
    }
    free(buf);
    fsdpck_hasher_free(h);
    return rc;
}

static int write_asset(const struct fsdpck_io *io, struct fsdpck_asset_out *a, const char *dir,
                       struct fsdpck_error *err)
{
    struct fsdpck_hash128 hash;
    char *to = fsdpck_path_join(dir, a->path, err);
    if (!to)
        return FSDPCK_ERR_NOMEM;
    size_t base = strlen(to) - strlen(a->path);
    int rc = each_parent(io, to, base, make_dir, err);
    if (!rc && a->data) {
        fsdpck_hash(a->data, a->nbytes, &hash);
        rc = fsdpck_write_file(io, to, a->data, a->nbytes, err);
    } else if (!rc) {
        rc = copy_file(io, a, to, &hash, err);
    }
    if (!rc)
        rc = fsdpck_asset_check_hash(a, &hash, err);
    if (!rc)
        rc = each_parent(io, to, base, fsdpck_fsync_path, err);
    if (!rc)
        memcpy(a->hash, hash.bytes, sizeof a->hash);
    free(to);
    return rc;
}

int fsdpck_assets_write(const struct fsdpck_io *io, struct fsdpck_assets_out *assets, const char *dir,
                        struct fsdpck_error *err)
{
    if (assets->count == 0)
        return 0;
    int rc = make_dir(io, dir, err);
    for (size_t i = 0; i < assets->count && !rc; i++)
        rc = write_asset(io, &assets->list[i], dir, err);
    return rc ? rc : fsdpck_fsync_path(io, dir, err);
}
