/* SPDX-License-Identifier: Apache-2.0 */
/* Saves the state of a run with libfsdpck: trained parameters (tree "model"), the moments of AdamW (tree "optim"), and
 * the settings that a resumed run must share. The saving ranks determine the sharding; any number of ranks can read it.
 * The checkpoint of a LoRA run names its base model but does not contain it. */
#include "state/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rank/offload.h"
#include "state/adapter.h"
#include "state/reads.h"
#include "state/state.h"
#include "state/settings.h"

enum { TREES = CHECKPOINT_TREES, NAME = LAYOUT_NAME + 64 };

/* The path and box of one parameter in one tree. */
struct entry {
    char name[NAME];
    struct fsdpck_key path[4];
    uint64_t shape[3], offset[3], size[3];
    struct fsdpck_save_box box;
    struct offload *offload; /* the state in a file: tree, and optimizer element of the box's first one */
    int tree;
    int64_t at;
};

struct checkpoint_list {
    struct entry *entries;
    struct fsdpck_save_tensor *tensors;
    size_t ntensors;
    struct fsdpck_mesh mesh;
    struct fsdpck_placement placement;
    const struct fsdpck_base *base; /* borrowed from the rank */
    char *adapter;                  /* adapter_config.json; NULL: all parameters are trained */
};

/* tree 0: values; 1 and 2: moments. Names as torch flattens {"model": {…}, "optim": {"state": {NAME: {"exp_avg":
 * …}}}}. */
static uint32_t make_path(const struct param *p, int tree, struct fsdpck_key *path, char *name)
{
    static const char *const moments[TREES] = { NULL, "exp_avg", "exp_avg_sq" };
    if (tree == 0) {
        path[0] = (struct fsdpck_key){ .str = "model" };
        path[1] = (struct fsdpck_key){ .str = p->name };
        snprintf(name, NAME, "model.%s", p->name);
        return 2;
    }
    path[0] = (struct fsdpck_key){ .str = "optim" };
    path[1] = (struct fsdpck_key){ .str = "state" };
    path[2] = (struct fsdpck_key){ .str = p->name };
    path[3] = (struct fsdpck_key){ .str = moments[tree] };
    snprintf(name, NAME, "optim.state.%s.%s", p->name, moments[tree]);
    return 4;
}

float *checkpoint_rows(const struct rank *r, const struct param *p, int tree)
{
    if (tree == 0)
        return rank_master(r, p);
    return (tree == 1 ? r->m : r->v) + p->own_at;
}

static int read_box(void *ctx, const struct fsdpck_save_box *box, uint64_t first, uint64_t nelem, void *dst,
                    struct fsdpck_error *err)
{
    const struct entry *e = ctx;
    (void)box;
    return offload_read_kept(e->offload, e->tree, e->at + (int64_t)first, (int64_t)nelem, dst, err);
}

/* True if a parameter's tree is copied to memory for a save. */
static bool is_copied(const struct rank *r, const struct param *p, int tree)
{
    return !r->offload || !layout_moves(&r->job->layout, p) ||
           (tree == 0 && r->job->layout.masters && p->dtype == KERN_F32);
}

/* data: the copy of the tree; NULL: it is in a file. */
static struct fsdpck_save_tensor fill_entry(const struct checkpoint_list *list, const struct rank *r,
                                            const struct param *p, int tree, const float *data, struct entry *e)
{
    int64_t first, nrow = param_rows(p, r->comm->rank, &first);
    e->offload = r->offload;
    e->tree = tree;
    e->at = p->own_at;
    param_shape(p, e->shape);
    param_shape(p, e->size);
    e->offset[0] = (uint64_t)first;
    e->size[0] = (uint64_t)(nrow > 0 ? nrow : 0);
    e->box = (struct fsdpck_save_box){ .offset = e->offset, .size = e->size, .data = data, .read = read_box, .ctx = e };
    uint32_t npath = make_path(p, tree, e->path, e->name);
    return (struct fsdpck_save_tensor){ .name = e->name,
                                        .path = e->path,
                                        .npath = npath,
                                        .dtype = FSDPCK_FLOAT32,
                                        .ndim = p->ndim,
                                        .shape = e->shape,
                                        .mesh = &list->mesh,
                                        .placements = &list->placement,
                                        .boxes = &e->box,
                                        .nboxes = nrow > 0 };
}

