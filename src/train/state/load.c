/* SPDX-License-Identifier: Apache-2.0 */
/* Start-up: every rank reads its own rows of every tensor, in any format of the model and the adapter, straight to
 * their destination. New adapters are initialised from PEFT's distribution; the value of an element depends on its
 * position in the whole tensor only. */
#include "state/load.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "arrays/normal.h"
#include "rank/host_rows.h"
#include "rank/offload.h"
#include "state/reads.h"
#include "state/sources.h"
#include "state/state.h"

/* Facts about a parameter, gathered while it is read. */
struct loaded {
    uint64_t content[4]; /* limbs of the content id, if it is frozen; the reads add to them */
    enum fsdpck_dtype dtype;
    bool in_tree; /* the file names it "model.NAME" */
};

/* What rank_load() reads. */
struct selection {
    bool adapter;     /* the parameters of the adapter's files; otherwise those of the model's */
    bool only_frozen; /* no trained ones */
};

/* The base is identified for the adapters that are saved. */
static bool names_base(const struct job *job)
{
    return job->config->lora.enabled || job->serves;
}

static bool is_read(const struct rank *r, const struct param *p, struct selection from)
{
    return sources_has(r->job, p, from.adapter) && !(from.only_frozen && p->trainable);
}

/* The parameter's rows in the files: of how many elements, and how many to a row of its own. */
struct file_rows {
    uint64_t nelem, nrow;
};

static struct file_rows file_rows_of(const struct param *p, struct selection from)
{
    if (p->packed && !from.adapter)
        return (struct file_rows){ (uint64_t)p->packed->form.pitch, (uint64_t)param_packed_rows(p) };
    return (struct file_rows){ (uint64_t)p->ncol, 1 };
}

/* Adds this rank's rows of one tensor to the reads: into the working copy of a frozen parameter, the master of a
 * trained one. Fills *loaded even if nothing is read. */
static int add_read(struct rank *r, const struct fsdpck_source *src, struct reads *reads, const struct param *p,
                    struct selection from, struct loaded *loaded, struct fsdpck_error *err)
{
    const bool identifies = names_base(r->job) && !param_is_adapter(p);
    const struct file_rows in_file = file_rows_of(p, from);
    const struct fsdpck_tensor *t;
    int64_t first, nrow = param_rows(p, r->comm->rank, &first);
    int rc = sources_find(src, p, from.adapter, &t, err);
    if (rc)
        return rc;
    loaded->dtype = t->dtype;
    loaded->in_tree = strcmp(t->name, sources_name(p, from.adapter)) != 0;
    if (nrow <= 0 || !is_read(r, p, from))
        return 0;
    struct reads_rows rows = { .tensor = t,
                               .first = (uint64_t)first * in_file.nrow,
                               .nrow = (uint64_t)nrow * in_file.nrow,
                               .ncol = in_file.nelem,
                               .content = identifies ? loaded->content : NULL };
    r->load_nbytes += rows.nrow * rows.ncol * fsdpck_dtype_info(t->dtype)->nbytes;
    if (p->trainable)
        return reads_add_state(reads, p, 0, &rows, err);
    rows.dst = rank_rows(r, p);
    rows.dtype = p->packed ? FSDPCK_UINT8 : p->dtype == KERN_F32 ? FSDPCK_FLOAT32 : FSDPCK_BFLOAT16;
    return reads_add(reads, &rows, err);
}

/* Number of bytes that add_read() will read for all parameters. Skips missing tensors: add_read() reports them. */
static uint64_t rows_nbytes(const struct rank *r, const struct fsdpck_source *src, struct selection from)
{
    const struct layout *l = &r->job->layout;
    uint64_t nbytes = 0;
    for (size_t i = 0; i < l->nparams; i++) {
        const struct param *p = &l->params[i];
        const struct file_rows in_file = file_rows_of(p, from);
        const struct fsdpck_tensor *t;
        int64_t first, nrow = param_rows(p, r->comm->rank, &first);
        if (nrow > 0 && is_read(r, p, from) && sources_find(src, p, from.adapter, &t, NULL) == 0)
            nbytes += (uint64_t)nrow * in_file.nrow * in_file.nelem * fsdpck_dtype_info(t->dtype)->nbytes;
    }
    return nbytes;
}

