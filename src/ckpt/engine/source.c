/* SPDX-License-Identifier: Apache-2.0 */
/* Common to all sources: the catalogue that openers fill, and its accessors. Parses no file and knows no format by
 * name; src->ops handles the differences between formats. */
#include <fsdpck/source.h>

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "engine/checks.h"
#include "engine/files.h"
#include "base/pool.h"
#include "engine/source_impl.h"
#include "base/utf8.h"

#define MAX_NAME_NBYTES 65536u

void fsdpck_options_fill(struct fsdpck_options *opt)
{
    if (!opt->io)
        opt->io = &fsdpck_io_posix;
    if (!opt->nthreads)
        opt->nthreads = fsdpck_processors();
    if (!opt->memory_nbytes)
        opt->memory_nbytes = FSDPCK_DEFAULT_MEMORY;
}

struct fsdpck_options fsdpck_source_options(const struct fsdpck_source *src, const struct fsdpck_options *opt)
{
    struct fsdpck_options out = opt ? *opt : src->opt;
    fsdpck_options_fill(&out);
    return out;
}

static int set_path(struct fsdpck_source *src, const char *path, struct fsdpck_error *err)
{
    size_t n = strlen(path);
    if (n == 0)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "the source path is empty");
    while (n > 1 && path[n - 1] == '/')
        n--;
    src->path = fsdpck_arena_strndup(&src->arena, path, n, err);
    return src->path ? 0 : FSDPCK_ERR_NOMEM;
}

struct fsdpck_source *fsdpck_source_new(const char *path, const struct fsdpck_options *opt, struct fsdpck_error *err)
{
    struct fsdpck_source *src = calloc(1, sizeof *src);
    if (!src)
        return fsdpck_error_nomem(err, sizeof *src), NULL;
    src->tensors.item_nbytes = sizeof(struct fsdpck_tensor);
    src->items.item_nbytes = sizeof(struct source_item);
    src->assets.item_nbytes = sizeof(struct source_asset);
    src->files.item_nbytes = sizeof(struct source_file);
    if (opt)
        src->opt = *opt;
    fsdpck_options_fill(&src->opt);
    src->io = src->opt.io;
    if (set_path(src, path, err) == 0 && fsdpck_files_init(src, err) == 0 && (src->checks = fsdpck_checks_new(err)))
        return src;
    fsdpck_source_close(src);
    return NULL;
}

void fsdpck_source_close(struct fsdpck_source *src)
{
    if (!src)
        return;
    fsdpck_checks_free(src->checks); /* while the records still exist */
    if (src->ops && src->ops->close)
        src->ops->close(src);
    fsdpck_files_free(src);
    fsdpck_names_free(&src->names);
    fsdpck_vec_free(&src->tensors);
    fsdpck_vec_free(&src->items);
    fsdpck_vec_free(&src->assets);
    fsdpck_vec_free(&src->files);
    fsdpck_arena_free(&src->arena);
    free(src);
}

/* ---- the catalogue, for openers ---- */

const struct fsdpck_key *fsdpck_source_copy_path(struct fsdpck_source *src, const struct fsdpck_key *path,
                                                 uint32_t npath, struct fsdpck_error *err)
{
    struct fsdpck_key *copy = fsdpck_arena_array(&src->arena, npath, sizeof *copy, err);
    for (uint32_t i = 0; copy && i < npath; i++) {
        copy[i].position = path[i].position;
        if (path[i].str && !(copy[i].str = fsdpck_arena_strndup(&src->arena, path[i].str, strlen(path[i].str), err)))
            return NULL;
    }
    return copy;
}

static int copy_name(struct fsdpck_source *src, const char *file, const char *name, const struct fsdpck_key *path,
                     uint32_t npath, const char **out_name, const struct fsdpck_key **out_path, uint32_t *out_npath,
                     struct fsdpck_error *err)
{
    size_t n = strlen(name);
    if (n > MAX_NAME_NBYTES)
        return fsdpck_error_set(err, FSDPCK_ERR_LIMIT, file, "a name of %zu bytes; at most %u are read", n,
                                MAX_NAME_NBYTES);
    if (!fsdpck_utf8_valid(name, n))
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, file, "a name is not valid UTF-8");
    if (!(*out_name = fsdpck_arena_strndup(&src->arena, name, n, err)))
        return FSDPCK_ERR_NOMEM;
    *out_npath = path ? npath : 1;
    if (path)
        return (*out_path = fsdpck_source_copy_path(src, path, npath, err)) ? 0 : FSDPCK_ERR_NOMEM;
    struct fsdpck_key *key = fsdpck_arena_array(&src->arena, 1, sizeof *key, err);
    if (!key)
        return FSDPCK_ERR_NOMEM;
    key->str = *out_name;
    *out_path = key;
    return 0;
}