int checkpoint_list_new(const struct rank *r, float *const trees[CHECKPOINT_TREES], struct checkpoint_list **out,
                        struct fsdpck_error *err)
{
    const struct layout *l = &r->job->layout;
    struct checkpoint_list *list = calloc(1, sizeof *list);
    *out = list;
    if (!list)
        return fsdpck_error_nomem(err, sizeof *list);
    list->mesh = (struct fsdpck_mesh){ .ndim = 1, .names = { "shard" }, .sizes = { r->comm->nranks } };
    list->placement = (struct fsdpck_placement){ .kind = FSDPCK_SHARD };
    list->base = &r->base;
    const bool lora = r->job->config->lora.enabled;
    list->adapter = lora ? adapter_config(r->job) : NULL;
    list->entries = calloc(r->nslices * CHECKPOINT_TREES + 1, sizeof *list->entries);
    list->tensors = calloc(r->nslices * CHECKPOINT_TREES + 1, sizeof *list->tensors);
    if (!list->entries || !list->tensors || (lora && !list->adapter)) {
        checkpoint_list_free(list);
        *out = NULL;
        return fsdpck_error_nomem(err, r->nslices * CHECKPOINT_TREES * sizeof *list->entries);
    }
    const float *loose = trees[0];
    for (int tree = 0; tree < CHECKPOINT_TREES; tree++) {
        for (size_t i = 0; i < l->nparams; i++) {
            const struct param *p = &l->params[i];
            size_t n = list->ntensors;
            if (!p->trainable)
                continue;
            const float *data = !is_copied(r, p, tree) ? NULL
                                : r->offload           ? loose
                                                       : trees[tree] + (p->own_at - l->own_first);
            loose += r->offload && data ? p->chunk * p->ncol : 0;
            list->tensors[list->ntensors++] = fill_entry(list, r, p, tree, data, &list->entries[n]);
        }
    }
    return 0;
}

void checkpoint_list_free(struct checkpoint_list *list)
{
    if (!list)
        return;
    free(list->entries);
    free(list->tensors);
    free(list->adapter);
    free(list);
}

void checkpoint_copy(const struct rank *r, struct kern_stream *stream, float *const trees[CHECKPOINT_TREES])
{
    const struct layout *l = &r->job->layout;
    const struct kern_memory *memory = r->compute->device->memory;
    const size_t nbytes = (size_t)l->own_nelem * sizeof(float);
    if (r->masters)
        memory->copy(stream, trees[0], r->masters + l->own_first, nbytes);
    for (size_t i = 0; i < l->nparams; i++) { /* fp32 parameters, which are their own masters */
        const struct param *p = &l->params[i];
        int64_t first, nrow = param_rows(p, r->comm->rank, &first);
        if (p->trainable && nrow > 0 && p->dtype == KERN_F32)
            memory->copy(stream, trees[0] + (p->own_at - l->own_first), rank_master(r, p),
                         (size_t)(nrow * p->ncol) * sizeof(float));
    }
    memory->copy(stream, trees[1], r->m + l->own_first, nbytes);
    memory->copy(stream, trees[2], r->v + l->own_first, nbytes);
}

/* Puts fp32 parameters beside their moments. */
static int put_values(const struct rank *r, const struct param *p, struct fsdpck_error *err)
{
    int64_t first, room, nelem = param_rows(p, r->comm->rank, &first) * p->ncol;
    const float *rows = rank_rows(r, p);
    int rc = 0;
    for (int64_t at = 0; at < nelem && !rc; at += room) {
        float *data;
        rc = offload_open(r->offload, 0, p->own_at + at, &data, &room, err);
        room = room < nelem - at ? room : nelem - at;
        if (!rc)
            rc = rank_download(r, data, rows + at, (size_t)room * sizeof *data, err);
    }
    return rc;
}

