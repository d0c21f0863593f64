/* SPDX-License-Identifier: Apache-2.0 */
/* Exports to Hugging Face safetensors, start to end: choose, lay out, move, write headers, assets and index, commit.
 * The transfer moves the bytes; the commit turns them into the output. */
#include <fsdpck/export.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verbs/base_check.h"
#include "verbs/export_ranks.h"
#include "verbs/out_name.h"
#include "engine/files.h"
#include "tensor/box.h"
#include "view/names.h"
#include "base/ioutil.h"
#include "base/suffix.h"
#include "base/stop.h"

/* ---- staging ---- */

static const char *only_file(const struct export *x)
{
    return x->with->file ? x->with->file : "model.safetensors";
}

static int begin(struct export *x)
{
    char of_rank[128];
    const char *record = x->one_file ? NULL : x->layout.nfiles > 1 ? "model.safetensors.index.json" : only_file(x);
    if (x->req->vllm_ranks) {
        fsdpck_export_ranks_name(x, 0, NULL, of_rank, sizeof of_rank);
        record = of_rank;
    }
    int rc = x->io->random(x->io->ctx, x->uuid, sizeof x->uuid);
    if (rc < 0)
        return fsdpck_error_sys(x->err, -rc, NULL, "cannot get random bytes");
    const char **new_files = calloc(x->assets.count + 1, sizeof *new_files);
    if (!new_files)
        return fsdpck_error_nomem(x->err, (x->assets.count + 1) * sizeof *new_files);
    for (size_t i = 0; i < x->assets.count; i++)
        new_files[i] = x->assets.list[i].path;
    rc = fsdpck_commit_begin_with(x->io, x->req->out, x->one_file ? FSDPCK_COMMIT_FILE : FSDPCK_COMMIT_FOLDER, record,
                                  x->uuid, x->req->force, new_files, x->assets.count, &x->commit, x->err);
    free(new_files);
    return rc;
}

/* Whether a file is the commit's record itself: the only one, or the first of the first rank. */
static bool is_record(const struct export *x, size_t i)
{
    return x->req->vllm_ranks ? i == 0 : x->layout.nfiles == 1;
}

static int name_file(struct export *x, size_t i)
{
    char uuid[37], name[128];
    const bool several = !is_record(x, i);
    fsdpck_uuid_format(x->uuid, uuid);
    if (x->req->vllm_ranks)
        fsdpck_export_ranks_name(x, i, several && fsdpck_commit_in_place(x->commit) ? uuid : NULL, name, sizeof name);
    else if (several)
        snprintf(name, sizeof name, "model-%05zu-of-%05zu%s%s.safetensors", i + 1, x->layout.nfiles,
                 fsdpck_commit_in_place(x->commit) ? "-" : "", fsdpck_commit_in_place(x->commit) ? uuid : "");
    else
        snprintf(name, sizeof name, "%s", only_file(x));
    x->names[i] = strdup(name);
    if (several)
        x->paths[i] = fsdpck_path_join(fsdpck_commit_dir(x->commit), name, x->err);
    else /* the file is the commit's record, or the whole output */
        x->paths[i] = strdup(x->one_file ? fsdpck_commit_dir(x->commit) : fsdpck_commit_record(x->commit));
    if (!x->names[i] || !x->paths[i])
        return fsdpck_error_nomem(x->err, sizeof name);
    const struct export_file *f = &x->layout.files[i];
    x->files[i] = (struct fsdpck_out_file){ x->paths[i], f->header.nbytes + f->data_nbytes };
    x->result.written_nbytes += x->files[i].nbytes;
    return several ? fsdpck_commit_created(x->commit, name, x->err) : 0;
}

static int name_files(struct export *x)
{
    size_t n = x->layout.nfiles;
    int rc = 0;
    x->names = calloc(n, sizeof *x->names);
    x->paths = calloc(n, sizeof *x->paths);
    x->files = calloc(n, sizeof *x->files);
    if (!x->names || !x->paths || !x->files)
        return fsdpck_error_nomem(x->err, n * sizeof *x->files);
    for (size_t i = 0; i < n && !rc; i++)
        rc = name_file(x, i);
    return rc;
}

/* ---- payload and headers ---- */

static int by_chosen(const void *a, const void *b)
{
    const struct fsdpck_out_chunk *x = a, *y = b;
    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    return x->file != y->file ? (x->file < y->file ? -1 : 1) : x->payload < y->payload ? -1 : x->payload > y->payload;
}

