/* SPDX-License-Identifier: Apache-2.0 */
/* Verifies an fsdpck directory: its chunk tables, and the tables against the index and the placement rule.
 * verify_bytes.c checks the bytes that the tables describe. Reports each problem and continues with the readable rest.
 */
#include "format/verify_impl.h"

#include <stdlib.h>
#include <string.h>

struct verifier {
    struct fsdpck_verifier common;
    struct fsdpck_source *src;
    uint64_t *nchunks; /* number of chunks of each file that belong to tensors */
    bool lost_count;   /* a tensor was not fully checked, so nchunks is too small */
};

static struct fsdpck_index *index_of(const struct verifier *v)
{
    return v->src->impl;
}

void fsdpck_verifier_report(struct fsdpck_verifier *v, const struct fsdpck_problem *p)
{
    pthread_mutex_lock(&v->lock);
    v->result->nproblems++;
    v->report(v->ctx, p);
    pthread_mutex_unlock(&v->lock);
}

void fsdpck_verifier_report_file(struct fsdpck_verifier *v, uint32_t rank, uint64_t offset, const char *tensor,
                                 const char *what)
{
    struct fsdpck_problem p = {
        .file = source_files(v->src)[rank].pub.name, .offset = offset, .rank = rank, .tensor = tensor, .what = what
    };
    fsdpck_verifier_report(v, &p);
}

void fsdpck_verifier_unread(struct fsdpck_verifier *v, uint32_t rank)
{
    pthread_mutex_lock(&v->lock);
    v->result->nunread += !v->unread[rank];
    v->unread[rank] = true;
    pthread_mutex_unlock(&v->lock);
}

int fsdpck_verifier_report_error(struct fsdpck_verifier *v, int code, const struct fsdpck_error *e, uint32_t rank,
                                 struct fsdpck_error *err)
{
    if (fsdpck_is_system_error(code)) {
        if (err && err->code == 0)
            *err = *e;
        return code;
    }
    fsdpck_verifier_report_file(v, rank, e->has_offset ? e->offset : 0, e->tensor[0] ? e->tensor : NULL, e->message);
    return 0;
}

/* ---- tables ---- */

/* The other files are still searched for the file's tensors. */
static const struct fsdpck_error unreadable = { .code = FSDPCK_ERR_DAMAGED,
                                                .message = "its chunk table cannot be read" };

static int check_file(struct verifier *v, uint32_t rank, struct fsdpck_error *err)
{
    const struct fsdpck_table *t;
    struct fsdpck_error e = { 0 };
    int rc = fsdpck_index_table(v->src, rank, &t, &e);
    if (!rc)
        return 0;
    ((struct index_file *)index_of(v)->files.data + rank)->broken = &unreadable;
    fsdpck_verifier_unread(&v->common, rank);
    return fsdpck_verifier_report_error(&v->common, rc, &e, rank, err);
}

/* ---- tables against the index ---- */

static int claim_extent(void *ctx, const struct fsdpck_extent *e, struct fsdpck_error *err)
{
    (void)err;
    ((struct verifier *)ctx)->nchunks[e->file]++;
    return 0;
}

static void report_tensor(struct verifier *v, const struct fsdpck_tensor *t, const struct fsdpck_error *e)
{
    struct fsdpck_problem p = { .file = "index.json", .rank = -1, .tensor = t->name, .what = e->message };
    for (uint32_t i = 0; i < v->src->files.count; i++)
        if (strcmp(source_files(v->src)[i].path, e->file) == 0) {
            p.file = source_files(v->src)[i].pub.name;
            p.rank = i;
        }
    fsdpck_verifier_report(&v->common, &p);
}

/* Every chunk that the rule or the list states must be in the tables. An earlier check proved that rule and list fill
 * the tensor. */