/* A torch.save file, or a chunk of a PyTorch DCP directory, has one CRC-32 for data of which many ranks read slices. So
 * each rank also verifies its share of the tensors as a whole. */
static int check_share(struct rank *r, struct fsdpck_source *src, struct selection from, struct fsdpck_error *err)
{
    const struct layout *l = &r->job->layout;
    const struct fsdpck_tensor *t;
    int rc = 0;
    for (size_t i = (size_t)r->comm->rank; i < l->nparams && !rc; i += (size_t)r->comm->nranks) {
        comm_heartbeat(r->comm);
        if (is_read(r, &l->params[i], from) && !(rc = sources_find(src, &l->params[i], from.adapter, &t, err)))
            rc = fsdpck_source_check_tensor(src, t, err);
    }
    return rc;
}

/* Notes that records of the source have no CRC-32 (torch can omit it). Each rank has found other records, so the ranks
 * ask each other; rank 0 has the note. */
static int note_unchecked(struct rank *r, struct fsdpck_source *src, struct fsdpck_error *err)
{
    char line[600];
    uint64_t nranks = fsdpck_source_nunchecked(src) != 0;
    int rc = r->comm->ops->sum_u64(r->comm, &nranks, 1, err);
    if (rc || nranks == 0 || r->comm->rank != 0 || !r->job->fs.note)
        return rc;
    snprintf(line, sizeof line, "%.500s: stored records have no CRC-32, so damage to them cannot be found",
             fsdpck_source_path(src));
    r->job->fs.note(r->job->fs.ctx, line);
    return 0;
}

/* loaded: (nparams) */
static int load_all(struct rank *r, struct selection from, struct loaded *loaded, struct fsdpck_error *err)
{
    const struct layout *l = &r->job->layout;
    struct fsdpck_source *src;
    struct reads *reads = NULL;
    int rc = sources_open(r->job, from.adapter, &src, err);
    if (!rc)
        rc = reads_new(r, src, &reads, err);
    if (!rc)
        reads_expect(reads, rows_nbytes(r, src, from));
    for (size_t i = 0; i < l->nparams && !rc; i++) {
        comm_heartbeat(r->comm);
        if (sources_has(r->job, &l->params[i], from.adapter))
            rc = add_read(r, src, reads, &l->params[i], from, &loaded[i], err);
    }
    rc = reads_end(reads, rc, err);
    if (!rc)
        rc = check_share(r, src, from, err);
    if (!rc)
        rc = note_unchecked(r, src, err);
    fsdpck_source_close(src);
    return rc;
}

/* Draws the values on the host. index0: of the part's first element. */
static int draw_embedding(struct rank *r, const struct param *p, const struct rank_part *part,
                          const struct kern_philox *rng, uint64_t index0, struct fsdpck_error *err)
{
    const size_t nelem = (size_t)(part->nrow * p->ncol);
    float *values = calloc(nelem, sizeof *values);
    if (!values)
        return fsdpck_error_nomem(err, nelem * sizeof *values);
    normal_draw(values, nelem, rng, index0); /* PEFT draws an embedding's B from this distribution */
    int rc = rank_upload(r, part->data, values, nelem * sizeof *values, err);
    free(values);
    return rc;
}

/* DoRA's magnitude starts as the norm of each weight row, because B is zero. Both are sharded alike. */
static int measure_rows(struct rank *r, const struct param *p, int64_t nrow, struct fsdpck_error *err)
{
    const struct param *of = &r->job->layout.params[p->norms_of];
    int64_t first;
    param_rows(of, r->comm->rank, &first);
    if (r->window) {
        host_rows_measure(r, of, rank_rows(r, of), first, nrow, rank_rows(r, p));
        return compute_sync(r->compute, err);
    }
    const struct kern_dora_norm norms = { .nrow = nrow,
                                          .ncol = of->ncol,
                                          .w = compute_rows_of(r->compute, of, rank_rows(r, of), first, nrow, 0),
                                          .norm = rank_rows(r, p) };
    r->compute->device->ops->dora_norm(r->compute->stream, &norms);
    return compute_sync(r->compute, err);
}