static const struct fsdpck_tensor *stored(const struct export *x, const struct export_tensor *e)
{
    return fsdpck_source_tensor(x->src, x->selection.tensors[e->chosen].source);
}

/* Adds the chunks of a tensor; returns how many. Files are created full of zeros, so padding needs none. */
static size_t make_tensor_chunks(const struct export *x, const struct export_tensor *e, struct fsdpck_out_chunk *chunks)
{
    static const uint64_t origin[FSDPCK_MAX_DIMS];
    const struct export_piece all = { origin, stored(x, e)->shape }, *pieces = e->pieces ? e->pieces : &all;
    const size_t n = e->pieces ? e->npieces : 1;
    uint64_t at = x->layout.files[e->file].header.nbytes + e->begin;
    for (size_t i = 0; i < n; i++) {
        chunks[i] = (struct fsdpck_out_chunk){ .tensor = e->chosen,
                                               .file = (uint32_t)e->file,
                                               .offset = pieces[i].offset,
                                               .size = pieces[i].size,
                                               .payload = at };
        at += fsdpck_box_nelem(pieces[i].size, stored(x, e)->ndim) * fsdpck_dtype_info(e->dtype)->nbytes;
    }
    return n;
}

static size_t make_chunks(const struct export *x, struct fsdpck_out_chunk *chunks)
{
    const struct export_tensor *e = x->layout.tensors.data;
    size_t n = 0;
    for (size_t i = 0; i < x->layout.tensors.count; i++)
        if (e[i].nbytes && !e[i].data)
            n += make_tensor_chunks(x, &e[i], chunks + n);
    if (n)
        qsort(chunks, n, sizeof *chunks, by_chosen);
    return n;
}

static size_t count_chunks(const struct export *x)
{
    const struct export_tensor *e = x->layout.tensors.data;
    size_t n = 0;
    for (size_t i = 0; i < x->layout.tensors.count; i++)
        n += e[i].pieces ? e[i].npieces : 1;
    return n;
}

static bool source_has_contents(const struct fsdpck_source *src)
{
    for (size_t i = 0; i < fsdpck_source_ntensors(src); i++)
        if (fsdpck_source_tensor(src, i)->has_content)
            return true;
    return false;
}

static int move_payload(struct export *x)
{
    size_t n = count_chunks(x), ncontents = source_has_contents(x->src) ? x->selection.ntensors : 0;
    struct fsdpck_out_chunk *chunks = calloc(n ? n : 1, sizeof *chunks);
    struct fsdpck_transfer_content *contents =
        ncontents ? calloc(ncontents, sizeof *contents) : NULL; /* NULL: no contents to compare with */
    struct fsdpck_transfer t = { .src = x->src,
                                 .selection = &x->selection,
                                 .files = x->files,
                                 .nfiles = x->layout.nfiles,
                                 .chunks = chunks,
                                 .opt = &x->opt,
                                 .contents = contents,
                                 .edit = x->with->edit };
    int rc = chunks && (contents || !ncontents) ? 0 : fsdpck_error_nomem(x->err, n * sizeof *chunks);
    if (!rc) {
        t.nchunks = make_chunks(x, chunks);
        rc = fsdpck_transfer_run(&t, &x->result, x->err);
    }
    if (!rc)
        rc = fsdpck_source_check(x->src, x->err);
    free(chunks);
    free(contents);
    return rc;
}

static int write_made(struct export *x, struct fsdpck_out_files *out)
{
    const struct export_tensor *e = x->layout.tensors.data;
    int rc = 0;
    for (size_t i = 0; i < x->layout.tensors.count && !rc; i++)
        if (e[i].data)
            rc = fsdpck_out_files_write(out, (uint32_t)e[i].file, e[i].data, e[i].nbytes,
                                        x->layout.files[e[i].file].header.nbytes + e[i].begin, x->err);
    return rc;
}

static int write_headers(struct export *x)
{
    struct fsdpck_out_files *out = fsdpck_out_files_new(x->io, x->files, x->layout.nfiles, x->err);
    int rc = out ? write_made(x, out) : FSDPCK_ERR_NOMEM;
    for (size_t i = 0; i < x->layout.nfiles && !rc; i++) {
        const struct fsdpck_text *h = &x->layout.files[i].header;
        rc = fsdpck_out_files_write(out, (uint32_t)i, h->data, h->nbytes, 0, x->err);
        if (!rc)
            rc = fsdpck_out_files_sync(out, (uint32_t)i, x->err);
    }
    fsdpck_out_files_free(out);
    return rc;
}

