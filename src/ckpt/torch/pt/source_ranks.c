/* SPDX-License-Identifier: Apache-2.0 */
/* A folder with files from each rank, as verl saves them: model_world_size_N_rank_R.pt, and optim_… and extra_state_….
 * Together they are one checkpoint. The error names a rank that is missing, duplicate, or from another world size. */
#include "torch/pt/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "hf/assets.h"
#include "hf/ties.h"

static const struct fsdpck_source_ops ops = {
    .kind = "ranks",
    .extents = fsdpck_dcp_extents,
    .verify = fsdpck_pt_verify,
    .read_item = fsdpck_pt_read_item,
    .close = fsdpck_pt_close,
};

/* The kinds of files that a rank saves, in the order of the trees. */
static const char *const kinds[] = { "model", "optim", "extra_state" };
enum { NKINDS = sizeof kinds / sizeof kinds[0] };

struct set {
    struct fsdpck_pt_reading r;
    char **names; /* (nnames) entries of the folder, sorted */
    size_t nnames;
    uint64_t nranks;
    const char *first;          /* name of the file that gave the world size */
    const char **files[NKINDS]; /* (nranks) name of each rank's file; NULL: the rank has no file of this kind */
};

/* Parses decimal digits at *s and advances *s; false if there are none, or too many. */
static bool take_number(const char **s, uint64_t *out)
{
    const char *begin = *s;
    for (*out = 0; **s >= '0' && **s <= '9' && *out <= FSDPCK_MAX_RANKS; ++*s)
        *out = *out * 10 + (uint64_t)(**s - '0');
    return *s > begin && *out <= FSDPCK_MAX_RANKS;
}

static bool take_text(const char **s, const char *text)
{
    size_t n = strlen(text);
    bool there = !strncmp(*s, text, n);
    *s += there ? n : 0;
    return there;
}

static bool parse_name(const char *name, int *kind, uint64_t *nranks, uint64_t *rank)
{
    for (*kind = 0; *kind < NKINDS; ++*kind) {
        const char *s = name;
        if (take_text(&s, kinds[*kind]) && take_text(&s, "_world_size_") && take_number(&s, nranks) &&
            take_text(&s, "_rank_") && take_number(&s, rank) && !strcmp(s, ".pt"))
            return true;
    }
    return false;
}

bool fsdpck_ranks_is(const char *name)
{
    int kind;
    uint64_t nranks, rank;
    return parse_name(name, &kind, &nranks, &rank) && kind == 0;
}

static int list_file(struct set *s, const char *name)
{
    struct fsdpck_error *err = s->r.err;
    const char *folder = s->r.src->path;
    int kind;
    uint64_t nranks, rank;
    if (!parse_name(name, &kind, &nranks, &rank))
        return 0;
    if (!s->first) {
        s->first = name;
        s->nranks = nranks;
    }
    if (nranks != s->nranks)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, folder, "holds files of two worlds: '%s' and '%s'", s->first,
                                name);
    if (rank >= nranks)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, folder,
                                "holds '%s', and a world of %" PRIu64 " ranks has no rank %" PRIu64, name, nranks,
                                rank);
    if (!s->files[kind] && !(s->files[kind] = calloc(nranks, sizeof *s->files[kind])))
        return fsdpck_error_nomem(err, nranks * sizeof *s->files[kind]);
    if (s->files[kind][rank])
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, folder, "holds rank %" PRIu64 " twice: '%s' and '%s'", rank,
                                s->files[kind][rank], name);
    s->files[kind][rank] = name;
    return 0;
}

static int list_files(struct set *s)
{
    int rc = fsdpck_list_sorted(s->r.src->io, s->r.src->path, &s->names, &s->nnames, s->r.err);
    for (size_t i = 0; !rc && i < s->nnames; i++)
        rc = list_file(s, s->names[i]);
    if (!rc && !s->first)
        rc = fsdpck_error_set(s->r.err, FSDPCK_ERR_MISSING, s->r.src->path, "has no file model_world_size_N_rank_R.pt");
    for (int kind = 0; !rc && kind < NKINDS; kind++)
        for (uint64_t rank = 0; !rc && s->files[kind] && rank < s->nranks; rank++)
            if (!s->files[kind][rank])
                rc = fsdpck_error_set(s->r.err, FSDPCK_ERR_MISSING, s->r.src->path,
                                      "rank %" PRIu64 " is missing: '%s_world_size_%" PRIu64 "_rank_%" PRIu64
                                      ".pt' is not there",
                                      rank, kinds[kind], s->nranks, rank);
    return rc;
}

static int read_file(struct set *s, int kind, uint64_t rank, bool trees)
{
    char *path = fsdpck_path_join(s->r.src->path, s->files[kind][rank], s->r.err);
    struct fsdpck_pt_rank_file part = {
        .rank = (int64_t)rank, .nranks = s->nranks, .tree = trees ? kinds[kind] : NULL, .per_rank = kind == NKINDS - 1
    };
    int rc = path ? fsdpck_pt_read(&s->r, path, s->files[kind][rank], &part) : FSDPCK_ERR_NOMEM;
    free(path);
    return rc;
}

/* If there are only model files, names are unchanged; otherwise each kind is a tree. */
static int read_files(struct set *s)
{
    bool trees = false;
    int rc = 0;
    for (int kind = 1; kind < NKINDS; kind++)
        trees |= s->files[kind] != NULL;
    for (int kind = 0; kind < NKINDS; kind++)
        for (uint64_t rank = 0; !rc && s->files[kind] && rank < s->nranks; rank++)
            rc = read_file(s, kind, rank, trees);
    if (rc)
        return rc;
    uint32_t part;
    const char *name = fsdpck_catalogue_incomplete(&s->r.catalogue, (uint32_t)s->nranks, &part);
    if (!name)
        return 0;
    fsdpck_error_set(s->r.err, FSDPCK_ERR_MISSING, s->r.src->path,
                     "the file of rank %u does not list it, files of other ranks do", part);
    fsdpck_error_tensor(s->r.err, name);
    return s->r.err->code;
}

/* verl keeps config.json and the tokenizer in a folder of this name. */
static int read_assets(struct set *s)
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
    struct set s = { .nnames = 0 };
    src->ops = &ops;
    int rc = fsdpck_pt_begin(&s.r, src, err);
    if (!rc)
        rc = list_files(&s);
    if (!rc)
        rc = read_files(&s);
    if (!rc)
        rc = fsdpck_pt_finish(&s.r);
    if (!rc)
        rc = read_assets(&s);
    src->nranks = s.nranks;
    fsdpck_pt_end(&s.r);
    fsdpck_list_free(s.names, s.nnames);
    for (int kind = 0; kind < NKINDS; kind++)
        free(s.files[kind]);
    return rc;
}
