/* SPDX-License-Identifier: Apache-2.0 */
/* A folder with files from each rank: together they are one checkpoint. */
#include "torch/pt/file.h"

#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "hf/assets.h"
#include "hf/ties.h"
#include "torch/pt/ranks_set.h"

static const struct fsdpck_source_ops ops = {
    .kind = "ranks",
    .extents = fsdpck_dcp_extents,
    .verify = fsdpck_pt_verify,
    .read_item = fsdpck_pt_read_item,
    .close = fsdpck_pt_close,
};

struct reading {
    struct fsdpck_pt_reading r;
    struct ranks_set set;
};

static const struct ranks_kind *kind_at(const struct reading *s, size_t i)
{
    return (const struct ranks_kind *)s->set.kinds.data + i;
}

static int read_file(struct reading *s, const struct ranks_kind *kind, uint64_t rank, bool trees)
{
    char *path = fsdpck_path_join(s->r.src->path, kind->files[rank], s->r.err);
    struct fsdpck_pt_rank_file role = {
        .rank = (int64_t)rank, .nranks = s->set.nranks, .tree = trees ? kind->name : NULL, .per_rank = kind->per_rank
    };
    int rc = path ? fsdpck_pt_read(&s->r, path, kind->files[rank], &role) : FSDPCK_ERR_NOMEM;
    free(path);
    return rc;
}

/* If there are only model files, names are unchanged; otherwise each kind is a tree. */
static int read_files(struct reading *s)
{
    const bool trees = s->set.kinds.count > 1 || strcmp(kind_at(s, 0)->name, "model") != 0;
    int rc = 0;
    for (size_t i = 0; !rc && i < s->set.kinds.count; i++)
        for (uint64_t rank = 0; !rc && rank < s->set.nranks; rank++)
            rc = read_file(s, kind_at(s, i), rank, trees);
    if (rc)
        return rc;
    uint32_t absent;
    const char *name = fsdpck_catalogue_incomplete(&s->r.catalogue, (uint32_t)s->set.nranks, &absent);
    if (!name)
        return 0;
    fsdpck_error_set(s->r.err, FSDPCK_ERR_MISSING, s->r.src->path,
                     "the file of rank %u does not list it, files of other ranks do", absent);
    fsdpck_error_tensor(s->r.err, name);
    return s->r.err->code;
}

/* verl keeps config.json and the tokenizer in a folder of this name. */
static int read_assets(struct reading *s)
{
    struct fsdpck_source *src = s->r.src;
    char *folder = fsdpck_path_join(src->path, "huggingface", s->r.err);
    if (!folder)
        return FSDPCK_ERR_NOMEM;
    const char *from = fsdpck_is_directory(src->io, folder) ? folder : src->path;
    int rc = fsdpck_ties_add(src, from, s->r.err);
    if (!rc)
        rc = fsdpck_assets_scan(src, from, s->r.err);
    free(folder);
    return rc;
}

int fsdpck_open_ranks(struct fsdpck_source *src, struct fsdpck_error *err)
{
    struct reading s = { .set = { .nnames = 0 } };
    src->ops = &ops;
    int rc = fsdpck_pt_begin(&s.r, src, err);
    if (!rc)
        rc = fsdpck_ranks_set_list(&s.set, src, err);
    if (!rc)
        rc = read_files(&s);
    if (!rc)
        rc = fsdpck_pt_finish(&s.r);
    if (!rc)
        rc = read_assets(&s);
    src->nranks = s.set.nranks;
    fsdpck_pt_end(&s.r);
    fsdpck_ranks_set_free(&s.set);
    return rc;
}