/* ---- the files around the weights ---- */

/* In place, an asset gets its fixed name by a later rename. Until then it, or the top folder in its path, is called
 * NAME.tmp-UUID. */
static int set_aside(struct export *x, struct fsdpck_asset_out *a)
{
    char uuid[37];
    size_t first = strcspn(a->path, "/"), nbytes = strlen(a->path) + sizeof uuid + 5;
    char *path = malloc(nbytes);
    if (!path)
        return fsdpck_error_nomem(x->err, nbytes);
    fsdpck_uuid_format(x->uuid, uuid);
    snprintf(path, nbytes, "%.*s.tmp-%s%s", (int)first, a->path, uuid, a->path + first);
    free(a->path);
    a->path = path;
    return fsdpck_commit_created(x->commit, path, x->err);
}

static int write_assets(struct export *x)
{
    int rc = 0;
    for (size_t i = 0; i < x->assets.count && !rc && fsdpck_commit_in_place(x->commit); i++)
        rc = set_aside(x, &x->assets.list[i]);
    if (!rc)
        rc = fsdpck_assets_write(x->io, &x->assets, fsdpck_commit_dir(x->commit), x->err);
    for (size_t i = 0; i < x->assets.count; i++)
        x->result.written_nbytes += x->assets.list[i].nbytes;
    return rc;
}

static int write_index(struct export *x)
{
    struct fsdpck_text text = { 0 };
    int rc = fsdpck_export_index(&x->layout, (const char *const *)x->names, &text, x->err);
    if (!rc)
        rc = fsdpck_write_file(x->io, fsdpck_commit_record(x->commit), text.data, text.nbytes, x->err);
    x->result.written_nbytes += text.nbytes;
    fsdpck_text_free(&text);
    return rc;
}

/* ---- the whole export ---- */

static int run(struct export *x)
{
    int rc = fsdpck_export_choose(x);
    if (!rc)
        rc = begin(x);
    if (!rc)
        rc = name_files(x);
    if (!rc)
        rc = move_payload(x);
    if (!rc)
        rc = write_headers(x);
    if (!rc && !x->one_file)
        rc = write_assets(x);
    if (!rc && x->layout.nfiles > 1 && !x->req->vllm_ranks)
        rc = write_index(x);
    if (!rc && fsdpck_stop_asked(x->opt.stop))
        rc = fsdpck_error_set(x->err, FSDPCK_ERR_STOPPED, NULL, "stopped");
    fsdpck_files_close_idle(x->src);
    if (rc)
        return rc;
    struct fsdpck_commit *c = x->commit;
    x->commit = NULL; /* finish frees it even after failure */
    return fsdpck_commit_finish(c, x->err);
}

static void release(struct export *x)
{
    fsdpck_commit_abandon(x->commit);
    for (size_t i = 0; i < x->layout.nfiles; i++) {
        free(x->names ? x->names[i] : NULL);
        free(x->paths ? x->paths[i] : NULL);
    }
    free(x->names);
    free(x->paths);
    free(x->files);
    fsdpck_export_layout_free(&x->layout);
    fsdpck_arena_free(&x->arena);
    fsdpck_assets_free(&x->assets);
    fsdpck_selection_free(&x->selection);
}

static void fill_options(struct export *x, const struct fsdpck_options *opt)
{
    const struct fsdpck_options *of_source = &x->src->opt;
    x->opt = opt ? *opt : *of_source;
    if (!x->opt.nthreads)
        x->opt.nthreads = of_source->nthreads;
    if (!x->opt.memory_nbytes)
        x->opt.memory_nbytes = of_source->memory_nbytes;
    x->opt.io = x->io;
}

/* Under torchtitan's names, the rows of a Llama's q and k have an order that no reader of safetensors expects; the
 * model would be silently wrong. */
