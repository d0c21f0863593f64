/* Export to Hugging Face safetensors, start to end: choose, lay out, move, write headers, assets and index, commit. How bytes move is the
 * transfer's business, how they become the output the commit's. */
#include <fsdpck/export.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hf/assets.h"
#include "base/checked.h"
#include "commit/commit.h"
#include "hf/config.h"
#include "verbs/base_look.h"
#include "verbs/export_layout.h"
#include "engine/files.h"
#include "verbs/export_with.h"
#include "base/ioutil.h"
#include "base/suffix.h"
#include "base/stop.h"
#include "engine/transfer.h"

#define DEFAULT_SHARD_NBYTES 5000000000u /* as transformers cuts: decimal */

struct export {
    struct fsdpck_source *src;
    const struct fsdpck_export_request *req;
    const struct fsdpck_export_with *with;
    struct fsdpck_options opt; /* defaults filled in */
    const struct fsdpck_io *io;
    bool one_file;
    struct fsdpck_selection selection;
    struct fsdpck_assets_out assets;
    struct export_layout layout;
    struct fsdpck_commit *commit;
    uint8_t uuid[16];
    char **names;                  /* (layout.nfiles) in the folder */
    char **paths;                  /* (layout.nfiles) where they are made */
    struct fsdpck_out_file *files; /* (layout.nfiles) */
    struct fsdpck_transfer_result result;
    struct fsdpck_error *err;
};

static void say(const struct export *x, const char *fmt, ...) FSDPCK_PRINTF(2, 3);
static void say(const struct export *x, const char *fmt, ...)
{
    char line[1024];
    va_list ap;
    if (!x->opt.note)
        return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    x->opt.note(x->opt.ctx, line);
}

/* ---- what goes out ---- */

static int unsupported(const struct export *x, const char *name, enum fsdpck_dtype dtype, const char *why)
{
    fsdpck_error_set(x->err, FSDPCK_ERR_UNSUPPORTED, fsdpck_source_path(x->src), "dtype %s: %s", fsdpck_dtype_info(dtype)->name, why);
    fsdpck_error_tensor(x->err, name);
    return FSDPCK_ERR_UNSUPPORTED;
}

static int add_tensor(struct export *x, const char *name, size_t stored)
{
    const struct fsdpck_chosen *c = &x->selection.tensors[stored];
    const struct fsdpck_tensor *t = fsdpck_source_tensor(x->src, c->source);
    uint64_t nelem, nbytes;
    if (!fsdpck_dtype_info(c->dtype)->safetensors)
        return unsupported(x, name, c->dtype, "safetensors has no such type");
    if (c->dtype == FSDPCK_FLOAT4_E2M1FN_X2 && (t->ndim == 0 || t->shape[t->ndim - 1] > INT64_MAX / 2))
        return unsupported(x, name, c->dtype, "safetensors counts single values along the last dimension, and this shape cannot be doubled there");
    if (strcmp(name, "__metadata__") == 0)
        return unsupported(x, name, c->dtype, "safetensors keeps this name for itself");
    if (!checked_shape(t->shape, t->ndim, fsdpck_dtype_info(c->dtype)->nbytes, &nelem, &nbytes))
        return unsupported(x, name, c->dtype, "the tensor is too large for it");
    struct export_tensor *e = fsdpck_vec_push(&x->layout.tensors, x->err);
    if (!e)
        return FSDPCK_ERR_NOMEM;
    *e = (struct export_tensor){ .name = name, .chosen = (uint32_t)stored, .dtype = c->dtype, .ndim = t->ndim, .shape = t->shape,
                                 .nbytes = nbytes, .order = x->layout.tensors.count - 1 };
    if (x->with->shapes && x->with->shapes[stored]) {
        e->ndim = x->with->ndims[stored];
        e->shape = x->with->shapes[stored];
    }
    return 0;
}

