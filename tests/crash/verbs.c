/* SPDX-License-Identifier: Apache-2.0 */
/* Runs whole verbs (verbs.h). Uses only the public interface of the library. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "verbs_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fsdpck/export.h>

#include "base/suffix.h"
#include "ranks.h"
#include "tree.h"

enum { CUT_NBYTES = 160 << 10 };
#define MEMORY_NBYTES (16ull << 20) /* enough for one worker per thread */

/* Fsyncs that no crash needs. The folder's own fsync after its assets were written: the commit repeats it. The one
 * after which a failed exchange is undone. For an adapter's folder, either of two will do, because nothing is written
 * to it between them. As its files keep their names, no old file is removed in place, and the fsync after that has
 * nothing to do. */
enum {
    SPARE_FOLDER = 1 << 4,
    SPARE_UNDO = 1 << 2,
    SPARE_ONE_OF_TWO = 1 << 3 | 1 << 4,
    SPARE_IN_PLACE = 1 << 3 | 1 << 8
};

const struct verb verbs[] = {
    { .name = "convert", .kind = VERB_CONVERT, .nranks = 2 },
    { .name = "convert --force", .kind = VERB_CONVERT, .nranks = 2, .old = true },
    { .name = "convert --force, in steps", .kind = VERB_CONVERT, .nranks = 2, .old = true, .no_exchange = true },
    { .name = "convert --force, in place", .kind = VERB_CONVERT, .nranks = 2, .old = true, .mount = true },
    { .name = "convert --compress", .kind = VERB_CONVERT, .nranks = 2, .compress = true },
    { .name = "reshard", .kind = VERB_RESHARD, .nranks = 2 },
    { .name = "reshard --compress --force, in place",
      .kind = VERB_RESHARD,
      .nranks = 2,
      .old = true,
      .mount = true,
      .compress = true },
    { .name = "reshard, with a base", .kind = VERB_RESHARD, .nranks = 2, .reference = true },
    { .name = "export", .kind = VERB_EXPORT_FOLDER, .nranks = 1, .spare_fsyncs = SPARE_FOLDER },
    { .name = "export --force", .kind = VERB_EXPORT_FOLDER, .nranks = 1, .old = true, .spare_fsyncs = SPARE_FOLDER },
    { .name = "export --force, in place",
      .kind = VERB_EXPORT_FOLDER,
      .nranks = 1,
      .old = true,
      .mount = true,
      .spare_fsyncs = SPARE_FOLDER },
    { .name = "export to a file", .kind = VERB_EXPORT_FILE, .nranks = 1 },
    { .name = "export to a file, --force",
      .kind = VERB_EXPORT_FILE,
      .nranks = 1,
      .old = true,
      .spare_fsyncs = SPARE_UNDO },
    { .name = "export-lora", .kind = VERB_EXPORT_LORA, .nranks = 1, .spare_fsyncs = SPARE_ONE_OF_TWO },
    { .name = "export-lora --force, in place",
      .kind = VERB_EXPORT_LORA,
      .nranks = 1,
      .old = true,
      .mount = true,
      .spare_fsyncs = SPARE_IN_PLACE },
    { .name = "merge-lora", .kind = VERB_MERGE_LORA, .nranks = 1, .spare_fsyncs = SPARE_FOLDER },
    { .name = "merge-lora --force", .kind = VERB_MERGE_LORA, .nranks = 1, .old = true, .spare_fsyncs = SPARE_FOLDER },
    { .name = "save", .kind = VERB_SAVE, .nranks = 2 },
    { .name = "save, with a base", .kind = VERB_SAVE, .nranks = 2, .old = true, .reference = true },
    { .name = "save over an old one", .kind = VERB_SAVE, .nranks = 3, .old = true },
    { .name = "save in place", .kind = VERB_SAVE, .nranks = 2, .old = true, .mount = true },
    { .name = "save in phases", .kind = VERB_SAVE, .nranks = 2, .old = true, .compress = true, .phases = true },
};
const size_t nverbs = sizeof verbs / sizeof verbs[0];

uint32_t verb_writers(const struct verb *v)
{
    return v->kind == VERB_SAVE ? v->nranks : 1;
}
const char *verb_out(const struct verb *v)
{
    return v->kind == VERB_EXPORT_FILE ? "out.safetensors" : "out";
}

bool verb_is_folder(const struct verb *v)
{
    return v->kind == VERB_EXPORT_FOLDER || v->kind == VERB_MERGE_LORA;
}
bool verb_is_export(const struct verb *v)
{
    return verb_is_folder(v) || v->kind == VERB_EXPORT_FILE;
}

void verb_fail(const struct verb *v, const char *root, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    char *names = tree_names(root);
    print_error("%s: %s; there is:\n%s", v->name, text, names);
    free(names);
    fail();
}

struct fsdpck_options verb_options(const struct fsdpck_io *io, unsigned nthreads)
{
    nthreads = nthreads > 0 ? nthreads : 1;
    return (struct fsdpck_options){ .io = io, .nthreads = nthreads, .memory_nbytes = nthreads * MEMORY_NBYTES };
}