/* Adds a tensor with only its names; the caller fills the rest. */
static struct fsdpck_tensor *push_tensor(struct fsdpck_source *src, const char *file, const char *name,
                                         const struct fsdpck_key *path, uint32_t npath, struct fsdpck_error *err)
{
    struct fsdpck_tensor *t = fsdpck_vec_push(&src->tensors, err);
    if (!t || copy_name(src, file, name, path, npath, &t->name, &t->path, &t->npath, err) != 0)
        return NULL;
    t->alias_of = -1;
    size_t old;
    if (fsdpck_names_add(&src->names, t->name, src->tensors.count - 1, &old, err) != 0)
        return NULL;
    if (old != SIZE_MAX) {
        fsdpck_error_set(err, FSDPCK_ERR_FORMAT, file, "tensor '%s' is listed twice", name);
        return NULL;
    }
    return t;
}

struct fsdpck_tensor *fsdpck_source_add_tensor(struct fsdpck_source *src, const char *file, const char *name,
                                               const struct fsdpck_key *path, uint32_t npath, enum fsdpck_dtype dtype,
                                               uint32_t ndim, const uint64_t *shape, struct fsdpck_error *err)
{
    if (ndim > FSDPCK_MAX_DIMS) {
        fsdpck_error_set(err, FSDPCK_ERR_LIMIT, file, "tensor '%s' has %u dimensions; at most %d are read", name, ndim,
                         FSDPCK_MAX_DIMS);
        return NULL;
    }
    struct fsdpck_tensor *t = push_tensor(src, file, name, path, npath, err);
    uint64_t *copy = t ? fsdpck_arena_array(&src->arena, ndim, sizeof *copy, err) : NULL;
    if (!copy)
        return NULL;
    if (ndim)
        memcpy(copy, shape, ndim * sizeof *copy);
    t->dtype = dtype;
    t->ndim = ndim;
    t->shape = copy;
    if (!checked_shape(shape, ndim, fsdpck_dtype_info(dtype)->nbytes, &t->nelem, &t->nbytes)) {
        fsdpck_error_set(err, FSDPCK_ERR_FORMAT, file, "tensor '%s': the product of its shape overflows", name);
        return NULL;
    }
    return t;
}

int fsdpck_source_add_alias(struct fsdpck_source *src, const char *file, const char *name,
                            const struct fsdpck_key *path, uint32_t npath, size_t target, struct fsdpck_error *err)
{
    struct fsdpck_tensor *t = push_tensor(src, file, name, path, npath, err);
    if (!t)
        return err && err->code ? err->code : FSDPCK_ERR_NOMEM;
    const struct fsdpck_tensor *to = &source_tensors(src)[target];
    struct fsdpck_tensor names = *t;
    *t = *to;
    t->name = names.name;
    t->path = names.path;
    t->npath = names.npath;
    t->alias_of = to->alias_of >= 0 ? to->alias_of : (int64_t)target;
    return 0;
}

int fsdpck_source_stat_file(struct fsdpck_source *src, const char *path, struct fsdpck_stat *st,
                            struct fsdpck_error *err)
{
    int rc = src->io->stat(src->io->ctx, path, true, st);
    if (rc < 0)
        return fsdpck_error_sys(err, -rc, path, "cannot open");
    return st->type == FSDPCK_FILE_REGULAR ? 0
                                           : fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "is not a regular file");
}

int fsdpck_source_list_file(struct fsdpck_source *src, const char *path, const char *name, int64_t rank,
                            const struct fsdpck_stat *st, uint32_t *ordinal, struct fsdpck_error *err)
{
    if (src->files.count >= UINT32_MAX)
        return fsdpck_error_set(err, FSDPCK_ERR_LIMIT, src->path, "too many files");
    struct source_file *f = fsdpck_vec_push(&src->files, err);
    if (!f || !(f->path = fsdpck_arena_strndup(&src->arena, path, strlen(path), err)) ||
        !(f->pub.name = fsdpck_arena_strndup(&src->arena, name, strlen(name), err)))
        return FSDPCK_ERR_NOMEM;
    f->pub.nbytes = st->nbytes;
    f->pub.rank = rank;
    f->inode = st->inode;
    f->device = st->device;
    if (ordinal)
        *ordinal = (uint32_t)(src->files.count - 1);
    return 0;
}

