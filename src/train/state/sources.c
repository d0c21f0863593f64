/* SPDX-License-Identifier: Apache-2.0 */
/* Checks before the ranks start: every tensor that the run needs exists; every other tensor is known, reported by a
 * note, or rejected by name. */
#include "state/sources.h"

#include <fsdpck/lora.h>
#include <fsdpck/packed.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/family.h"
#include "rank/files.h"
#include "state/adapter.h"

static bool is_float(enum fsdpck_dtype dtype)
{
    return dtype == FSDPCK_FLOAT32 || dtype == FSDPCK_BFLOAT16 || dtype == FSDPCK_FLOAT16 || dtype == FSDPCK_FLOAT64;
}

/* A trained copy is read from the base unless an adapter is given. */
bool sources_has(const struct job *job, const struct param *p, bool adapter)
{
    const bool begins = p->saved && !job->config->lora.init_adapter;
    return (param_is_adapter(p) && !begins) == adapter;
}

const char *sources_name(const struct param *p, bool adapter)
{
    return adapter ? p->name : p->source;
}

static char *shape_text(uint32_t ndim, const uint64_t *shape, char *buf, size_t nbytes)
{
    size_t at = (size_t)snprintf(buf, nbytes, "[");
    for (uint32_t d = 0; d < ndim && at < nbytes; d++)
        at += (size_t)snprintf(buf + at, nbytes - at, "%s%llu", d ? ", " : "", (unsigned long long)shape[d]);
    if (at < nbytes)
        snprintf(buf + at, nbytes - at, "]");
    return buf;
}

int sources_find(const struct fsdpck_source *src, const struct param *p, bool adapter, const struct fsdpck_tensor **out,
                 struct fsdpck_error *err)
{
    const char *name = sources_name(p, adapter);
    const struct fsdpck_tensor *t = fsdpck_source_find(src, name);
    char with_tree[LAYOUT_NAME + 8];
    if (!t) { /* a checkpoint with trees has "model.NAME" */
        snprintf(with_tree, sizeof with_tree, "model.%s", name);
        t = fsdpck_source_find(src, with_tree);
    }
    *out = t;
    if (!t)
        return fsdpck_error_set(err, FSDPCK_ERR_MISSING, fsdpck_source_path(src),
                                "there is no tensor '%s', which %s for", name,
                                adapter ? "lora.target_modules or lora.modules_to_save call" : "config.json calls");
    if (p->packed && !adapter) /* layout_make() has compared the shapes */
        return 0;
    uint64_t wanted[3];
    param_shape(p, wanted);
    if (t->ndim != p->ndim || memcmp(t->shape, wanted, p->ndim * sizeof *wanted) != 0) {
        char has[256], wants[64];
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, fsdpck_source_path(src),
                                "tensor '%s' does not have the shape %s that the configs call for: it has %s", name,
                                shape_text(p->ndim, wanted, wants, sizeof wants),
                                shape_text(t->ndim, t->shape, has, sizeof has));
    }
    if (!is_float(t->dtype))
        return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, fsdpck_source_path(src),
                                "tensor '%s' is %s; float32, bfloat16, float16 and float64 are trained", name,
                                fsdpck_dtype_info(t->dtype)->name);
    return 0;
}