static int check_names(struct export *x)
{
    if (!fsdpck_source_is_torchtitan(x->src))
        return fsdpck_source_check_published(x->src, x->req->assets, x->err);
    fsdpck_error_set(
        x->err, FSDPCK_ERR_UNSUPPORTED, fsdpck_source_path(x->src),
        "has the names and the row order of q and k of torchtitan (or Meta): as a Hugging Face model it would "
        "be wrong");
    fsdpck_error_hint(x->err,
                      "'--names hf --assets FOLDER' renames and reorders; '--names torchtitan' leaves it as it is");
    return x->err->code;
}

/* Checks options for folders: refuses --max-shard-size for one file, gives a note about --assets. */
static int check_one_file(const struct export *x)
{
    if (x->req->max_shard_nbytes)
        return fsdpck_error_set(x->err, FSDPCK_ERR_USAGE, x->req->out,
                                "is one file: --max-shard-size limits the files of a folder");
    if (x->req->assets && x->opt.note)
        x->opt.note(x->opt.ctx,
                    "OUT is one file: config.json of --assets is read, and no file of that folder is copied");
    return 0;
}

/* from_pretrained loads no folder of weights alone. An adapter or a merged model is written by whoever knows. */
static void note_without_config(const struct export *x)
{
    static const char config[] = "config.json";
    bool found = x->one_file || x->with->edit || x->with->selection || x->src->base;
    for (size_t i = 0; i < x->assets.count && !found; i++) /* in place, its path ends in .tmp-UUID */
        found = strncmp(x->assets.list[i].path, config, sizeof config - 1) == 0;
    if (!found && x->opt.note)
        x->opt.note(x->opt.ctx, "the folder has no config.json, which from_pretrained needs: --assets FOLDER copies it "
                                "and the tokenizer from the model's folder");
}

int fsdpck_export_with(struct fsdpck_source *src, const struct fsdpck_export_request *req,
                       const struct fsdpck_export_with *with, const struct fsdpck_options *opt,
                       struct fsdpck_transfer_result *result, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    struct export x = { .src = src,
                        .req = req,
                        .with = with,
                        .io = src->io,
                        .err = err ? err : &own,
                        .layout.tensors = FSDPCK_VEC(struct export_tensor) };
    int64_t began = src->io->now_ns(src->io->ctx);
    fill_options(&x, opt);
    x.one_file = ends_with(req->out, ".safetensors");
    int rc = x.one_file ? check_one_file(&x)
                        : fsdpck_out_is_folder(
                              x.io, req->out, "a folder is written, or one file where OUT ends in .safetensors", x.err);
    if (!rc)
        rc = req->vllm_ranks || req->vllm_expert_parallel ? fsdpck_export_ranks_begin(&x) : check_names(&x);
    if (!rc)
        rc = fsdpck_base_check_quick(src, &x.opt, x.err);
    if (!rc)
        rc = run(&x);
    x.result.ntensors = x.layout.tensors.count;
    x.result.nfiles = x.layout.nfiles;
    x.result.nleft_tensors = x.selection.nleft_tensors;
    x.result.nleft_items = x.selection.nleft_items + x.selection.nitems; /* safetensors holds no items */
    x.result.seconds = (double)(src->io->now_ns(src->io->ctx) - began) * 1e-9;
    if (!rc && result)
        *result = x.result;
    if (!rc)
        note_without_config(&x);
    release(&x);
    return rc;
}

int fsdpck_export(struct fsdpck_source *src, const struct fsdpck_export_request *req, const struct fsdpck_options *opt,
                  struct fsdpck_transfer_result *result, struct fsdpck_error *err)
{
    struct fsdpck_export_with with = { 0 };
    struct fsdpck_text metadata = { 0 };
    const struct fsdpck_options *o = opt ? opt : &src->opt;
    int rc = 0;
    if (req->metadata_key) {
        fsdpck_text_printf(&metadata, ",");
        fsdpck_text_json(&metadata, req->metadata_key);
        fsdpck_text_printf(&metadata, ":");
        fsdpck_text_json(&metadata, req->metadata_value);
        rc = fsdpck_text_check(&metadata, err);
        with.metadata = metadata.data;
    }
    if (!rc)
        rc = fsdpck_export_with(src, req, &with, opt, result, err);
    fsdpck_text_free(&metadata);
    if (!rc && src->base && o->note && !ends_with(req->out, ".safetensors"))
        o->note(o->ctx, "holds adapters without their base: merge-lora gives a model's weights, export-lora a folder "
                        "that PEFT loads");
    return rc;
}