int fsdpck_source_add_file(struct fsdpck_source *src, const char *path, const char *name, int64_t rank,
                           uint32_t *ordinal, struct fsdpck_error *err)
{
    struct fsdpck_stat st;
    int rc = fsdpck_source_stat_file(src, path, &st, err);
    return !rc ? fsdpck_source_list_file(src, path, name, rank, &st, ordinal, err) : rc;
}

struct source_item *fsdpck_source_add_item(struct fsdpck_source *src, const char *name, const struct fsdpck_key *path,
                                           uint32_t npath, struct fsdpck_error *err)
{
    struct source_item *i = fsdpck_vec_push(&src->items, err);
    if (!i || copy_name(src, src->path, name, path, npath, &i->pub.name, &i->pub.path, &i->pub.npath, err) != 0)
        return NULL;
    return i;
}

struct source_asset *fsdpck_source_add_asset(struct fsdpck_source *src, const char *path, const char *from,
                                             uint64_t nbytes, struct fsdpck_error *err)
{
    struct source_asset *a = fsdpck_vec_push(&src->assets, err);
    if (!a || !(a->pub.path = fsdpck_arena_strndup(&src->arena, path, strlen(path), err)) ||
        !(a->from = fsdpck_arena_strndup(&src->arena, from, strlen(from), err)))
        return NULL;
    a->pub.nbytes = nbytes;
    return a;
}

/* ---- items ---- */

int fsdpck_source_read_item_part(struct fsdpck_source *src, size_t item, void *buf, uint64_t nbytes, uint64_t at,
                                 struct fsdpck_error *err)
{
    const struct source_item *i = &source_items(src)[item];
    if (i->data) {
        memcpy(buf, i->data + at, nbytes);
        return 0;
    }
    if (src->ops->read_item)
        return src->ops->read_item(src, item, buf, nbytes, at, err);
    return fsdpck_files_read(src, i->file, buf, nbytes, i->offset + at, err);
}

int fsdpck_source_read_item(struct fsdpck_source *src, size_t item, void *dst, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    return fsdpck_source_read_item_part(src, item, dst, source_items(src)[item].pub.nbytes, 0, err ? err : &own);
}

/* ---- accessors ---- */

const char *fsdpck_source_kind(const struct fsdpck_source *src)
{
    return src->ops->kind;
}
bool fsdpck_source_is_sharded(const struct fsdpck_source *src)
{
    static const char *const sharded[] = { "fsdpck", "dcp", "ranks", "deepspeed", "vllm-sharded" };
    for (size_t i = 0; i < sizeof sharded / sizeof *sharded; i++)
        if (strcmp(src->ops->kind, sharded[i]) == 0)
            return true;
    return false;
}

const char *fsdpck_source_path(const struct fsdpck_source *src)
{
    return src->path;
}
const char *fsdpck_source_save_id(const struct fsdpck_source *src)
{
    return src->save_id;
}
const char *fsdpck_source_state(const struct fsdpck_source *src)
{
    return src->state;
}
uint64_t fsdpck_source_nranks(const struct fsdpck_source *src)
{
    return src->nranks;
}
bool fsdpck_source_is_compressed(const struct fsdpck_source *src)
{
    return src->compressed || src->streamed;
}
size_t fsdpck_source_ntensors(const struct fsdpck_source *src)
{
    return src->tensors.count;
}
const struct fsdpck_tensor *fsdpck_source_tensor(const struct fsdpck_source *src, size_t i)
{
    return &source_tensors(src)[i];
}
size_t fsdpck_source_nitems(const struct fsdpck_source *src)
{
    return src->items.count;
}
const struct fsdpck_item *fsdpck_source_item(const struct fsdpck_source *src, size_t i)
{
    return &source_items(src)[i].pub;
}
size_t fsdpck_source_nassets(const struct fsdpck_source *src)
{
    return src->assets.count;
}
const struct fsdpck_asset *fsdpck_source_asset(const struct fsdpck_source *src, size_t i)
{
    return &source_assets(src)[i].pub;
}
size_t fsdpck_source_nfiles(const struct fsdpck_source *src)
{
    return src->files.count;
}
const struct fsdpck_file *fsdpck_source_file(const struct fsdpck_source *src, size_t i)
{
    return &source_files(src)[i].pub;
}

const struct fsdpck_tensor *fsdpck_source_find(const struct fsdpck_source *src, const char *name)
{
    size_t i = fsdpck_names_find(&src->names, name);
    return i == SIZE_MAX ? NULL : &source_tensors(src)[i];
}