static bool ends_with(const char *name, const char *end)
{
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* Whether all experts of a layer are in one tensor, as transformers 5 holds them, and their family is published with a
 * tensor for each. */
static bool has_fused_experts(const struct model *m, const struct fsdpck_source *src)
{
    bool any = false;
    for (size_t i = 0; m->nexperts && m->family->modules.gate && i < fsdpck_source_ntensors(src) && !any; i++)
        any = ends_with(fsdpck_source_tensor(src, i)->name, ".mlp.experts.gate_up_proj");
    return any;
}

static int open_adapter(const char *path, const struct fsdpck_options *fs, struct fsdpck_source **out,
                        struct fsdpck_error *err)
{
    char file[FILES_PATH], *config = NULL;
    int rc;
    *out = NULL;
    if (adapter_is_file(path)) {
        rc = fsdpck_lora_open_file(path, fs, out, &config, err);
        free(config);
        return rc;
    }
    rc = files_join(file, path, "index.json", err);
    if (!rc && access(file, F_OK) != 0) {
        rc = files_join(file, path, "adapter_model.safetensors", err);
        path = file;
    }
    return rc ? rc : fsdpck_source_open(path, NULL, fs, out, err);
}

static int open_with(const struct job *job, bool adapter, const struct fsdpck_options *fs, struct fsdpck_source **out,
                     struct fsdpck_error *err)
{
    char word[TRAIN_WORD_NBYTES];
    if (adapter)
        return open_adapter(job->config->lora.init_adapter, fs, out, err);
    int rc = fsdpck_source_open(job->config->model, NULL, fs, out, err);
    if (!rc && has_fused_experts(&job->model, *out))
        rc = fsdpck_source_set_names(*out, "hf", NULL, err);
    if (rc)
        return rc;
    rc = fsdpck_source_hold(*out, train_config_word("dtype.base", job->config->dtype.base, word), err);
    if (rc == FSDPCK_ERR_UNSUPPORTED && job->config->dtype.base > TRAIN_BASE_BF16) {
        err->hint[0] = '\0'; /* it speaks of options of fsdpck */
        fsdpck_error_hint(err, "\"dtype\": {\"base\": \"as stored\"} takes the weights as the model's files hold them");
    }
    return rc;
}

int sources_open(const struct job *job, bool adapter, struct fsdpck_source **out, struct fsdpck_error *err)
{
    struct fsdpck_options quiet = job->fs; /* check_source() lets the notes be said, once */
    quiet.note = NULL;
    return open_with(job, adapter, &quiet, out, err);
}

/* --- copies --- */

enum { PIECE = 1 << 20 }; /* number of elements per piece, but at least one row */

/* Rows of two tensors: as stored, and as fp32. */
struct pair {
    struct fsdpck_source *src[2];
    const struct fsdpck_tensor *t[2];
    void *raw[2];
    float *x[2], *rounded;
};

static int read_rows(struct pair *p, int i, uint64_t first, uint64_t nrow, struct fsdpck_error *err)
{
    const uint64_t ncol = p->t[i]->shape[1], offset[2] = { first, 0 }, size[2] = { nrow, ncol };
    const struct fsdpck_read read = { .tensor = p->t[i], .offset = offset, .size = size, .dst = p->raw[i] };
    int rc = fsdpck_source_read(p->src[i], &read, 1, err);
    if (!rc)
        fsdpck_dtype_cast(p->t[i]->dtype, p->raw[i], FSDPCK_FLOAT32, p->x[i], nrow * ncol);
    return rc;
}

/* True if x[i], rounded to the dtype of the other tensor, equals the other value. */
static bool rounds_to(struct pair *p, int i, uint64_t n)
{
    const enum fsdpck_dtype dtype = p->t[1 - i]->dtype;
    fsdpck_dtype_cast(FSDPCK_FLOAT32, p->x[i], dtype, p->raw[i], n);
    fsdpck_dtype_cast(dtype, p->raw[i], FSDPCK_FLOAT32, p->rounded, n);
    return memcmp(p->rounded, p->x[1 - i], n * sizeof(float)) == 0;
}

static int compare_pair(struct pair *p, uint64_t step, bool *same, struct fsdpck_error *err)
{
    const uint64_t nrow = p->t[0]->shape[0], ncol = p->t[0]->shape[1];
    int rc = 0;
    *same = true;
    for (uint64_t first = 0; first < nrow && *same && !rc; first += step) {
        const uint64_t n = nrow - first < step ? nrow - first : step;
        rc = read_rows(p, 0, first, n, err);
        if (!rc)
            rc = read_rows(p, 1, first, n, err);
        if (!rc)
            *same = memcmp(p->x[0], p->x[1], n * ncol * sizeof(float)) == 0 || rounds_to(p, 0, n * ncol) ||
                    rounds_to(p, 1, n * ncol);
    }
    return rc;
}

/* True if two matrices of the same shape hold the same values, up to rounding from one dtype to the other. */
static int compare(struct fsdpck_source *a, const struct fsdpck_tensor *t, struct fsdpck_source *b,
                   const struct fsdpck_tensor *u, bool *same, struct fsdpck_error *err)
{
    const uint64_t ncol = t->shape[1], step = ncol < PIECE ? PIECE / ncol : 1, n = step * ncol;
    struct pair p = { .src = { a, b }, .t = { t, u }, .rounded = calloc(n, sizeof(float)) };
    int rc = p.rounded ? 0 : fsdpck_error_nomem(err, n * sizeof(float));
    for (int i = 0; i < 2; i++) {
        p.raw[i] = calloc(n, sizeof(double));
        p.x[i] = calloc(n, sizeof(float));
        if (!rc && (!p.raw[i] || !p.x[i]))
            rc = fsdpck_error_nomem(err, n * sizeof(double));
    }
    if (!rc)
        rc = compare_pair(&p, step, same, err);
    for (int i = 0; i < 2; i++) {
        free(p.raw[i]);
        free(p.x[i]);
    }
    free(p.rounded);
    return rc;
}

static bool comparable(const struct fsdpck_tensor *t, const struct fsdpck_tensor *u)
{
    return t->ndim == 2 && u->ndim == 2 && t->shape[0] == u->shape[0] && t->shape[1] == u->shape[1] &&
           t->shape[1] > 0 && is_float(t->dtype) && is_float(u->dtype);
}

/* --- tensors that the run does not use --- */

static const char *without_tree(const char *name)
{
    return strncmp(name, "model.base_model.", 17) == 0 ? name + 6 : name;
}

/* PEFT also stores the original weight of an adapted embedding. Returns the base parameter that `name` is a copy of, or
 * NULL. */
static const struct param *copied_param(const struct job *job, const char *name)
{
    static const char before[] = "base_model.model.", after[] = ".base_layer.weight";
    const struct layout *l = &job->layout;
    const char *path = without_tree(name), *end = strstr(path, after);
    const struct linear *ends[] = { &l->embed, &l->head };
    if (strncmp(path, before, sizeof before - 1) != 0 || !end || strcmp(end, after) != 0)
        return NULL;
    path += sizeof before - 1;
    for (size_t i = 0; i < 2; i++) {
        const size_t n = strlen(ends[i]->path);
        if (ends[i]->r && path + n == end && strncmp(path, ends[i]->path, n) == 0)
            return &l->params[ends[i]->w];
    }
    return NULL;
}

/* If the copy differs from the base's weight, the adapter was trained on another model. */
static int check_copy(struct fsdpck_source *adapter, const struct fsdpck_tensor *copy, const struct param *p,
                      struct fsdpck_source *base, struct fsdpck_error *err)
{
    const struct fsdpck_tensor *t;
    bool same = false;
    int rc = sources_find(base, p, false, &t, err);
    if (!rc && comparable(copy, t))
        rc = compare(adapter, copy, base, t, &same, err);
    if (rc || same)
        return rc;
    fsdpck_error_set(err, FSDPCK_ERR_FORMAT, fsdpck_source_path(adapter),
                     "tensor '%s' is not '%s' of the model %s: the adapter was made on another, or on one whose "
                     "embeddings were resized",
                     copy->name, t->name, fsdpck_source_path(base));
    fsdpck_error_hint(err, "merge it into its own base (fsdpck merge-lora), and go on from there");
    return err->code;
}

/* used: (fsdpck_source_ntensors(src)) */
static int mark_used(const struct job *job, struct fsdpck_source *src, bool adapter, bool *used,
                     struct fsdpck_error *err)
{
    const struct layout *l = &job->layout;
    const struct fsdpck_tensor *t;
    for (size_t i = 0; i < l->nparams; i++) {
        /* the adapter's copy replaces the base's parameter */
        const bool has = sources_has(job, &l->params[i], adapter), replaced = !adapter && l->params[i].saved;
        int rc = has || replaced ? sources_find(src, &l->params[i], adapter, &t, has ? err : NULL) : 1;
        if (rc < 0 && has)
            return rc;
        for (size_t k = 0; k < fsdpck_source_ntensors(src) && !rc; k++)
            used[k] = used[k] || fsdpck_source_tensor(src, k) == t;
    }
    return 0;
}

static int account_adapter(const struct job *job, struct fsdpck_source *src, bool *used, struct fsdpck_error *err)
{
    struct fsdpck_source *base;
    int rc = sources_open(job, false, &base, err);
    for (size_t i = 0; i < fsdpck_source_ntensors(src) && !rc; i++) {
        const struct fsdpck_tensor *t = fsdpck_source_tensor(src, i);
        const struct param *p = used[i] ? NULL : copied_param(job, t->name);
        if (!p)
            continue;
        rc = check_copy(src, t, p, base, err);
        used[i] = true;
    }
    fsdpck_source_close(base);
    return rc ? rc : fsdpck_lora_check_used(src, NULL, used, &job->fs, err);
}

/* transformers unties a head whose values differ from the embedding. */
static int check_tied_head(const struct job *job, struct fsdpck_source *src, const struct fsdpck_tensor *head,
                           struct fsdpck_error *err)
{
    const struct fsdpck_tensor *embed;
    bool same = false;
    int rc = sources_find(src, &job->layout.params[job->layout.embed.w], false, &embed, err);
    if (!rc && comparable(head, embed))
        rc = compare(src, head, src, embed, &same, err);
    if (rc || same)
        return rc;
    fsdpck_error_set(err, FSDPCK_ERR_FORMAT, fsdpck_source_path(src),
                     "config.json ties lm_head to embed_tokens, and tensor '%s' is not '%s'", head->name, embed->name);
    fsdpck_error_hint(err, "where the head is one of its own, say \"tie_word_embeddings\": false in config.json, as "
                           "transformers takes it then");
    return err->code;
}

/* Notes tensors that the model has no place for, as transformers does. Tables of rotary positions (in older files) and
 * optimizer states (in checkpoints) are expected. */
static int account_base(const struct job *job, struct fsdpck_source *src, const bool *used, struct fsdpck_error *err)
{
    const char *first = NULL;
    char line[1024];
    size_t n = 0;
    int rc = 0;
    for (size_t i = 0; i < fsdpck_source_ntensors(src) && !rc; i++) {
        const struct fsdpck_tensor *t = fsdpck_source_tensor(src, i);
        if (used[i] || strncmp(t->name, "optim.", 6) == 0 || ends_with(t->name, ".rotary_emb.inv_freq"))
            continue;
        if (job->model.tied &&
            (strcmp(t->name, "lm_head.weight") == 0 || strcmp(t->name, "model.lm_head.weight") == 0)) {
            rc = check_tied_head(job, src, t, err);
            continue;
        }
        first = first ? first : t->name;
        n++;
    }
    if (n == 1)
        snprintf(line, sizeof line, "%.400s: '%.300s' is not used: config.json calls for no such parameter",
                 fsdpck_source_path(src), first);
    else if (n)
        snprintf(line, sizeof line,
                 "%.400s: %zu tensors are not used, '%.300s' the first: config.json calls for no such parameters",
                 fsdpck_source_path(src), n, first);
    if (!rc && n && job->fs.note)
        job->fs.note(job->fs.ctx, line);
    return rc;
}

static int check_source(const struct job *job, bool adapter, struct fsdpck_error *err)
{
    struct fsdpck_source *src;
    bool *used = NULL;
    int rc = open_with(job, adapter, &job->fs, &src, err);
    if (!rc && !(used = calloc(fsdpck_source_ntensors(src) + 1, sizeof *used)))
        rc = fsdpck_error_nomem(err, fsdpck_source_ntensors(src));
    if (!rc)
        rc = mark_used(job, src, adapter, used, err);
    if (!rc)
        rc = adapter ? account_adapter(job, src, used, err) : account_base(job, src, used, err);
    free(used);
    fsdpck_source_close(src);
    return rc;
}

bool sources_has_weights(const struct job *job)
{
    struct fsdpck_source *src;
    struct fsdpck_error err = { 0 };
    const int rc = fsdpck_source_open(job->config->model, NULL, &job->fs, &src, &err);
    fsdpck_source_close(src);
    return rc != FSDPCK_ERR_UNSUPPORTED; /* files that cannot be read are weights too */
}

int job_check_sources(const struct job *job, struct fsdpck_error *err)
{
    const bool adapter = job->config->lora.enabled && job->config->lora.init_adapter;
    int rc = check_source(job, false, err);
    return rc || !adapter ? rc : check_source(job, true, err);
}