static int add_made(struct export *x, const struct fsdpck_export_made *m)
{
    struct export_tensor *e = fsdpck_vec_push(&x->layout.tensors, x->err);
    uint64_t nelem, nbytes;
    if (!e || !checked_shape(m->shape, m->ndim, fsdpck_dtype_info(m->dtype)->nbytes, &nelem, &nbytes))
        return fsdpck_error_nomem(x->err, sizeof *e);
    *e = (struct export_tensor){ .name = m->name, .made = m->data, .dtype = m->dtype, .ndim = m->ndim, .shape = m->shape, .nbytes = nbytes,
                                 .order = x->layout.tensors.count - 1 };
    return 0;
}

static bool is_head_of(const char *head, const char *embedding)
{
    const char *h = fsdpck_config_tied_head(embedding);
    return h && strcmp(h, head) == 0;
}

static void rename_added(struct export *x, const char *old, const char *name)
{
    struct export_tensor *e = x->layout.tensors.data;
    for (size_t i = 0; i < x->layout.tensors.count; i++)
        if (strcmp(e[i].name, old) == 0)
            e[i].name = name;
}

/* A model that config.json calls tied is written as transformers does: the embedding alone, under its own name. */
static int add_alias(struct export *x, size_t i, bool tied)
{
    const struct fsdpck_chosen *alias = &x->selection.tensors[i], *to = &x->selection.tensors[alias->alias_of];
    if (tied && is_head_of(alias->name, to->name))
        return 0;
    if (tied && is_head_of(to->name, alias->name)) {
        rename_added(x, to->name, alias->name);
        return 0;
    }
    say(x, "'%s' is a second name of '%s': safetensors has no such thing, so its bytes are written twice", alias->name, to->name);
    return add_tensor(x, alias->name, (size_t)alias->alias_of);
}

static int list_tensors(struct export *x)
{
    bool tied;
    int rc = fsdpck_assets_tied(x->io, &x->assets, &tied, x->err);
    for (size_t i = 0; i < x->selection.ntensors && rc == 0; i++)
        rc = x->selection.tensors[i].alias_of < 0 ? add_tensor(x, x->selection.tensors[i].name, i) : add_alias(x, i, tied);
    for (size_t i = 0; i < x->with->nmade && rc == 0; i++)
        rc = add_made(x, &x->with->made[i]);
    if (rc == 0 && x->selection.nitems)
        say(x, "%zu non-tensor value%s left behind: safetensors holds tensors only", x->selection.nitems, x->selection.nitems == 1 ? " is" : "s are");
    return rc;
}

static int choose_tensors(struct export *x)
{
    if (!x->with->selection)
        return fsdpck_selection_make(x->src, &x->req->select, FSDPCK_TREE_MODEL, &x->selection, x->err);
    x->selection = *x->with->selection;
    x->selection.arena = (struct fsdpck_arena){ 0 }; /* stays with its owner */
    return 0;
}

static int gather_assets(struct export *x)
{
    const struct fsdpck_export_request *req = x->req;
    if (!x->with->assets)
        return fsdpck_assets_gather(x->src, req->assets, req->select.cast, req->select.dtype, &x->assets, x->err);
    x->assets = *x->with->assets;
    *x->with->assets = (struct fsdpck_assets_out){ 0 };
    return 0;
}

static int choose(struct export *x)
{
    uint64_t max = x->one_file || x->with->file ? UINT64_MAX : x->req->max_shard_nbytes ? x->req->max_shard_nbytes : DEFAULT_SHARD_NBYTES;
    int rc = choose_tensors(x);
    if (rc == 0)
        rc = gather_assets(x);
    if (rc == 0)
        rc = list_tensors(x);
    return rc ? rc : fsdpck_export_lay_out(&x->layout, max, x->with->metadata, x->err);
}

/* ---- the staging place ---- */

static const char *only_file(const struct export *x) { return x->with->file ? x->with->file : "model.safetensors"; }

static int begin(struct export *x)
{
    const char *record = x->one_file ? NULL : x->layout.nfiles > 1 ? "model.safetensors.index.json" : only_file(x);
    int rc = x->io->random(x->io->ctx, x->uuid, sizeof x->uuid);
    if (rc < 0)
        return fsdpck_error_sys(x->err, -rc, NULL, "cannot get random bytes");
    return fsdpck_commit_begin(x->io, x->req->out, x->one_file ? FSDPCK_COMMIT_FILE : FSDPCK_COMMIT_FOLDER, record, x->uuid, x->req->force,
                               &x->commit, x->err);
}