/* As PEFT: A uniform in ±1/√in (kaiming_uniform with a = √5), B zero. For an embedding, A zero and B normal. An element
 * depends on its position in the whole tensor. */
static int draw_adapter(struct rank *r, const struct param *p, struct fsdpck_error *err)
{
    struct compute *c = r->compute;
    bool embedding = strstr(p->name, ".lora_embedding_") != NULL,
         zero = strstr(p->name, embedding ? "_A" : ".lora_B.") != NULL;
    int64_t first, nrow = param_rows(p, r->comm->rank, &first);
    float bound = (float)(1 / sqrt((double)p->ncol));
    struct kern_philox rng = { .seed = r->job->config->seed, .name = XXH32(p->name, strlen(p->name), 0) };
    if (nrow > 0 && p->norms_of >= 0)
        return measure_rows(r, p, nrow, err);
    if (nrow <= 0 || zero)
        return 0; /* fresh memory is zero */
    struct rank_part part = { 0 };
    int rc = 0;
    while (!rc && !(rc = rank_next_part(r, p, 0, &part, err)) && part.nrow > 0) {
        const uint64_t index0 = (uint64_t)((first + part.row) * p->ncol);
        if (embedding) {
            rc = draw_embedding(r, p, &part, &rng, index0, err);
            continue;
        }
        if (rank_master_rests(r, p))
            host_rows_draw(r, part.data, part.nrow, p->ncol, rng, index0, bound);
        else
            c->device->ops->uniform(c->stream, part.data, part.nrow * p->ncol, rng, index0, -bound, bound);
        rc = compute_sync(c, err);
    }
    return rc;
}

static int sum_contents(struct rank *r, struct loaded *loaded, struct fsdpck_error *err)
{
    size_t n = r->job->layout.nparams, step = COMM_MAX_SUM / 4;
    uint64_t *limbs = malloc((4 * n + 1) * sizeof *limbs);
    int rc = limbs ? 0 : fsdpck_error_nomem(err, 4 * n * sizeof *limbs);
    for (size_t i = 0; i < n && !rc; i++)
        memcpy(limbs + 4 * i, loaded[i].content, sizeof loaded[i].content);
    for (size_t i = 0; i < n && !rc; i += step)
        rc = r->comm->ops->sum_u64(r->comm, limbs + 4 * i, 4 * (n - i < step ? n - i : step), err);
    for (size_t i = 0; i < n && !rc; i++)
        memcpy(loaded[i].content, limbs + 4 * i, sizeof loaded[i].content);
    free(limbs);
    return rc;
}

/* 16 bytes, little-endian, as in FORMAT.md. */
static void store_content(const uint64_t limb[4], uint8_t out[16])
{
    uint64_t carry = 0;
    for (int k = 0; k < 4; k++) {
        uint64_t sum = limb[k] + carry;
        for (int b = 0; b < 4; b++)
            out[4 * k + b] = (uint8_t)(sum >> 8 * b);
        carry = sum >> 32;
    }
}

static struct fsdpck_base_tensor describe(const struct param *p, const struct loaded *loaded, struct base_names *names)
{
    struct fsdpck_base_tensor t = {
        .name = names->name, .dtype = loaded->dtype, .ndim = p->ndim, .shape = names->shape
    };
    snprintf(names->name, sizeof names->name, "%s%s", loaded->in_tree ? "model." : "", p->source);
    param_shape(p, names->shape);
    if (p->packed) {
        t.ndim = 2;
        names->shape[0] = (uint64_t)p->packed->nrow;
        names->shape[1] = (uint64_t)p->packed->form.pitch;
    }
    store_content(loaded->content, t.content);
    return t;
}

