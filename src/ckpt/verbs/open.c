/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a source: recognises the format at the path, and lets the format's opener fill the catalogue. For each format
 * it knows only how to recognise it. */
#include "verbs/open.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "base/suffix.h"
#include "commit/commit_view.h"
#include "engine/source_impl.h"
#include "verbs/headless.h"
#include "torch/dcp/common.h"
#include "verbs/nearby.h"
#include "view/vllm_source.h"

static const struct {
    const char *kind;
    int (*open)(struct fsdpck_source *src, struct fsdpck_error *err);
} openers[] = {
    { "safetensors", fsdpck_open_safetensors },
    { "hf", fsdpck_open_hf },
    { "dcp", fsdpck_open_dcp },
    { "fsdpck", fsdpck_open_fsdpck },
    { "pt", fsdpck_open_pt },
    { "ranks", fsdpck_open_ranks },
    { "deepspeed", fsdpck_open_deepspeed },
    { "vllm-sharded", fsdpck_open_vllm },
};

/* A file that cannot be examined is an error, not a missing file: otherwise a checkpoint could be taken for one of
 * another kind. */
static bool holds(const struct fsdpck_source *src, const char *name, struct fsdpck_error *err)
{
    struct fsdpck_stat st;
    char *path = fsdpck_path_join(src->path, name, err);
    int rc = path ? src->io->stat(src->io->ctx, path, true, &st) : -ENOENT;
    if (rc < 0 && rc != -ENOENT && rc != -ELOOP)
        fsdpck_error_sys(err, -rc, path, "cannot open");
    free(path);
    return !rc && st.type == FSDPCK_FILE_REGULAR;
}

/* The kinds of files in a folder, by their names. */
struct listing {
    bool safetensors, model, vllm, rank_local, shards, ranks, deepspeed, latest, megatron, pt;
    char distcp[256]; /* a shard file; "": none */
};

static bool counts(const struct fsdpck_source *src, const struct fsdpck_commit_view *view, const char *name,
                   struct fsdpck_error *err)
{
    return fsdpck_commit_view_has(view, name) && holds(src, name, err);
}

static void classify_name(struct listing *l, const char *name)
{
    l->safetensors |= ends_with(name, ".safetensors");
    l->vllm |= fsdpck_vllm_is_file(name, NULL);
    l->model |= strcmp(name, "model.safetensors") == 0 || strcmp(name, "model.safetensors.index.json") == 0;
    l->rank_local |= fsdpck_dcp_ranks_is(name);
    l->shards |= fsdpck_dcp_shards_is(name);
    l->ranks |= fsdpck_ranks_is(name);
    l->deepspeed |= fsdpck_deepspeed_is(name);
    l->latest |= fsdpck_deepspeed_names_tag(name);
    l->megatron |= strcmp(name, FSDPCK_MEGATRON_LATEST) == 0;
    if (ends_with(name, ".distcp") && strlen(name) < sizeof l->distcp && (!*l->distcp || strcmp(name, l->distcp) < 0))
        strcpy(l->distcp, name);
    l->pt |= name[0] != '.' && (ends_with(name, ".bin") || ends_with(name, ".pt") || ends_with(name, ".pth") ||
                                ends_with(name, ".bin.index.json"));
}

static bool names_deepspeed(const struct fsdpck_source *src)
{
    char *folder = fsdpck_deepspeed_tag(src, src->path);
    free(folder);
    return folder != NULL;
}

/* Saves of older releases, in mp_rank_00/, are no torch_dist. */
static bool names_megatron(const struct fsdpck_source *src)
{
    char *folder = fsdpck_megatron_latest(src->io, src->path),
         *below = folder ? fsdpck_path_join(folder, ".metadata", NULL) : NULL,
         *path = below ? fsdpck_path_join(src->path, below, NULL) : NULL;
    const bool there = path && fsdpck_is_file(src->io, path);
    free(path);
    free(below);
    free(folder);
    return there;
}

/* index.json has priority over .metadata, even if it is damaged: an fsdpck checkpoint must never be read as PyTorch's,
 * unverified. Only beside safetensors files, which fsdpck directories never contain, may an index.json be foreign. */
