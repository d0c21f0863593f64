/* SPDX-License-Identifier: Apache-2.0 */
/* A small cache between threads that need factors and the source that stores them. */
#include "lora/operands.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine/fetch.h"

enum { PIECE = 1 << 18 }; /* elements per read */

struct fsdpck_operands {
    struct fsdpck_lora_adapter *adapter;
    struct fsdpck_operand_set *sets; /* (nsets) */
    size_t nsets;
    uint64_t budget_nbytes, loaded_nbytes, clock;
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

/* ---- reading ---- */

static int check_finite(const struct fsdpck_source *src, size_t ordinal, const float *v, uint64_t n,
                        struct fsdpck_error *err)
{
    uint32_t special = 0;
    for (uint64_t i = 0; i < n; i++)
        special |= !isfinite(v[i]);
    if (!special)
        return 0;
    fsdpck_error_set(err, FSDPCK_ERR_FORMAT, src->path, "holds NaN or infinity: merging it would ruin the model");
    fsdpck_error_tensor(err, source_tensors(src)[ordinal].name);
    return FSDPCK_ERR_FORMAT;
}

int fsdpck_lora_read(struct fsdpck_source *src, size_t ordinal, uint64_t begin, uint64_t nelem, float *out,
                     struct fsdpck_error *err)
{
    struct fsdpck_fetch f = { 0 };
    enum fsdpck_dtype dtype = source_tensors(src)[ordinal].dtype;
    uint64_t item = fsdpck_dtype_info(dtype)->nbytes, most = nelem < PIECE ? nelem : PIECE;
    uint8_t *raw = malloc(most * item + 1);
    int rc = raw ? fsdpck_fetch_init(&f, src, err) : fsdpck_error_nomem(err, most * item);
    for (uint64_t at = 0; at < nelem && !rc; at += most) {
        uint64_t n = nelem - at < most ? nelem - at : most;
        rc = fsdpck_fetch_range(&f, ordinal, begin + at, begin + at + n, raw, err);
        if (!rc)
            fsdpck_dtype_cast(dtype, raw, FSDPCK_FLOAT32, out + at, n);
    }
    fsdpck_fetch_free(&f);
    free(raw);
    return rc ? rc : check_finite(src, ordinal, out, nelem, err);
}

/* Compares elements [at, at + n) of both. v: (2 * n) */
static int same_piece(const struct fsdpck_lora_adapter *a, int64_t x, int64_t y, uint64_t at, uint64_t n, float *v,
                      bool *same, struct fsdpck_error *err)
{
    int rc = fsdpck_lora_read(a->src, a->selection.tensors[x].source, at, n, v, err);
    if (!rc)
        rc = fsdpck_lora_read(a->src, a->selection.tensors[y].source, at, n, v + n, err);
    *same = !rc && memcmp(v, v + n, n * sizeof *v) == 0;
    return rc;
}

int fsdpck_lora_same(const struct fsdpck_lora_adapter *a, int64_t x, int64_t y, bool *same, struct fsdpck_error *err)
{
    uint64_t nelem = lora_tensor(a, x)->nelem, most = nelem < PIECE ? nelem : PIECE;
    float *v = malloc(2 * most * sizeof *v + 1);
    int rc = v ? 0 : fsdpck_error_nomem(err, 2 * most * sizeof *v);
    *same = true;
    for (uint64_t at = 0; at < nelem && !rc && *same; at += most)
        rc = same_piece(a, x, y, at, nelem - at < most ? nelem - at : most, v, same, err);
    free(v);
    return rc;
}

static void transpose(const float *in, uint64_t rows, uint64_t cols, float *out)
{
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t j = 0; j < cols; j++)
            out[j * rows + i] = in[i * cols + j];
}

/* Reads rows [first, first + rows) of the adapter's tensor, which has `cols` columns. */
static int read_rows(const struct fsdpck_operands *o, int64_t position, uint64_t first, uint64_t rows, uint64_t cols,
                     float *out, struct fsdpck_error *err)
{
    return fsdpck_lora_read(o->adapter->src, o->adapter->selection.tensors[position].source, first * cols, rows * cols,
                            out, err);
}

/* out: (r, in), or (in, r) if transposed */
static int read_a(const struct fsdpck_operands *o, const struct fsdpck_operand *x, float *out, struct fsdpck_error *err)
{
    const uint64_t r = x->module->r, in = x->transposed ? x->nrow : x->ncol;
    float *plain = x->transposed ? malloc(r * in * sizeof *plain) : out;
    int rc = plain ? read_rows(o, x->module->a, 0, r, in, plain, err) : fsdpck_error_nomem(err, r * in * sizeof *plain);
    if (!rc && x->transposed)
        transpose(plain, r, in, out);
    if (x->transposed)
        free(plain);
    return rc;
}