static int name_file(struct export *x, size_t i)
{
    char uuid[37], name[128];
    bool several = x->layout.nfiles > 1;
    fsdpck_uuid_format(x->uuid, uuid);
    if (several)
        snprintf(name, sizeof name, "model-%05zu-of-%05zu%s%s.safetensors", i + 1, x->layout.nfiles, fsdpck_commit_in_place(x->commit) ? "-" : "",
                 fsdpck_commit_in_place(x->commit) ? uuid : "");
    else
        snprintf(name, sizeof name, "%s", only_file(x));
    x->names[i] = strdup(name);
    if (several)
        x->paths[i] = fsdpck_path_join(fsdpck_commit_dir(x->commit), name, x->err);
    else /* the file is the record of the commit, or all there is */
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
    for (size_t i = 0; i < n && rc == 0; i++)
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

static const uint64_t *stored_shape(const struct export *x, const struct export_tensor *e)
{
    return fsdpck_source_tensor(x->src, x->selection.tensors[e->chosen].source)->shape;
}

static size_t make_chunks(const struct export *x, struct fsdpck_out_chunk *chunks)
{
    static const uint64_t origin[FSDPCK_MAX_DIMS];
    const struct export_tensor *e = x->layout.tensors.data;
    size_t n = 0;
    for (size_t i = 0; i < x->layout.tensors.count; i++)
        if (e[i].nbytes && !e[i].made)
            chunks[n++] = (struct fsdpck_out_chunk){ .tensor = e[i].chosen, .file = (uint32_t)e[i].file, .offset = origin, .size = stored_shape(x, &e[i]),
                                                     .payload = x->layout.files[e[i].file].header.nbytes + e[i].begin };
    if (n)
        qsort(chunks, n, sizeof *chunks, by_chosen);
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
    size_t n = x->layout.tensors.count, ncontents = source_has_contents(x->src) ? x->selection.ntensors : 0;
    struct fsdpck_out_chunk *chunks = calloc(n ? n : 1, sizeof *chunks);
    struct fsdpck_transfer_content *contents = ncontents ? calloc(ncontents, sizeof *contents) : NULL; /* NULL: nothing to compare with */
    struct fsdpck_transfer t = { .src = x->src, .selection = &x->selection, .files = x->files, .nfiles = x->layout.nfiles, .chunks = chunks,
                                 .opt = &x->opt, .contents = contents, .edit = x->with->edit };
    int rc = chunks && (contents || !ncontents) ? 0 : fsdpck_error_nomem(x->err, n * sizeof *chunks);
    if (rc == 0) {
        t.nchunks = make_chunks(x, chunks);
        rc = fsdpck_transfer_run(&t, &x->result, x->err);
    }
    free(chunks);
    free(contents);
    return rc;
}

static int write_made(struct export *x, struct fsdpck_out_files *out)
{
    const struct export_tensor *e = x->layout.tensors.data;
    int rc = 0;
    for (size_t i = 0; i < x->layout.tensors.count && rc == 0; i++)
        if (e[i].made)
            rc = fsdpck_out_files_write(out, (uint32_t)e[i].file, e[i].made, e[i].nbytes, x->layout.files[e[i].file].header.nbytes + e[i].begin, x->err);
    return rc;
}

static int write_headers(struct export *x)
{
    struct fsdpck_out_files *out = fsdpck_out_files_new(x->io, x->files, x->layout.nfiles, x->err);
    int rc = out ? write_made(x, out) : FSDPCK_ERR_NOMEM;
    for (size_t i = 0; i < x->layout.nfiles && rc == 0; i++) {
        const struct fsdpck_text *h = &x->layout.files[i].header;
        rc = fsdpck_out_files_write(out, (uint32_t)i, h->data, h->nbytes, 0, x->err);
        if (rc == 0)
            rc = fsdpck_out_files_sync(out, (uint32_t)i, x->err);
    }
    fsdpck_out_files_free(out);
    return rc;
}

/* ---- what stands around the weights ---- */

/* In place, names that must be what they are get there by rename: NAME.tmp-UUID for the time being, or for the folder that holds it. */
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
    for (size_t i = 0; i < x->assets.count && rc == 0 && fsdpck_commit_in_place(x->commit); i++)
        rc = set_aside(x, &x->assets.list[i]);
    if (rc == 0)
        rc = fsdpck_assets_write(x->io, &x->assets, fsdpck_commit_dir(x->commit), x->err);
    for (size_t i = 0; i < x->assets.count; i++)
        x->result.written_nbytes += x->assets.list[i].nbytes;
    return rc;
}