static const char *detect_names(struct fsdpck_source *src, const struct fsdpck_commit_view *view, char *const *names,
                                size_t count, struct fsdpck_error *err)
{
    struct listing l = { 0 };
    for (size_t i = 0; i < count; i++)
        classify_name(&l, names[i]);
    bool dcp =
        l.rank_local || counts(src, view, ".metadata", err) || holds(src, FSDPCK_DCP_FIRST_PART "/.metadata", err);
    bool index = counts(src, view, "index.json", err);
    bool hf = l.safetensors || counts(src, view, "model.safetensors.index.json", err);
    if (err->code != 0)
        return NULL;
    if (index && (dcp || *l.distcp || !l.safetensors))
        return "fsdpck";
    if (!dcp &&
        fsdpck_is_headless(src, l.distcp, err)) /* with .metadata, the files that it names are checked after opening */
        return NULL;
    dcp |= l.megatron && !hf && names_megatron(src);
    dcp |= l.shards && !counts(src, view, "model.safetensors.index.json", err);
    if (dcp || hf)
        return dcp ? "dcp" : l.vllm && !l.model ? "vllm-sharded" : "hf";
    if (l.deepspeed || (l.latest && names_deepspeed(src)))
        return "deepspeed";
    if (l.ranks || l.pt)
        return l.ranks || fsdpck_ranks_are_items(names, count) ? "ranks" : "pt";
    fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, src->path,
                     "no checkpoint found: neither index.json, .metadata, *.safetensors nor *.bin, *.pt is there");
    if (!fsdpck_hint_nearby(src, err))
        fsdpck_error_hint(err, "a source is a safetensors or torch.save file, a folder of them, a PyTorch DCP "
                               "directory or an fsdpck directory");
    return NULL;
}

/* A save in place may leave old and new files together; the record of a committed new save decides the kind. */
static const char *detect_directory(struct fsdpck_source *src, struct fsdpck_error *err)
{
    struct fsdpck_commit_view view = { 0 };
    const char *kind = NULL;
    char **names = NULL;
    size_t count = 0;
    int rc = fsdpck_list_sorted(src->io, src->path, &names, &count, err);
    if (!rc)
        rc = fsdpck_commit_view(src->io, src->path, names, count, &view, err);
    if (!rc && view.record[0] != '\0')
        kind = strcmp(view.record, "index.json") == 0   ? "fsdpck"
               : fsdpck_vllm_is_file(view.record, NULL) ? "vllm-sharded"
                                                        : "hf";
    else if (!rc) {
        fsdpck_commit_view_filter(&view, names, &count);
        kind = detect_names(src, &view, names, count, err);
    }
    fsdpck_commit_view_free(&view);
    fsdpck_list_free(names, count);
    return kind;
}

/* The first bytes of a file decide its kind. Unknown files are opened as safetensors, whose reader gives the best error
 * message. */
static const char *detect_file(const struct fsdpck_source *src, struct fsdpck_error *err)
{
    uint8_t head[512] = { 0 };
    int fd = src->io->open(src->io->ctx, src->path, FSDPCK_OPEN_READ, 0);
    if (fd < 0)
        return fsdpck_error_sys(err, -fd, src->path, "cannot open"), NULL;
    int64_t n = src->io->pread(src->io->ctx, fd, head, sizeof head, 0);
    src->io->close(src->io->ctx, fd);
    if (n < 0 && n != -EINTR)
        return fsdpck_error_sys(err, (int)-n, src->path, "cannot read"), NULL;
    return fsdpck_pt_is(head) ? "pt" : "safetensors";
}

/* NULL: err has the reason. */
static const char *detect(struct fsdpck_source *src, struct fsdpck_error *err)
{
    const struct fsdpck_io *io = src->io;
    struct fsdpck_stat st;
    int rc = io->stat(io->ctx, src->path, true, &st);
    if (rc < 0)
        return fsdpck_error_sys(err, -rc, src->path, "cannot open"), NULL;
    if (st.type == FSDPCK_FILE_REGULAR)
        return detect_file(src, err);
    if (st.type != FSDPCK_FILE_DIRECTORY)
        return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, src->path, "is neither a file nor a directory"), NULL;
    return detect_directory(src, err);
}

static int open_kind(struct fsdpck_source *src, const char *kind, struct fsdpck_error *err)
{
    for (size_t i = 0; i < sizeof openers / sizeof *openers; i++)
        if (strcmp(openers[i].kind, kind) == 0)
            return openers[i].open(src, err);
    return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                            "'%s' is no kind of source; there are safetensors, hf, dcp, fsdpck, pt, ranks, "
                            "deepspeed, vllm-sharded",
                            kind);
}

int fsdpck_source_open_as(const char *path, const char *from, const struct fsdpck_options *opt, bool to_verify,
                          struct fsdpck_source **out, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    *out = NULL;
    err = err ? err : &own;
    struct fsdpck_source *src = fsdpck_source_new(path, opt, err);
    if (!src)
        return err->code;
    src->to_verify = to_verify;
    const bool insists = from != NULL;
    int rc = !from && !(from = detect(src, err)) ? err->code : open_kind(src, from, err);
    if (!rc && strcmp(from, "dcp") == 0)
        rc = fsdpck_headless_check(src, insists, err);
    if (rc) {
        fsdpck_source_close(src);
        return rc;
    }
    *out = src;
    return 0;
}

int fsdpck_source_open(const char *path, const char *from, const struct fsdpck_options *opt, struct fsdpck_source **out,
                       struct fsdpck_error *err)
{
    return fsdpck_source_open_as(path, from, opt, false, out, err);
}