static int check_tensor(struct verifier *v, size_t ordinal, struct fsdpck_error *err)
{
    static const uint64_t zeros[FSDPCK_MAX_DIMS];
    const struct fsdpck_tensor *t = &source_tensors(v->src)[ordinal];
    struct fsdpck_error e = { 0 };
    if (t->alias_of >= 0 || t->nelem == 0)
        return 0;
    int rc = v->src->ops->extents(v->src, ordinal, zeros, t->shape, claim_extent, v, &e);
    if (fsdpck_is_system_error(rc)) {
        *err = e;
        return rc;
    }
    if (rc) {
        v->lost_count = true;
        fsdpck_verify_contents_suspect(v->common.contents, ordinal);
        report_tensor(v, t, &e);
    }
    return 0;
}

static int check_claims(struct verifier *v)
{
    const struct index_file *files = index_of(v)->files.data;
    for (uint32_t rank = 0; rank < v->src->files.count; rank++) {
        uint64_t nitems = 0, ntensors = 0;
        for (uint64_t i = 0; i < files[rank].loaded.nentries; i++)
            files[rank].loaded.entries[i].kind == FSDPCK_CHUNK_ITEM ? nitems++ : ntensors++;
        for (size_t i = 0; i < v->src->items.count; i++) {
            const struct source_item *it = &source_items(v->src)[i];
            uint64_t count, at = fsdpck_table_find(&files[rank].loaded, FSDPCK_CHUNK_ITEM, (uint32_t)i, &count);
            const struct fsdpck_table_entry *e = count == 1 ? &files[rank].loaded.entries[at] : NULL;
            if (it->file != rank || !files[rank].is_loaded)
                continue;
            if (!e || e->payload != it->offset || e->nbytes != it->pub.nbytes)
                fsdpck_verifier_report_file(&v->common, rank, it->offset, it->pub.name,
                                            "the chunk table does not hold this item as index.json places it");
            nitems -= e && nitems > 0;
        }
        if (files[rank].is_loaded && (nitems || (ntensors != v->nchunks[rank] && !v->lost_count)))
            fsdpck_verifier_report_file(&v->common, rank, files[rank].table, NULL,
                                        "the chunk table lists chunks that index.json does not know");
    }
    return 0;
}

/* ---- the whole checkpoint ---- */

static int verify(struct verifier *v, struct fsdpck_error *err)
{
    int rc = 0;
    v->nchunks = calloc(v->src->files.count + 1, sizeof *v->nchunks);
    v->common.unread = calloc(v->src->files.count + 1, sizeof *v->common.unread);
    if (!v->nchunks || !v->common.unread)
        return fsdpck_error_nomem(err, v->src->files.count * sizeof *v->nchunks);
    for (uint32_t rank = 0; !rc && rank < v->src->files.count; rank++)
        rc = check_file(v, rank, err);
    if (!rc)
        rc = fsdpck_verify_contents_new(&v->common, &v->common.contents, err);
    for (size_t i = 0; !rc && i < v->src->tensors.count; i++)
        rc = check_tensor(v, i, err);
    if (!rc)
        rc = check_claims(v);
    if (!rc)
        rc = fsdpck_verify_others(&v->common, err);
    if (!rc && !v->common.quick)
        rc = fsdpck_verify_bytes(&v->common, err);
    if (!rc)
        rc = fsdpck_verify_contents_check(v->common.contents, err);
    bool compare = index_of(v)->has_metadata &&
                   v->common.result->nproblems == 0; /* only of intact files; others were already reported */
    return !rc && compare && !v->common.metadata_pending ? fsdpck_verify_metadata(&v->common, err) : rc;
}

int fsdpck_verify_fsdpck(struct fsdpck_source *src, bool quick, fsdpck_problem_fn report_fn, void *report_ctx,
                         struct fsdpck_verify_result *result, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    struct verifier v = { .common = { .src = src,
                                      .quick = quick,
                                      .report = report_fn,
                                      .ctx = report_ctx,
                                      .result = result,
                                      .lock = PTHREAD_MUTEX_INITIALIZER },
                          .src = src };
    int rc = verify(&v, err ? err : &own);
    result->hashed = !rc && !quick && result->nunread == 0;
    fsdpck_verify_contents_free(v.common.contents);
    free(v.nchunks);
    free(v.common.unread);
    pthread_mutex_destroy(&v.common.lock);
    return rc;
}
