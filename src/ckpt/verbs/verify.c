/* SPDX-License-Identifier: Apache-2.0 */
/* `verify`: opens a checkpoint and lets the format check itself. Damage that prevents opening becomes a problem like
 * any other. */
#include <fsdpck/base.h>

#include <stdlib.h>
#include <string.h>

#include "engine/files.h"
#include "base/ioutil.h"
#include "base/stop.h"
#include "engine/source_impl.h"
#include "verbs/open.h"

#define PIECE_NBYTES (1u << 20)

static bool is_damage(int code)
{
    return code == FSDPCK_ERR_FORMAT || code == FSDPCK_ERR_DAMAGED || code == FSDPCK_ERR_MISSING ||
           code == FSDPCK_ERR_LIMIT;
}

/* Returns the part of a file's path relative to the checkpoint. */
static const char *relative(const char *path, const char *file)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    if (strncmp(file, path, n) != 0)
        return file;
    return file[n] == '/' ? file + n + 1 : file[n] ? file : "";
}

static void report_error(const char *path, const struct fsdpck_error *e, fsdpck_problem_fn report, void *ctx)
{
    struct fsdpck_problem problem = { .file = relative(path, e->file),
                                      .offset = e->has_offset ? e->offset : 0,
                                      .rank = -1,
                                      .tensor = e->tensor[0] ? e->tensor : NULL,
                                      .what = e->message };
    report(ctx, &problem);
}

/* For formats without checksums: reading can find only disk errors. */
static int read_file(struct fsdpck_source *src, uint32_t file, uint8_t *piece, struct fsdpck_verify_result *result,
                     struct fsdpck_error *err)
{
    uint64_t nbytes = source_files(src)[file].pub.nbytes;
    for (uint64_t at = 0; at < nbytes; at += PIECE_NBYTES) {
        uint64_t n = nbytes - at < PIECE_NBYTES ? nbytes - at : PIECE_NBYTES;
        if (fsdpck_stop_asked(src->opt.stop))
            return fsdpck_error_set(err, FSDPCK_ERR_STOPPED, NULL, "stopped");
        int rc = fsdpck_files_read(src, file, piece, n, at, err);
        if (rc)
            return rc;
        result->read_nbytes += n;
    }
    return 0;
}

static int read_files(struct fsdpck_source *src, struct fsdpck_verify_result *result, struct fsdpck_error *err)
{
    uint8_t *piece = malloc(PIECE_NBYTES);
    int rc = piece ? 0 : fsdpck_error_nomem(err, PIECE_NBYTES);
    for (uint32_t i = 0; !rc && i < src->files.count; i++)
        rc = read_file(src, i, piece, result, err);
    free(piece);
    if (src->opt.note)
        src->opt.note(
            src->opt.ctx,
            "safetensors files have no checksums: their structure was checked and every byte could be read, no more");
    return rc;
}

static int check(struct fsdpck_source *src, bool quick, fsdpck_problem_fn report, void *ctx,
                 struct fsdpck_verify_result *result, struct fsdpck_error *err)
{
    result->ntensors = src->tensors.count;
    result->nfiles = src->files.count;
    if (src->ops->verify)
        return src->ops->verify(src, quick, report, ctx, result, err);
    return quick ? 0 : read_files(src, result, err);
}

struct problem_counter {
    fsdpck_problem_fn report;
    void *ctx;
    struct fsdpck_verify_result *result;
};

static void count(void *ctx, const struct fsdpck_problem *p)
{
    struct problem_counter *c = ctx;
    c->result->nproblems++;
    c->report(c->ctx, p);
}

/* Adapters have no value without the weights for which they were trained. */
static int check_base(struct fsdpck_source *src, bool quick, fsdpck_problem_fn report, void *ctx,
                      struct fsdpck_verify_result *result, struct fsdpck_error *err)
{
    struct problem_counter counting = { .report = report, .ctx = ctx, .result = result };
    struct fsdpck_source *base = NULL;
    struct fsdpck_error why = { 0 };
    int rc = fsdpck_base_open(src, NULL, &base, &why);
    if (!rc)
        rc = fsdpck_base_compare(src, base, quick, count, &counting, &result->read_nbytes, &why);
    if (is_damage(rc)) {
        char text[1024];
        const struct fsdpck_problem p = { .file = "",
                                          .rank = -1,
                                          .what = fsdpck_error_format(&why, text, sizeof text) };
        count(&counting, &p);
        rc = 0;
    } else if (rc) {
        *err = why;
    }
    fsdpck_source_close(base);
    return rc;
}

int fsdpck_verify(const char *path, const char *from, bool quick, const struct fsdpck_options *opt,
                  fsdpck_problem_fn report, void *report_ctx, struct fsdpck_verify_result *result,
                  struct fsdpck_error *err)
{
    struct fsdpck_source *src;
    struct fsdpck_error own = { 0 };
    struct fsdpck_options options = opt ? *opt : (struct fsdpck_options){ 0 };
    struct fsdpck_stat st;
    fsdpck_options_fill(&options);
    memset(result, 0, sizeof *result);
    int rc = options.io->stat(options.io->ctx, path, true, &st);
    if (rc < 0)
        return fsdpck_error_sys(err, -rc, path, "cannot open");
    int64_t start = options.io->now_ns(options.io->ctx);
    rc = fsdpck_source_open_as(path, from, &options, true, &src, &own);
    if (!rc)
        rc = check(src, quick, report, report_ctx, result, &own);
    if (!rc && src->base)
        rc = check_base(src, quick, report, report_ctx, result, &own);
    if (is_damage(rc)) {
        report_error(path, &own, report, report_ctx);
        result->nproblems++;
        rc = 0;
    }
    fsdpck_source_close(src);
    result->seconds = (double)(options.io->now_ns(options.io->ctx) - start) * 1e-9;
    if (rc && err && err->code == 0)
        *err = own;
    return rc;
}
