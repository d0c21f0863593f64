/* SPDX-License-Identifier: Apache-2.0 */
/* Verifies the other files of an fsdpck directory against index.json: .metadata, assets, and stray files. Knows nothing
 * of tensors. */
#include "format/verify_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "base/suffix.h"
#include "commit/commit_view.h"
#include "base/stop.h"

/* A file, and its description in index.json. */
struct whole_file {
    const char *path, *name;
    uint64_t nbytes;
    const uint8_t *hash;
    const char *differs; /* the message if it differs */
};

static int hash_bytes(struct fsdpck_verifier *v, const struct whole_file *w, int fd, struct fsdpck_hash128 *got,
                      struct fsdpck_error *err)
{
    struct fsdpck_hasher *h = fsdpck_hasher_new();
    uint8_t *buf = malloc(FSDPCK_BLOCK_NBYTES);
    int rc = h && buf ? 0 : fsdpck_error_nomem(err, FSDPCK_BLOCK_NBYTES);
    for (uint64_t at = 0; !rc && at < w->nbytes; at += FSDPCK_BLOCK_NBYTES) {
        uint64_t n = w->nbytes - at < FSDPCK_BLOCK_NBYTES ? w->nbytes - at : FSDPCK_BLOCK_NBYTES;
        if (fsdpck_stop_asked(v->src->opt.stop))
            rc = fsdpck_error_set(err, FSDPCK_ERR_STOPPED, NULL, "stopped");
        else if ((rc = fsdpck_read_full(v->src->io, fd, w->path, buf, n, at, err)) == 0)
            fsdpck_hasher_add(h, buf, n);
    }
    if (!rc) {
        fsdpck_hasher_finish(h, got);
        v->result->read_nbytes += w->nbytes;
    }
    free(buf);
    fsdpck_hasher_free(h);
    return rc;
}

static int hash_file(struct fsdpck_verifier *v, const struct whole_file *w, struct fsdpck_hash128 *got,
                     struct fsdpck_error *err)
{
    int fd = v->src->io->open(v->src->io->ctx, w->path, FSDPCK_OPEN_READ, 0);
    if (fd < 0)
        return fsdpck_error_sys(err, -fd, w->path, "cannot open");
    int rc = hash_bytes(v, w, fd, got, err);
    v->src->io->close(v->src->io->ctx, fd);
    return rc;
}

/* Compares size, then bytes. e's message gets the difference. */
static int compare(struct fsdpck_verifier *v, const struct whole_file *w, bool *was_read, struct fsdpck_error *e)
{
    struct fsdpck_hash128 got;
    struct fsdpck_stat st;
    int rc = fsdpck_source_stat_file(v->src, w->path, &st, e);
    if (rc == FSDPCK_ERR_MISSING) {
        *e = (struct fsdpck_error){ 0 };
        return fsdpck_error_set(e, rc, w->path, "is missing");
    }
    if (!rc && st.nbytes != w->nbytes)
        return fsdpck_error_set(e, FSDPCK_ERR_DAMAGED, w->path,
                                "%s (it has %" PRIu64 " bytes, the index says %" PRIu64 ")", w->differs, st.nbytes,
                                w->nbytes);
    if (rc || v->quick)
        return rc;
    rc = hash_file(v, w, &got, e);
    *was_read = !rc;
    if (!rc && memcmp(got.bytes, w->hash, sizeof got.bytes) != 0)
        rc = fsdpck_error_set(e, FSDPCK_ERR_DAMAGED, w->path, "%s", w->differs);
    return rc;
}

static int check_whole(struct fsdpck_verifier *v, const struct whole_file *w, struct fsdpck_error *err)
{
    struct fsdpck_error e = { 0 };
    bool was_read = false;
    int rc = compare(v, w, &was_read, &e);
    if (fsdpck_is_system_error(rc)) {
        *err = e;
        return rc;
    }
    struct fsdpck_problem p = { .file = w->name, .rank = -1, .what = e.message };
    v->result->nunread += rc && !was_read;
    if (rc)
        fsdpck_verifier_report(v, &p);
    return 0;
}

static const struct fsdpck_index *index_of(const struct fsdpck_verifier *v)
{
    return v->src->impl;
}

static int check_metadata(struct fsdpck_verifier *v, const struct fsdpck_commit_view *view, struct fsdpck_error *err)
{
    const struct fsdpck_index *index = index_of(v);
    if (!index->has_metadata)
        return 0;
    char *path = fsdpck_commit_view_path(view, v->src->path, ".metadata", err);
    struct whole_file w = { .path = path,
                            .name = ".metadata",
                            .nbytes = index->metadata_nbytes,
                            .hash = index->metadata_hash.bytes,
                            .differs = "is not the one that belongs to index.json: damaged, or written by a later save "
                                       "of PyTorch into this directory" };
    int rc = path ? check_whole(v, &w, err) : FSDPCK_ERR_NOMEM;
    v->metadata_pending = path && !ends_with(path, "/.metadata");
    free(path);
    return rc;
}

static int check_assets(struct fsdpck_verifier *v, struct fsdpck_error *err)
{
    int rc = 0;
    for (size_t i = 0; !rc && i < v->src->assets.count; i++) {
        const struct source_asset *a = &source_assets(v->src)[i];
        struct whole_file w = { .path = a->from,
                                .name = a->from + strlen(v->src->path) + 1,
                                .nbytes = a->pub.nbytes,
                                .hash = a->hash,
                                .differs = "is not the one that index.json names: damaged, or edited" };
        rc = check_whole(v, &w, err);
    }
    return rc;
}

static bool belongs(const struct fsdpck_verifier *v, const char *name)
{
    if (strcmp(name, ".metadata") == 0)
        return index_of(v)->has_metadata;
    for (size_t i = 0; i < v->src->files.count; i++)
        if (strcmp(source_files(v->src)[i].pub.name, name) == 0)
            return true;
    return !ends_with(name, ".distcp");
}

/* Reports shards and metadata that the index does not list: they belong to another save, or to another number of ranks.
 * Other files are the user's. Files left over by a writer in place are not damage: fsdpck_leftovers() lists them. */
static void check_strays(struct fsdpck_verifier *v, const struct fsdpck_commit_view *view, char *const *names,
                         size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct fsdpck_problem p = { .file = names[i],
                                    .rank = -1,
                                    .what = "does not belong to this checkpoint: index.json does not name it" };
        if (fsdpck_commit_view_has(view, names[i]) && !belongs(v, names[i]))
            fsdpck_verifier_report(v, &p);
    }
}

int fsdpck_verify_others(struct fsdpck_verifier *v, struct fsdpck_error *err)
{
    struct fsdpck_commit_view view = { 0 };
    char **names = NULL;
    size_t count = 0;
    int rc = fsdpck_list_sorted(v->src->io, v->src->path, &names, &count, err);
    if (!rc)
        rc = fsdpck_commit_view(v->src->io, v->src->path, names, count, &view, err);
    if (!rc)
        rc = check_metadata(v, &view, err);
    if (!rc)
        rc = check_assets(v, err);
    if (!rc)
        check_strays(v, &view, names, count);
    fsdpck_commit_view_free(&view);
    fsdpck_list_free(names, count);
    return rc;
}