/* Identifies the frozen weights under an adapter. The result does not depend on the number of ranks. */
static int name_base(struct rank *r, struct loaded *loaded, struct fsdpck_error *err)
{
    const struct layout *l = &r->job->layout;
    struct fsdpck_base_tensor *tensors = calloc(l->nparams + 1, sizeof *tensors);
    r->base = (struct fsdpck_base){ .path = r->job->config->model,
                                    .held = r->job->packed.held[0] ? r->job->packed.held : NULL,
                                    .tensors = tensors };
    r->base_names = calloc(l->nparams + 1, sizeof *r->base_names);
    int rc = tensors && r->base_names ? sum_contents(r, loaded, err)
                                      : fsdpck_error_nomem(err, l->nparams * sizeof *r->base_names);
    for (size_t i = 0; i < l->nparams && !rc; i++)
        if (!param_is_adapter(&l->params[i])) {
            tensors[r->base.ntensors] = describe(&l->params[i], &loaded[i], &r->base_names[r->base.ntensors]);
            r->base.ntensors++;
        }
    return rc;
}

/* The dtype for the export of a fully trained model: the dtype of most of its elements. */
static enum fsdpck_dtype most_common_dtype(const struct layout *l, const struct loaded *loaded)
{
    uint64_t nelem[FSDPCK_NDTYPES] = { 0 };
    int most = FSDPCK_FLOAT32;
    for (size_t i = 0; i < l->nparams; i++)
        if (!param_is_adapter(&l->params[i]))
            nelem[loaded[i].dtype] += (uint64_t)(l->params[i].nrow * l->params[i].ncol);
    for (int d = 0; d < FSDPCK_NDTYPES; d++)
        most = nelem[d] > nelem[most] ? d : most;
    return (enum fsdpck_dtype)most;
}

static int load_base(struct rank *r, bool only_frozen, struct fsdpck_error *err)
{
    const struct selection from = { .only_frozen = only_frozen };
    struct loaded *loaded = calloc(r->job->layout.nparams, sizeof *loaded);
    int rc = loaded ? load_all(r, from, loaded, err) : fsdpck_error_nomem(err, r->job->layout.nparams * sizeof *loaded);
    if (!rc)
        r->model_dtype = most_common_dtype(&r->job->layout, loaded);
    if (!rc && names_base(r->job))
        rc = name_base(r, loaded, err);
    free(loaded);
    return rc;
}

/* Checks that the adapter checkpoint names this base. */
static int check_base(const struct rank *r, struct fsdpck_error *err)
{
    struct fsdpck_source *src;
    int rc = sources_open(r->job, true, &src, err);
    if (!rc && fsdpck_source_base(src))
        rc = state_check_base(r, src, err);
    fsdpck_source_close(src);
    return rc;
}

static int load_adapter(struct rank *r, bool only_frozen, struct fsdpck_error *err)
{
    const struct selection from = { .adapter = true, .only_frozen = only_frozen };
    struct loaded *loaded = calloc(r->job->layout.nparams, sizeof *loaded); /* not used */
    int rc = loaded ? load_all(r, from, loaded, err) : fsdpck_error_nomem(err, r->job->layout.nparams * sizeof *loaded);
    free(loaded);
    return rc ? rc : check_base(r, err);
}

/* The adapter's parameters: from files, or drawn. */
static int begin_adapter(struct rank *r, bool only_frozen, struct fsdpck_error *err)
{
    const struct layout *l = &r->job->layout;
    if (r->job->config->lora.init_adapter)
        return load_adapter(r, only_frozen, err);
    int rc = 0;
    for (size_t i = 0; i < l->nparams && !rc && !only_frozen; i++) {
        if (!l->params[i].source[0])
            rc = draw_adapter(r, &l->params[i], err);
    }
    return rc;
}