static int write_index(struct export *x)
{
    struct fsdpck_text text = { 0 };
    int rc = fsdpck_export_index(&x->layout, (const char *const *)x->names, &text, x->err);
    if (rc == 0)
        rc = fsdpck_write_file(x->io, fsdpck_commit_record(x->commit), text.data, text.nbytes, x->err);
    x->result.written_nbytes += text.nbytes;
    fsdpck_text_free(&text);
    return rc;
}

/* ---- all of it ---- */

static int run(struct export *x)
{
    int rc = choose(x);
    if (rc == 0)
        rc = begin(x);
    if (rc == 0)
        rc = name_files(x);
    if (rc == 0)
        rc = move_payload(x);
    if (rc == 0)
        rc = write_headers(x);
    if (rc == 0 && !x->one_file)
        rc = write_assets(x);
    if (rc == 0 && x->layout.nfiles > 1)
        rc = write_index(x);
    if (rc == 0 && fsdpck_stop_asked(x->opt.stop))
        rc = fsdpck_error_set(x->err, FSDPCK_ERR_STOPPED, NULL, "stopped");
    fsdpck_files_close_idle(x->src);
    if (rc)
        return rc;
    struct fsdpck_commit *c = x->commit;
    x->commit = NULL; /* finish frees it, whatever happens */
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

/* Under torchtitan's names q and k have their rows in an order that no reader of safetensors expects: a Llama that is silently wrong. */
static int check_names(struct export *x)
{
    if (!fsdpck_source_is_torchtitan(x->src))
        return 0;
    fsdpck_error_set(x->err, FSDPCK_ERR_UNSUPPORTED, fsdpck_source_path(x->src),
                     "is called as torchtitan (or Meta) calls a Llama, and its q and k are ordered so: as a Hugging Face model it would be wrong");
    fsdpck_error_hint(x->err, "'--names hf --assets FOLDER' renames and reorders; '--names torchtitan' leaves it as it is");
    return x->err->code;
}

int fsdpck_export_with(struct fsdpck_source *src, const struct fsdpck_export_request *req, const struct fsdpck_export_with *with,
                       const struct fsdpck_options *opt, struct fsdpck_transfer_result *result, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    struct export x = { .src = src, .req = req, .with = with, .io = src->io, .err = err ? err : &own, .layout.tensors = FSDPCK_VEC(struct export_tensor) };
    int64_t began = src->io->now_ns(src->io->ctx);
    fill_options(&x, opt);
    x.one_file = ends_with(req->out, ".safetensors");
    int rc = check_names(&x);
    if (!rc)
        rc = fsdpck_base_look(src, &x.opt, x.err);
    if (!rc)
        rc = run(&x);
    x.result.ntensors = x.layout.tensors.count;
    x.result.nfiles = x.layout.nfiles;
    x.result.seconds = (double)(src->io->now_ns(src->io->ctx) - began) * 1e-9;
    if (rc == 0 && result)
        *result = x.result;
    release(&x);
    return rc;
}

int fsdpck_export(struct fsdpck_source *src, const struct fsdpck_export_request *req, const struct fsdpck_options *opt,
                  struct fsdpck_transfer_result *result, struct fsdpck_error *err)
{
    static const struct fsdpck_export_with nothing_more;
    const struct fsdpck_options *o = opt ? opt : &src->opt;
    int rc = fsdpck_export_with(src, req, &nothing_more, opt, result, err);
    if (rc == 0 && src->base && o->note && !ends_with(req->out, ".safetensors"))
        o->note(o->ctx, "holds adapters without their base: merge-lora gives a model's weights, export-lora a folder that PEFT loads");
    return rc;
}