/* Puts one tree of a parameter where the save reads it. loose: the next place in memory. */
static int keep_tree(const struct rank *r, const struct param *p, int tree, float **loose, struct fsdpck_error *err)
{
    int64_t first, nrow = param_rows(p, r->comm->rank, &first);
    int rc = 0;
    if (!is_copied(r, p, tree))
        return tree == 0 && p->dtype == KERN_F32 ? put_values(r, p, err) : 0;
    if (nrow > 0)
        rc = rank_download(r, *loose, checkpoint_rows(r, p, tree), (size_t)(nrow * p->ncol) * sizeof **loose, err);
    *loose += p->chunk * p->ncol;
    return rc;
}

int checkpoint_keep(const struct rank *r, float *loose, struct fsdpck_error *err)
{
    const struct layout *l = &r->job->layout;
    int rc = 0;
    offload_keep(r->offload);
    for (int tree = 0; tree < CHECKPOINT_TREES; tree++)
        for (size_t i = 0; i < l->nparams && !rc; i++)
            if (l->params[i].trainable)
                rc = keep_tree(r, &l->params[i], tree, &loose, err);
    return rc ? rc : offload_close(r->offload, err);
}

static int barrier(void *ctx)
{
    struct comm *c = ctx;
    struct fsdpck_error err = { 0 };
    return c->ops->barrier(c, "saving", &err);
}

int checkpoint_write_as(const struct checkpoint_list *list, const struct checkpoint_write_options *how,
                        struct comm *comm, const struct job *job, const char *path, const char *state,
                        const struct fsdpck_options *fs, struct fsdpck_error *err)
{
    /* For a fully trained model, the checkpoint contains the assets of its folder, so that `fsdpck export` writes a
     * model that loads. For adapters, it only names the base. */
    const bool lora = list->adapter != NULL;
    const struct fsdpck_save_asset config = { .path = "adapter_config.json",
                                              .data = list->adapter,
                                              .nbytes = lora ? strlen(list->adapter) : 0 };
    struct fsdpck_save_request req = { .out = path,
                                       .rank = comm->rank,
                                       .nranks = comm->nranks,
                                       .barrier = comm->nranks > 1 ? barrier : NULL,
                                       .barrier_ctx = comm,
                                       .tensors = list->tensors,
                                       .ntensors = list->ntensors / (how->values_only ? CHECKPOINT_TREES : 1),
                                       .force = how->force,
                                       .state = state,
                                       .assets = lora ? NULL : job->config->model,
                                       .dequantized = job->packed.held[0] != '\0',
                                       .extra_assets = &config,
                                       .nextra_assets = lora,
                                       .base = lora ? list->base : NULL };
    return fsdpck_save(&req, fs, NULL, err);
}

int checkpoint_write(const struct checkpoint_list *list, struct comm *comm, const struct job *job, const char *path,
                     const char *state, const struct fsdpck_options *fs, struct fsdpck_error *err)
{
    return checkpoint_write_as(list, &(struct checkpoint_write_options){ 0 }, comm, job, path, state, fs, err);
}

static int read_tree(struct rank *r, struct fsdpck_source *src, struct reads *reads, int tree, struct fsdpck_error *err)
{
    const struct layout *l = &r->job->layout;
    int rc = 0;
    for (size_t i = 0; i < l->nparams && !rc; i++) {
        const struct param *p = &l->params[i];
        struct fsdpck_key path[4];
        char name[NAME];
        int64_t first, nrow = param_rows(p, r->comm->rank, &first);
        if (!p->trainable || nrow <= 0)
            continue;
        comm_heartbeat(r->comm);
        make_path(p, tree, path, name);
        rc = reads_add_state(reads, p, tree,
                             &(struct reads_rows){ .tensor = fsdpck_source_find(src, name),
                                                   .first = (uint64_t)first,
                                                   .nrow = (uint64_t)nrow,
                                                   .ncol = (uint64_t)p->ncol },
                             err);
    }
    return rc;
}