int rank_load(struct rank *r, bool only_frozen, struct fsdpck_error *err)
{
    comm_at(r->comm, 0, "loading");
    const uint64_t started = comm_now_ns();
    int rc = load_base(r, only_frozen, err);
    if (!rc)
        rc = begin_adapter(r, only_frozen, err);
    r->load_ns = comm_now_ns() - started;
    if (!rc && only_frozen)
        return rank_publish_rounded(r, true, err);
    return rc ? rc : rank_publish(r, true, err);
}

/* The part of the base that is frozen under a tenant's adapter, in the order of its parameters, which is nearly that of
 * the whole. */
static int share_base(const struct rank *r, struct rank *t, struct fsdpck_error *err)
{
    const struct layout *l = &t->job->layout;
    const char *tree = "model.";
    struct fsdpck_base_tensor *tensors = calloc(l->nparams + 1, sizeof *tensors);
    t->base = r->base;
    t->base.tensors = tensors;
    t->base.ntensors = 0;
    t->model_dtype = r->model_dtype;
    if (!tensors)
        return fsdpck_error_nomem(err, l->nparams * sizeof *tensors);
    for (size_t i = 0, at = 0; i < l->nparams; i++) {
        if (param_is_adapter(&l->params[i]))
            continue;
        for (size_t k = 0; k < r->base.ntensors; k++, at++) {
            const struct fsdpck_base_tensor *b = &r->base.tensors[at % r->base.ntensors];
            const bool in_tree = strncmp(b->name, tree, strlen(tree)) == 0;
            if (strcmp(b->name, l->params[i].source) == 0 ||
                (in_tree && strcmp(b->name + strlen(tree), l->params[i].source) == 0)) {
                tensors[t->base.ntensors++] = *b;
                break;
            }
        }
    }
    return 0;
}

int rank_load_tenants(struct rank *r, const bool *only_frozen, struct fsdpck_error *err)
{
    comm_at(r->comm, 0, "loading");
    const uint64_t started = comm_now_ns();
    int rc = load_base(r, false, err);
    r->load_ns = comm_now_ns() - started;
    for (size_t i = 0; i < r->job->ntenants && !rc; i++) {
        rc = share_base(r, &r->tenants[i], err);
        if (!rc)
            rc = begin_adapter(&r->tenants[i], only_frozen[i], err);
    }
    return rc ? rc : rank_publish(r, true, err);
}

int rank_load_beside(const struct rank *base, struct rank *r, bool only_frozen, struct fsdpck_error *err)
{
    int rc = share_base(base, r, err);
    if (!rc)
        rc = begin_adapter(r, only_frozen, err);
    return rc ? rc : rank_publish(r, true, err);
}

static int zero_state(struct rank *r, struct fsdpck_error *err)
{
    int rc = 0;
    const struct layout *l = &r->job->layout;
    const struct kern_memory *memory = r->compute->device->memory;
    for (size_t i = 0; i < l->nparams; i++) {
        const struct param *p = &l->params[i];
        int64_t first, nrow = p->trainable ? param_rows(p, r->comm->rank, &first) : 0;
        const size_t nbytes = nrow > 0 && rank_master(r, p) ? (size_t)(nrow * p->ncol) * sizeof(float) : 0;
        if (nbytes && rank_master_rests(r, p))
            rc = rc ? rc : host_rows_zero(r, rank_master(r, p), nbytes, err);
        else if (nbytes)
            memory->zero(r->compute->stream, rank_master(r, p), nbytes);
    }
    if (r->offload)
        offload_clear(r->offload);
    const size_t nelem = (size_t)(r->offload ? l->own_moved : l->own_nelem);
    if (nelem) {
        memory->zero(r->compute->stream, r->m + l->own_first, nelem * sizeof(float));
        memory->zero(r->compute->stream, r->v + l->own_first, nelem * sizeof(float));
    }
    return rc;
}

int rank_start_anew(struct rank *r, struct fsdpck_error *err)
{
    int rc = zero_state(r, err);
    r->step = r->updates = r->last_update = 0;
    free((void *)r->base.tensors);
    free(r->base_names);
    r->base = (struct fsdpck_base){ 0 };
    r->base_names = NULL;
    return rc ? rc : rank_load(r, false, err);
}