/* out: (outputs, r), or (r, outputs) if transposed. Outputs without a row of B keep zeros. */
static int read_b(const struct fsdpck_operands *o, const struct fsdpck_operand *x, float *out, struct fsdpck_error *err)
{
    const uint64_t r = x->module->r, all = x->transposed ? x->ncol : x->nrow;
    const bool dense = !x->transposed && x->nout == all;
    float *plain = dense ? out : malloc(x->nout * r * sizeof *plain);
    int rc = plain ? read_rows(o, x->module->b, x->first, x->nout, r, plain, err)
                   : fsdpck_error_nomem(err, x->nout * r * sizeof *plain);
    if (!rc && !dense)
        memset(out, 0, all * r * sizeof *out);
    for (uint64_t i = 0; i < x->nout && !rc && !dense; i++)
        for (uint64_t k = 0, at = x->place + i * x->step; k < r; k++)
            out[x->transposed ? k * all + at : at * r + k] = plain[i * r + k];
    if (!dense)
        free(plain);
    return rc;
}

static int load(const struct fsdpck_operands *o, struct fsdpck_operand_set *set, struct fsdpck_error *err)
{
    float *to = set->memory = malloc(set->nbytes);
    int rc = to ? 0 : fsdpck_error_nomem(err, set->nbytes);
    for (size_t i = 0; i < set->count && !rc; i++) {
        struct fsdpck_operand *x = &set->list[i];
        const struct fsdpck_lora_module *m = x->module;
        x->left = to;
        x->right = to += x->nrow * m->r;
        to += x->ncol * m->r;
        rc = read_a(o, x, x->transposed ? x->left : x->right, err);
        if (!rc)
            rc = read_b(o, x, x->transposed ? x->right : x->left, err);
    }
    return rc;
}

/* ---- sharing ---- */

int fsdpck_operands_new(struct fsdpck_lora_adapter *a, struct fsdpck_operand_set *sets, size_t nsets,
                        uint64_t budget_nbytes, struct fsdpck_operands **out, struct fsdpck_error *err)
{
    struct fsdpck_operands *o = calloc(1, sizeof *o);
    if (!o)
        return fsdpck_error_nomem(err, sizeof *o);
    *o = (struct fsdpck_operands){ .adapter = a, .sets = sets, .nsets = nsets, .budget_nbytes = budget_nbytes };
    pthread_mutex_init(&o->lock, NULL);
    pthread_cond_init(&o->changed, NULL);
    for (size_t i = 0; i < nsets; i++)
        for (size_t k = 0; k < sets[i].count; k++)
            sets[i].nbytes += (sets[i].list[k].nrow + sets[i].list[k].ncol) * sets[i].list[k].module->r * sizeof(float);
    *out = o;
    return 0;
}

static void drop(struct fsdpck_operands *o, struct fsdpck_operand_set *set)
{
    free(set->memory);
    set->memory = NULL;
    o->loaded_nbytes -= set->nbytes;
}

void fsdpck_operands_free(struct fsdpck_operands *o)
{
    if (!o)
        return;
    for (size_t i = 0; i < o->nsets; i++)
        free(o->sets[i].memory);
    pthread_cond_destroy(&o->changed);
    pthread_mutex_destroy(&o->lock);
    free(o);
}

/* A set that is being loaded belongs to its loader. Evicts the sets that were used longest ago; returns whether there
 * is space now. */
static bool make_room(struct fsdpck_operands *o, uint64_t nbytes)
{
    while (o->loaded_nbytes && o->loaded_nbytes + nbytes > o->budget_nbytes) {
        struct fsdpck_operand_set *oldest = NULL;
        for (size_t i = 0; i < o->nsets; i++)
            if (!o->sets[i].loading && o->sets[i].memory && !o->sets[i].users &&
                (!oldest || o->sets[i].used < oldest->used))
                oldest = &o->sets[i];
        if (!oldest)
            return false;
        drop(o, oldest);
    }
    return true;
}

static int load_set(struct fsdpck_operands *o, struct fsdpck_operand_set *set, struct fsdpck_error *err)
{
    set->loading = true;
    o->loaded_nbytes += set->nbytes;
    pthread_mutex_unlock(&o->lock);
    int rc = load(o, set, err);
    pthread_mutex_lock(&o->lock);
    set->loading = false;
    if (rc)
        drop(o, set);
    pthread_cond_broadcast(&o->changed);
    return rc;
}

int fsdpck_operands_acquire(struct fsdpck_operands *o, struct fsdpck_operand_set *set, struct fsdpck_error *err)
{
    int rc = 0;
    pthread_mutex_lock(&o->lock);
    while (set->loading || (!set->memory && !make_room(o, set->nbytes)))
        pthread_cond_wait(&o->changed, &o->lock);
    if (!set->memory)
        rc = load_set(o, set, err);
    if (!rc) {
        set->users++;
        set->used = ++o->clock;
    }
    pthread_mutex_unlock(&o->lock);
    return rc;
}

void fsdpck_operands_release(struct fsdpck_operands *o, struct fsdpck_operand_set *set)
{
    pthread_mutex_lock(&o->lock);
    if (--set->users == 0)
        pthread_cond_broadcast(&o->changed);
    pthread_mutex_unlock(&o->lock);
}