int checkpoint_read(struct rank *r, struct fsdpck_source *src, struct fsdpck_error *err)
{
    struct reads *reads = NULL;
    int rc = state_check_base(r, src, err);
    if (!rc)
        rc = reads_new(r, src, &reads, err);
    for (int tree = 0; tree < TREES && !rc; tree++)
        rc = read_tree(r, src, reads, tree, err);
    return reads_end(reads, rc, err);
}

int rank_resume(struct rank *r, const char *path, struct fsdpck_error *err)
{
    struct fsdpck_source *src;
    struct state_counts counts;
    int rc = fsdpck_source_open(path, "fsdpck", &r->job->fs, &src, err);
    comm_at(r->comm, 0, "loading of the checkpoint");
    if (!rc)
        rc = checkpoint_read(r, src, err);
    if (!rc)
        rc = state_read_counts(src, &counts, err);
    if (!rc) {
        r->step = counts.step;
        r->updates = counts.updates;
        r->last_update = counts.last_update;
    }
    fsdpck_source_close(src);
    return rc;
}

static int refuse_tensor(const struct job *job, const struct fsdpck_source *src, const char *name, const char *what,
                         struct fsdpck_error *err)
{
    struct settings_diff list = { 0 };
    if (job->data)
        state_diff_lora(job, src, &list);
    return fsdpck_error_set(
        err, FSDPCK_ERR_USAGE, fsdpck_source_path(src), "this checkpoint is of another run: %s (tensor '%s' is %s)",
        list.text[0] ? list.text : "model, lora.r or lora.target_modules are not its own", name, what);
}

/* Rejects a checkpoint with tensors that this run does not train: the next save would lose them. nfound: number of the
 * checkpoint's tensors that are trained. */
static int check_others(const struct job *job, const struct fsdpck_source *src, size_t nfound, struct fsdpck_error *err)
{
    const struct layout *l = &job->layout;
    size_t nstored = 0;
    for (size_t k = 0; k < fsdpck_source_ntensors(src); k++)
        nstored += fsdpck_source_tensor(src, k)->alias_of < 0;
    for (size_t k = 0; k < fsdpck_source_ntensors(src) && nstored > nfound; k++) {
        const struct fsdpck_tensor *t = fsdpck_source_tensor(src, k);
        bool ours = t->alias_of >= 0;
        for (size_t i = 0; i < l->nparams * TREES && !ours; i++) {
            struct fsdpck_key path[4];
            char name[NAME];
            make_path(&l->params[i / TREES], (int)(i % TREES), path, name);
            ours = l->params[i / TREES].trainable && strcmp(t->name, name) == 0;
        }
        if (!ours)
            return refuse_tensor(job, src, t->name, "not trained by this config", err);
    }
    return 0;
}

int checkpoint_check_tensors(const struct job *job, const struct fsdpck_source *src, struct fsdpck_error *err)
{
    const struct layout *l = &job->layout;
    size_t nfound = 0;
    for (size_t i = 0; i < l->nparams * TREES; i++) {
        const struct param *p = &l->params[i / TREES];
        struct fsdpck_key path[4];
        uint64_t shape[3];
        char name[NAME];
        if (!p->trainable)
            continue;
        nfound++;
        make_path(p, (int)(i % TREES), path, name);
        const struct fsdpck_tensor *t = fsdpck_source_find(src, name);
        param_shape(p, shape);
        if (!t || t->dtype != FSDPCK_FLOAT32 || t->ndim != p->ndim ||
            memcmp(t->shape, shape, p->ndim * sizeof *shape) != 0)
            return refuse_tensor(job, src, name, t ? "of another shape" : "not in it", err);
    }
    return check_others(job, src, nfound, err);
}

int job_check_resume(const struct job *job, const char *path, uint64_t *step, struct fsdpck_error *err)
{
    struct fsdpck_source *src;
    struct state_counts counts;
    int rc = fsdpck_source_open(path, "fsdpck", &job->fs, &src, err);
    if (!rc)
        rc = state_check(job, src, err);
    if (!rc)
        rc = checkpoint_check_tensors(job, src, err);
    if (!rc)
        rc = state_read_counts(src, &counts, err);
    if (!rc)
        *step = counts.step;
    fsdpck_source_close(src);
    return rc;
}
