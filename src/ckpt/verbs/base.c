/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the frozen base that a checkpoint of adapters names, and compares it with the base of the training. Knows no
 * format. */
#include "verbs/base_check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/stop.h"
#include <fsdpck/packed.h>

#include "engine/source_impl.h"
#include "tensor/box.h"
#include "tensor/rows.h"
#include "view/experts.h"

#define PIECE_NBYTES (8u << 20)

const struct fsdpck_base *fsdpck_source_base(const struct fsdpck_source *src)
{
    return src->base;
}

/* If the checkpoint was opened without checks, so is its base. */
static int open_base(const struct fsdpck_source *src, const struct fsdpck_options *opt, struct fsdpck_source **base,
                     struct fsdpck_error *err)
{
    struct fsdpck_options with = *opt;
    with.no_verify = with.no_verify || src->opt.no_verify;
    return fsdpck_source_open(src->base->path, NULL, &with, base, err);
}

int fsdpck_base_open(const struct fsdpck_source *src, const struct fsdpck_options *opt, struct fsdpck_source **base,
                     struct fsdpck_error *err)
{
    struct fsdpck_stat st;
    *base = NULL;
    if (!src->base) {
        fsdpck_error_set(err, FSDPCK_ERR_MISSING, src->path, "names no base that its adapters belong to");
        fsdpck_error_hint(err, "the base_model_name_or_path of a PEFT folder is only a name: give the base itself");
        return FSDPCK_ERR_MISSING;
    }
    if (src->io->stat(src->io->ctx, src->base->path, true, &st) == 0)
        return open_base(src, opt ? opt : &src->opt, base, err);
    fsdpck_error_set(err, FSDPCK_ERR_MISSING, src->base->path,
                     "is not there: the frozen base that the adapters of '%s' belong to", src->path);
    fsdpck_error_hint(err, "the way to it, in index.json, is relative to the checkpoint: the two move together");
    return FSDPCK_ERR_MISSING;
}

/* ---- one tensor ---- */

struct comparison {
    struct fsdpck_source *base;
    bool quick;
    fsdpck_problem_fn report;
    void *ctx;
    uint64_t *read_nbytes;
    uint8_t *piece;
    struct fsdpck_rows rows;
    const struct fsdpck_tensor *tensor; /* the tensor being read */
    uint8_t *dst;
    struct fsdpck_error *err;
};

static void report(const struct comparison *c, const char *tensor, const char *what)
{
    char text[600];
    snprintf(text, sizeof text, "the frozen base '%.400s' %s", c->base->path, what);
    const struct fsdpck_problem p = { .file = "", .rank = -1, .tensor = tensor, .what = text };
    c->report(c->ctx, &p);
}

static int read_box(void *ctx, const uint64_t *offset, const uint64_t *size)
{
    struct comparison *c = ctx;
    const struct fsdpck_read read = { .tensor = c->tensor, .offset = offset, .size = size, .dst = c->dst };
    c->dst += fsdpck_box_nelem(size, c->tensor->ndim) * fsdpck_dtype_info(c->tensor->dtype)->nbytes;
    return fsdpck_source_read(c->base, &read, 1, c->err);
}

static int read_content(struct comparison *c, const struct fsdpck_tensor *t, uint8_t content[16])
{
    uint64_t item = fsdpck_dtype_info(t->dtype)->nbytes, step = PIECE_NBYTES / item;
    c->tensor = t;
    c->rows.sum = (struct fsdpck_content){ 0 };
    if (t->nelem)
        fsdpck_rows_begin(&c->rows, t->ndim ? t->nbytes / t->shape[0] : t->nbytes, 0);
    for (uint64_t at = 0; at < t->nelem; at += step) {
        uint64_t n = t->nelem - at < step ? t->nelem - at : step;
        c->dst = c->piece;
        int rc = fsdpck_stop_asked(c->base->opt.stop) ? fsdpck_error_set(c->err, FSDPCK_ERR_STOPPED, NULL, "stopped")
                                                      : fsdpck_range_boxes(t->ndim, t->shape, at, at + n, read_box, c);
        if (rc)
            return rc;
        fsdpck_rows_add(&c->rows, c->piece, n * item);
        *c->read_nbytes += n * item;
    }
    fsdpck_content_store(&c->rows.sum, content);
    return 0;
}

static int compare_content(struct comparison *c, const struct fsdpck_base_tensor *want, const struct fsdpck_tensor *t)
{
    uint8_t content[16];
    if (!t->has_content && c->quick)
        return 0;
    int rc = t->has_content ? 0 : read_content(c, t, content);
    if (!rc && memcmp(t->has_content ? t->content : content, want->content, sizeof content) != 0)
        report(c, want->name, "has other values in it than the one that the adapters were trained on");
    return rc;
}