int verb_convert(const char *from, const char *out, uint32_t nranks, bool force, bool compress,
                 const struct fsdpck_options *opt, struct fsdpck_error *err)
{
    static const char *const whole[] = { RANKS_REPLICATED };
    struct fsdpck_convert_request req = { .out = out,
                                          .mesh = { .ndim = 1, .names = { "shard" }, .sizes = { nranks } },
                                          .replicate = whole,
                                          .nreplicate = 1,
                                          .force = force,
                                          .compress = compress };
    struct fsdpck_source *src = NULL;
    int rc = fsdpck_source_open(from, NULL, opt, &src, err);
    if (rc == 0)
        rc = fsdpck_convert(src, &req, opt, NULL, err);
    fsdpck_source_close(src);
    return rc;
}

int verb_export(const char *from, const char *out, bool whole, bool force, const struct fsdpck_options *opt,
                struct fsdpck_error *err)
{
    bool is_file = ends_with(out, ".safetensors"); /* a single file is not split */
    const struct fsdpck_export_request req = { .out = out,
                                               .max_shard_nbytes = whole || is_file ? 0 : CUT_NBYTES,
                                               .force = force };
    struct fsdpck_source *src = NULL;
    int rc = fsdpck_source_open(from, NULL, opt, &src, err);
    if (rc == 0)
        rc = fsdpck_export(src, &req, opt, NULL, err);
    fsdpck_source_close(src);
    return rc;
}

int verb_export_lora(const char *from, const char *out, const struct fsdpck_lora_choice *choice, bool force,
                     const struct fsdpck_options *opt, struct fsdpck_error *err)
{
    const struct fsdpck_export_lora_request req = { .out = out, .choice = *choice, .force = force };
    struct fsdpck_source *src = NULL;
    int rc = fsdpck_source_open(from, NULL, opt, &src, err);
    if (rc == 0)
        rc = fsdpck_export_lora(src, &req, opt, NULL, err);
    fsdpck_source_close(src);
    return rc;
}

const struct fsdpck_lora_choice verb_scaling = { .has_alpha = true, .alpha = 2 },
                                verb_old_scaling = { .has_alpha = true, .alpha = 3 };

static int merge_lora(const char *from, const char *adapter, const char *out, bool force,
                      const struct fsdpck_options *opt, struct fsdpck_error *err)
{
    const struct fsdpck_merge_lora_request req = {
        .out = out, .choice = verb_scaling, .max_shard_nbytes = CUT_NBYTES, .force = force
    };
    struct fsdpck_source *base = NULL, *lora = NULL;
    int rc = fsdpck_source_open(from, NULL, opt, &base, err);
    if (rc == 0)
        rc = fsdpck_source_open(adapter, NULL, opt, &lora, err);
    if (rc == 0)
        rc = fsdpck_merge_lora(base, lora, &req, opt, NULL, err);
    fsdpck_source_close(base);
    fsdpck_source_close(lora);
    return rc;
}

void verb_tables(const struct verb *v, const struct ground *g, struct faulty **f, struct verb_how *how)
{
    for (uint32_t i = 0; i < VERB_MAX_RANKS; i++) {
        f[i] = i < verb_writers(v) ? faulty_new(g->root) : NULL;
        if (f[i] == NULL)
            continue;
        if (v->mount)
            faulty_other_device(f[i], g->out);
        if (v->no_exchange)
            faulty_no_exchange(f[i]);
        how->io[i] = faulty_io(f[i]);
    }
}

void verb_tables_free(struct faulty **f)
{
    for (int i = 0; i < VERB_MAX_RANKS; i++)
        faulty_free(f[i]);
}

void verb_run(const struct verb *v, const struct ground *g, const struct verb_how *how, struct verb_result *result)
{
    const struct fsdpck_options opt = verb_options(how->io[0], how->nthreads);
    const char *out = g->out;
    memset(result, 0, sizeof *result);
    if (v->kind == VERB_SAVE)
        ranks_save(v, &g->is, out, g->folder, v->reference ? &g->base : NULL, &opt, how, result);
    else if (v->kind == VERB_EXPORT_LORA)
        result->code[0] = verb_export_lora(g->adapter, out, &verb_scaling, how->force, &opt, &result->err[0]);
    else if (v->kind == VERB_MERGE_LORA)
        result->code[0] = merge_lora(g->checkpoint, g->no_change, out, how->force, &opt, &result->err[0]);
    else if (verb_is_export(v))
        result->code[0] = verb_export(g->checkpoint, out, v->whole, how->force, &opt, &result->err[0]);
    else
        result->code[0] = verb_convert(v->reference              ? g->referring
                                       : v->kind == VERB_RESHARD ? g->checkpoint
                                                                 : g->folder,
                                       out, v->nranks, how->force, v->compress, &opt, &result->err[0]);
}

bool verb_run_killed(const struct verb *v, const struct ground *g, uint32_t rank, unsigned n, unsigned nthreads,
                     bool force)
{
    struct faulty *f[VERB_MAX_RANKS];
    struct verb_how how = { .nthreads = nthreads, .force = force };
    struct verb_result result;
    verb_tables(v, g, f, &how);
    faulty_kill_at(f[rank], n);
    how.mortal[rank] = f[rank];
    verb_run(v, g, &how, &result);
    bool killed = faulty_hit(f[rank]);
    verb_tables_free(f);
    return killed;
}
