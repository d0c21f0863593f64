/* SPDX-License-Identifier: Apache-2.0 */
/* The hash of the list of tensors, and the file that has the hash in its name. Ranks communicate only through the
 * directory. Without this file, two kinds of errors would be missed: a rank that was called with two tensors exchanged,
 * and a shard file that its rank could not fsync. */
#include "verbs/save_list.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/ioutil.h"
#include "base/json_write.h"

/* ---- the hash: every number as 64 bits, every text with its NUL ---- */

static void add_number(struct fsdpck_hasher *h, uint64_t v)
{
    uint8_t bytes[8];
    fsdpck_put64(bytes, v);
    fsdpck_hasher_add(h, bytes, sizeof bytes);
}

static void add_text(struct fsdpck_hasher *h, const char *text)
{
    fsdpck_hasher_add(h, text, strlen(text) + 1);
}

static void hash_mesh(struct fsdpck_hasher *h, const struct fsdpck_mesh *mesh, struct fsdpck_hash128 *out)
{
    uint64_t nranks = fsdpck_mesh_nranks(mesh);
    add_number(h, mesh->ndim);
    for (uint32_t d = 0; d < mesh->ndim; d++) {
        add_text(h, mesh->names[d]);
        add_number(h, mesh->sizes[d]);
    }
    for (uint64_t i = 0; mesh->ranks && i < nranks; i++)
        add_number(h, mesh->ranks[i]);
    fsdpck_hasher_finish(h, out);
}

static void add_path(struct fsdpck_hasher *h, const struct fsdpck_key *path, uint32_t npath)
{
    add_number(h, npath);
    for (uint32_t k = 0; k < npath; k++) {
        add_number(h, path[k].str ? UINT64_MAX : path[k].position);
        add_text(h, path[k].str ? path[k].str : "");
    }
}

static void add_tensor(struct fsdpck_hasher *h, const struct fsdpck_save_tensor *t, const struct fsdpck_hash128 *mesh)
{
    add_text(h, t->name);
    add_path(h, t->path, t->npath);
    add_text(h, t->alias_of ? t->alias_of : "");
    if (t->alias_of)
        return;
    add_number(h, t->dtype);
    add_number(h, t->ndim);
    for (uint32_t d = 0; d < t->ndim; d++)
        add_number(h, t->shape[d]);
    add_number(h, t->mesh ? t->mesh->ndim : 0);
    for (uint32_t d = 0; t->mesh && d < t->mesh->ndim; d++) {
        add_number(h, t->placements[d].kind);
        add_number(h, t->placements[d].dim);
        add_number(h, t->placements[d].split);
    }
    if (t->mesh)
        fsdpck_hasher_add(h, mesh, sizeof *mesh);
}

/* h is for the list, m for meshes: consecutive tensors usually share one. */
static void hash_list(const struct fsdpck_save_request *req, struct fsdpck_hasher *h, struct fsdpck_hasher *m,
                      struct fsdpck_hash128 *out)
{
    struct fsdpck_hash128 mesh;
    const struct fsdpck_mesh *last = NULL;
    add_number(h, req->nranks);
    for (size_t i = 0; i < req->ntensors; i++) {
        const struct fsdpck_save_tensor *t = &req->tensors[i];
        if (t->mesh && t->mesh != last && !t->alias_of)
            hash_mesh(m, last = t->mesh, &mesh);
        add_tensor(h, t, &mesh);
    }
    add_number(h, req->nitems);
    for (size_t i = 0; i < req->nitems; i++) {
        add_text(h, req->items[i].name);
        add_path(h, req->items[i].path, req->items[i].npath);
    }
    fsdpck_hasher_finish(h, out);
}

int fsdpck_save_list_name(const struct fsdpck_save_request *req, const uint8_t save_id[16],
                          struct fsdpck_save_list *list, struct fsdpck_error *err)
{
    struct fsdpck_hash128 hash;
    char hex[33] = { 0 }, uuid[37];
    struct fsdpck_hasher *h = fsdpck_hasher_new(), *m = fsdpck_hasher_new();
    int rc = h && m ? 0 : fsdpck_error_nomem(err, 0);
    if (!rc) {
        hash_list(req, h, m, &hash);
        fsdpck_hex_format(hash.bytes, sizeof hash.bytes, hex);
        fsdpck_uuid_format(save_id, uuid);
        /* the save id: in place, an undo finds the files by it */
        snprintf(list->name, sizeof list->name, ".list-%s.tmp-%s", hex, uuid);
        snprintf(list->failed, sizeof list->failed, ".fail-%s.tmp-%s", hex, uuid);
    }
    fsdpck_hasher_free(h);
    fsdpck_hasher_free(m);
    return rc;
}

/* ---- the file ---- */

int fsdpck_save_list_put(const struct fsdpck_io *io, const char *dir, const struct fsdpck_save_list *list,
                         struct fsdpck_error *err)
{
    char *path = fsdpck_path_join(dir, list->name, err);
    int fd = path ? io->open(io->ctx, path, FSDPCK_OPEN_WRITE | FSDPCK_OPEN_CREATE, 0666) : -ENOMEM;
    int rc = fd < 0 ? fsdpck_error_sys(err, -fd, path, "cannot create") : 0;
    if (fd >= 0)
        io->close(io->ctx, fd);
    free(path);
    return rc;
}

int fsdpck_save_list_check(const struct fsdpck_io *io, const char *dir, const struct fsdpck_save_list *list,
                           uint32_t rank, struct fsdpck_error *err)
{
    char *path = fsdpck_path_join(dir, list->name, err),
         *failed = path ? fsdpck_path_join(dir, list->failed, err) : NULL;
    int rc = failed ? 0 : FSDPCK_ERR_NOMEM;
    if (!rc && !fsdpck_is_file(io, path) && !fsdpck_is_file(io, failed))
        rc = fsdpck_error_set(err, FSDPCK_ERR_USAGE, dir,
                              "rank %u was called with another list of tensors (names, paths, dtypes, shapes, meshes, "
                              "placements) or items or number of ranks than rank 0",
                              rank);
    free(path);
    free(failed);
    return rc;
}

void fsdpck_save_list_fail(const struct fsdpck_io *io, const char *dir, const struct fsdpck_save_list *list)
{
    char *path = fsdpck_path_join(dir, list->name, NULL),
         *failed = path ? fsdpck_path_join(dir, list->failed, NULL) : NULL;
    if (failed)
        io->rename(io->ctx, path, failed);
    free(path);
    free(failed);
}

int fsdpck_save_list_take(const struct fsdpck_io *io, const char *dir, const struct fsdpck_save_list *list,
                          struct fsdpck_error *err)
{
    char *path = fsdpck_path_join(dir, list->name, err);
    int rc = path ? io->unlink(io->ctx, path) : -ENOMEM;
    free(path);
    if (rc == -ENOENT)
        return fsdpck_error_set(err, FSDPCK_ERR_PEER, dir, "the save was given up: another rank failed, and says why");
    return rc < 0 ? fsdpck_error_sys(err, -rc, dir, "cannot remove the list of tensors") : 0;
}
