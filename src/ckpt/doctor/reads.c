/* SPDX-License-Identifier: Apache-2.0 */
#include "doctor/reads.h"

#include <stdlib.h>

#include "tensor/box.h"

#define PIECE_NBYTES (8u << 20)

bool fsdpck_doctor_reads_begin(struct doctor *d, const struct doctor_model *m, struct doctor_reads *r)
{
    struct fsdpck_options opt = *d->opt;
    struct fsdpck_error why = { 0 };
    opt.note = NULL; /* how a source is read is no finding */
    opt.progress = NULL;
    *r = (struct doctor_reads){ .piece = malloc(PIECE_NBYTES) };
    if (!r->piece)
        fsdpck_error_nomem(d->err, PIECE_NBYTES);
    else if (fsdpck_source_open(m->path, "hf", &opt, &r->src, &why) == FSDPCK_ERR_NOMEM)
        *d->err = why;
    return r->src != NULL;
}

void fsdpck_doctor_reads_end(struct doctor_reads *r)
{
    fsdpck_source_close(r->src);
    free(r->piece);
}

struct reading {
    struct doctor *d;
    struct doctor_reads *r;
    const struct fsdpck_tensor *tensor;
    doctor_values_fn visit;
    void *ctx;
};

/* Returns nonzero to stop: after an error, or where visit() has seen enough. */
static int read_box(void *ctx, const uint64_t *offset, const uint64_t *size)
{
    const struct reading *g = ctx;
    const struct fsdpck_read read = { .tensor = g->tensor, .offset = offset, .size = size, .dst = g->r->piece };
    if (fsdpck_source_read(g->r->src, &read, 1, g->d->err) != 0)
        return -1;
    return g->visit(g->ctx, g->r->piece, fsdpck_box_nelem(size, g->tensor->ndim)) ? 0 : 1;
}

bool fsdpck_doctor_read(struct doctor *d, struct doctor_reads *r, const char *name, uint64_t begin, uint64_t end,
                        doctor_values_fn visit, void *ctx)
{
    struct reading g = { d, r, fsdpck_source_find(r->src, name), visit, ctx };
    const uint64_t most = g.tensor ? PIECE_NBYTES / fsdpck_dtype_info(g.tensor->dtype)->nbytes : 0;
    int stopped = !g.tensor;
    for (uint64_t at = begin; !stopped && at < end;) {
        const uint64_t n = end - at < most ? end - at : most;
        stopped = fsdpck_range_boxes(g.tensor->ndim, g.tensor->shape, at, at + n, read_box, &g);
        at += n;
    }
    return !d->err->code;
}

/* ---- hashes ---- */

struct hashing {
    struct fsdpck_hasher *hasher;
    uint32_t item_nbytes;
};

static bool add_to_hash(void *ctx, const uint8_t *data, uint64_t nelem)
{
    const struct hashing *h = ctx;
    fsdpck_hasher_add(h->hasher, data, nelem * h->item_nbytes);
    return true;
}

bool fsdpck_doctor_hash(struct doctor *d, struct doctor_reads *r, const struct doctor_tensor *t, uint64_t begin,
                        uint64_t end, struct fsdpck_hash128 *out)
{
    struct hashing h = { fsdpck_hasher_new(), fsdpck_dtype_info(t->dtype)->nbytes };
    if (!h.hasher) {
        fsdpck_error_nomem(d->err, sizeof *out);
        return false;
    }
    bool read = fsdpck_doctor_read(d, r, t->name, begin, end, add_to_hash, &h);
    fsdpck_hasher_finish(h.hasher, out);
    fsdpck_hasher_free(h.hasher);
    return read;
}

/* Compares elements [begin, end). */
static enum doctor_likeness compare_part(struct doctor *d, struct doctor_reads *r, const struct doctor_tensor *a,
                                         const struct doctor_tensor *b, uint64_t begin, uint64_t end)
{
    struct fsdpck_hash128 ha, hb;
    if (!fsdpck_doctor_hash(d, r, a, begin, end, &ha) || !fsdpck_doctor_hash(d, r, b, begin, end, &hb))
        return DOCTOR_UNKNOWN;
    return fsdpck_hash_equal(&ha, &hb) ? DOCTOR_EQUAL : DOCTOR_OTHER;
}

/* A few values prove that two tensors differ, and never that they are equal. */
static enum doctor_likeness compare_samples(struct doctor *d, struct doctor_reads *r, const struct doctor_tensor *a,
                                            const struct doctor_tensor *b, uint64_t nelem)
{
    enum { NSAMPLES = 3, SAMPLE_NELEM = 4096 };
    const uint64_t n = nelem < SAMPLE_NELEM ? nelem : SAMPLE_NELEM, step = (nelem - n) / (NSAMPLES - 1);
    for (uint64_t i = 0; i < NSAMPLES; i++)
        if (compare_part(d, r, a, b, i * step, i * step + n) == DOCTOR_OTHER)
            return DOCTOR_OTHER;
    return DOCTOR_UNKNOWN;
}

enum doctor_likeness fsdpck_doctor_compare(struct doctor *d, const struct doctor_tensor *a,
                                           const struct doctor_tensor *b, bool all)
{
    const uint64_t nelem = a->nbytes / fsdpck_dtype_info(a->dtype)->nbytes;
    enum doctor_likeness like = DOCTOR_UNKNOWN;
    struct doctor_reads r;
    if (a->dtype != b->dtype || a->nbytes != b->nbytes)
        return DOCTOR_OTHER;
    if (fsdpck_doctor_reads_begin(d, d->model, &r))
        like = all ? compare_part(d, &r, a, b, 0, nelem) : compare_samples(d, &r, a, b, nelem);
    fsdpck_doctor_reads_end(&r);
    return like;
}
