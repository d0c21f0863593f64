/* SPDX-License-Identifier: Apache-2.0 */
/* Joins the metadata of all ranks of a rank-local save. */
#include "torch/dcp/ranks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "engine/files.h"
#include "torch/catalogue.h"

#define MAX_COMPARED_NBYTES (64u << 10) /* limit for an item; larger items are not compared */

struct ranks {
    struct fsdpck_source *src;
    char **names; /* (nnames) entries of the folder, sorted */
    size_t nnames;
    const char **files; /* (nranks) name of each rank's metadata */
    uint64_t nranks;
    struct fsdpck_error *err;
};

/* R of "__R.metadata" (shard false) or "__R_N.distcp" (true); -1 for other names. */
static int64_t rank_of(const char *name, bool shard)
{
    uint64_t rank = 0;
    if (strncmp(name, "__", 2) != 0 || name[2] < '0' || name[2] > '9')
        return -1;
    for (name += 2; *name >= '0' && *name <= '9' && rank <= FSDPCK_MAX_RANKS; name++)
        rank = rank * 10 + (uint64_t)(*name - '0');
    bool fits = shard ? *name == '_' && strlen(name) > 7 && !strcmp(name + strlen(name) - 7, ".distcp")
                      : !strcmp(name, ".metadata");
    return fits && rank <= FSDPCK_MAX_RANKS ? (int64_t)rank : -1;
}

bool fsdpck_dcp_ranks_is(const char *name)
{
    return rank_of(name, false) >= 0;
}

/* The highest rank in any file name gives the number of ranks; every lower rank must have its metadata. */
static int list_ranks(struct ranks *k, const char *folder)
{
    for (size_t i = 0; i < k->nnames; i++)
        for (int shard = 0; shard < 2; shard++) {
            int64_t rank = rank_of(k->names[i], shard);
            k->nranks = rank >= 0 && (uint64_t)rank >= k->nranks ? (uint64_t)rank + 1 : k->nranks;
        }
    if (!(k->files = calloc(k->nranks + 1, sizeof *k->files)))
        return fsdpck_error_nomem(k->err, k->nranks * sizeof *k->files);
    for (size_t i = 0; i < k->nnames; i++) {
        int64_t rank = rank_of(k->names[i], false);
        if (rank >= 0 && k->files[rank])
            return fsdpck_error_set(k->err, FSDPCK_ERR_FORMAT, folder, "holds rank %" PRId64 " twice: '%s' and '%s'",
                                    rank, k->files[rank], k->names[i]);
        if (rank >= 0)
            k->files[rank] = k->names[i];
    }
    for (uint64_t r = 0; r < k->nranks; r++)
        if (!k->files[r])
            return fsdpck_error_set(k->err, FSDPCK_ERR_MISSING, folder,
                                    "rank %" PRIu64 " is missing: '__%" PRIu64
                                    ".metadata' is not there, files of rank %" PRIu64 " are",
                                    r, r, k->nranks - 1);
    return 0;
}

static int read_ranks(struct ranks *k, struct dcp *dcp, const char *below, const char *folder)
{
    struct fsdpck_catalogue catalogue;
    int rc = 0;
    fsdpck_catalogue_begin(&catalogue, k->src, dcp, k->err);
    for (uint64_t r = 0; !rc && r < k->nranks; r++) {
        struct fsdpck_dcp_document doc = { .folder = below, .catalogue = &catalogue, .rank = (uint32_t)r };
        rc = fsdpck_dcp_read_document(k->src, dcp, k->files[r], &doc, k->err);
    }
    if (!rc)
        rc = fsdpck_catalogue_finish(&catalogue, folder);
    if (rc == FSDPCK_ERR_MISSING)
        fsdpck_error_hint(k->err,
                          "each rank's __R.metadata and __R_N.distcp must be in the folder; %" PRIu64 " ranks are",
                          k->nranks);
    fsdpck_catalogue_free(&catalogue);
    return rc;
}

int fsdpck_dcp_read_ranks(struct fsdpck_source *src, struct dcp *dcp, const char *below, struct fsdpck_error *err)
{
    struct ranks k = { .src = src, .err = err };
    char *folder = *below ? fsdpck_path_join(src->path, below, err) : strdup(src->path);
    int rc = folder ? fsdpck_list_sorted(src->io, folder, &k.names, &k.nnames, err)
                    : fsdpck_error_nomem(err, strlen(src->path) + 1);
    if (!rc)
        rc = list_ranks(&k, folder);
    if (!rc)
        rc = read_ranks(&k, dcp, below, folder);
    fsdpck_list_free(k.names, k.nnames);
    free(k.files);
    free(folder);
    return rc;
}

int fsdpck_dcp_rank_tensor(struct dcp_reading *r, const char *name, const struct fsdpck_key *path, uint32_t npath,
                           enum fsdpck_dtype dtype, uint32_t ndim, const uint64_t *shape,
                           const struct dcp_tensor *found)
{
    uint32_t ordinal;
    int rc = fsdpck_catalogue_tensor(r->catalogue, r->file, r->rank, name, path, npath, dtype, ndim, shape, &ordinal);
    for (uint64_t i = 0; !rc && i < found->nchunks; i++) {
        const struct dcp_chunk *chunk = &found->chunks[i];
        struct fsdpck_stored_box piece = { .tensor = ordinal,
                                           .file = chunk->file,
                                           .box = dcp_box(found, ndim, i),
                                           .item = chunk->item,
                                           .item_nbytes = chunk->item_nbytes,
                                           .packed = atomic_load(&chunk->state) & DCP_PACKED };
        rc = fsdpck_catalogue_add_box(r->catalogue, &piece);
    }
    return rc;
}

static bool same_bytes(struct fsdpck_source *src, const struct source_item *a, const struct dcp_item_location *b)
{
    if (a->pub.nbytes != b->nbytes)
        return false;
    if (b->nbytes > MAX_COMPARED_NBYTES)
        return true;
    char *x = malloc(b->nbytes + 1), *y = malloc(b->nbytes + 1);
    bool same = !x || !y || fsdpck_files_read(src, a->file, x, b->nbytes, a->offset, NULL) ||
                fsdpck_files_read(src, b->file, y, b->nbytes, b->offset, NULL) || memcmp(x, y, b->nbytes) == 0;
    free(x);
    free(y);
    return same;
}

bool fsdpck_dcp_rank_item(const struct dcp_reading *r, const char *name, const struct dcp_item_location *location)
{
    char line[512];
    size_t i = fsdpck_names_find(&r->catalogue->items, name);
    if (i == SIZE_MAX)
        return false;
    snprintf(line, sizeof line, "%s is not the same on all ranks: the lowest rank's is taken", name);
    if (r->src->opt.note && !same_bytes(r->src, &source_items(r->src)[i], location))
        r->src->opt.note(r->src->opt.ctx, line);
    return true;
}