static int compare(struct comparison *c, const struct fsdpck_base_tensor *want)
{
    const struct fsdpck_tensor *t = fsdpck_source_find(c->base, want->name);
    if (!t)
        report(c, want->name, "lacks it");
    else if (t->dtype != want->dtype || t->ndim != want->ndim ||
             (t->ndim && memcmp(t->shape, want->shape, t->ndim * sizeof *t->shape) != 0))
        report(c, want->name, "has it in another dtype or shape than the one that the adapters were trained on");
    else
        return compare_content(c, want, t);
    return 0;
}

/* ---- all tensors ---- */

/* Whether the trainer read single experts out of a base that holds all experts of a layer in one tensor. */
static bool was_cut(const struct fsdpck_source *src, const struct fsdpck_source *base)
{
    bool wanted = false, single = false, fused = false;
    for (size_t i = 0; i < src->base->ntensors; i++)
        wanted = wanted || fsdpck_expert_is_single_name(src->base->tensors[i].name);
    for (size_t i = 0; i < base->tensors.count; i++) {
        const char *name = source_tensors(base)[i].name;
        single = single || fsdpck_expert_is_single_name(name);
        fused = fused || (fsdpck_expert_is_name(name) && !fsdpck_expert_is_single_name(name));
    }
    return wanted && fused && !single;
}

/* Opens the base a second time, with its weights as the trainer held them. */
static int open_held(const struct fsdpck_source *base, bool cut, const char *how, struct fsdpck_source **out,
                     struct fsdpck_error *err)
{
    struct fsdpck_options quiet = base->opt;
    quiet.note = NULL;
    quiet.progress = NULL;
    int rc = fsdpck_source_open(base->path, fsdpck_source_kind(base), &quiet, out, err);
    if (!rc && cut)
        rc = fsdpck_source_set_names(*out, "hf", NULL, err);
    return rc || !how ? rc : fsdpck_source_hold(*out, how, err);
}

static int compare_all(const struct fsdpck_source *src, struct comparison *c)
{
    int rc = 0;
    for (size_t i = 0; i < src->base->ntensors && !rc; i++)
        rc = compare(c, &src->base->tensors[i]);
    return rc ? rc : fsdpck_source_check(c->base, c->err);
}

int fsdpck_base_compare(const struct fsdpck_source *src, struct fsdpck_source *base, bool quick,
                        fsdpck_problem_fn report, void *report_ctx, uint64_t *read_nbytes, struct fsdpck_error *err)
{
    struct fsdpck_source *held = NULL;
    struct fsdpck_error own = { 0 };
    struct comparison c = { .base = base,
                            .quick = quick,
                            .report = report,
                            .ctx = report_ctx,
                            .read_nbytes = read_nbytes,
                            .err = err ? err : &own };
    if (!src->base)
        return 0;
    const bool cut = was_cut(src, base);
    int rc = cut || src->base->held ? open_held(base, cut, src->base->held, &held, c.err) : 0;
    c.base = held ? held : base;
    if (!rc && !quick)
        rc = fsdpck_rows_init(&c.rows, c.err);
    if (!rc && !quick && !(c.piece = malloc(PIECE_NBYTES)))
        rc = fsdpck_error_nomem(c.err, PIECE_NBYTES);
    if (!rc)
        rc = compare_all(src, &c);
    free(c.piece);
    fsdpck_source_close(held);
    fsdpck_rows_free(&c.rows);
    return rc;
}

static void keep_first(void *ctx, const struct fsdpck_problem *p)
{
    struct fsdpck_error *err = ctx;
    if (err->code == 0) {
        fsdpck_error_set(err, FSDPCK_ERR_DAMAGED, NULL, "%s", p->what);
        fsdpck_error_tensor(err, p->tensor);
        fsdpck_error_hint(err, "adapters are good for nothing but the weights that they were trained on");
    }
}

int fsdpck_base_check(const struct fsdpck_source *src, struct fsdpck_source *base, bool quick, struct fsdpck_error *err)
{
    struct fsdpck_error first = { 0 };
    uint64_t read_nbytes = 0;
    int rc = src->base ? fsdpck_base_compare(src, base, quick, keep_first, &first, &read_nbytes, err) : 0;
    if (rc || first.code == 0)
        return rc;
    if (err && err->code == 0) {
        *err = first;
        snprintf(err->file, sizeof err->file, "%.500s", src->path);
    }
    return first.code;
}

int fsdpck_base_check_quick(const struct fsdpck_source *src, const struct fsdpck_options *opt, struct fsdpck_error *err)
{
    struct fsdpck_source *base = NULL;
    struct fsdpck_error why = { 0 };
    char line[1200];
    int rc = src->base ? fsdpck_base_open(src, opt, &base, &why) : 0;
    if (!rc && base)
        rc = fsdpck_base_check(src, base, true, &why);
    fsdpck_source_close(base);
    if (rc == FSDPCK_ERR_MISSING && !base) {
        fsdpck_error_format(&why, line, sizeof line);
        if (opt->note)
            opt->note(opt->ctx, line);
        return 0;
    }
    if (rc && err && err->code == 0)
        *err = why;
    return rc;
}
