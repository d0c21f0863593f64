/* SPDX-License-Identifier: Apache-2.0 */
/* A save in phases: begin, a part by every rank, commit. The caller makes the ranks wait for each other. */
#include "verbs/save_phases.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "format/manifest.h"
#include "format/shard_name.h"
#include "engine/source_impl.h"
#include "verbs/save_check.h"
#include "verbs/save_commit.h"

static struct fsdpck_options filled(const struct fsdpck_options *opt)
{
    struct fsdpck_options out = opt ? *opt : (struct fsdpck_options){ 0 };
    fsdpck_options_fill(&out);
    return out;
}

/* ---- the coordinator ---- */

/* Lists the names of all files that the ranks will create. */
static int name_files(struct fsdpck_save_begun *b, struct fsdpck_error *err)
{
    int rc = 0;
    b->place.in_place = fsdpck_commit_in_place(b->commit);
    for (uint32_t rank = 0; !rc && rank < b->nranks; rank++) {
        char name[FSDPCK_SHARD_NAME_MAX];
        fsdpck_shard_name(rank, b->place.in_place, b->place.save_id, name);
        rc = fsdpck_commit_created(b->commit, name, err);
    }
    if (!rc && !(b->place.dir = strdup(fsdpck_commit_dir(b->commit))))
        rc = fsdpck_error_nomem(err, 0);
    return rc;
}

int fsdpck_save_begin(const struct fsdpck_save_request *req, const struct fsdpck_options *opt,
                      struct fsdpck_save_begun **begun, struct fsdpck_error *err)
{
    struct fsdpck_options o = filled(opt);
    struct fsdpck_error own = { 0 };
    err = err ? err : &own;
    *begun = NULL;
    int rc = fsdpck_save_check_ranks(req, err);
    if (rc)
        return rc;
    struct fsdpck_save_begun *b = calloc(1, sizeof *b);
    if (!b)
        return fsdpck_error_nomem(err, sizeof *b);
    b->nranks = req->nranks;
    rc = fsdpck_draw_save_id(o.io, b->place.save_id, err);
    if (!rc)
        rc = fsdpck_commit_begin(o.io, req->out, FSDPCK_COMMIT_CHECKPOINT, "index.json", b->place.save_id, req->force,
                                 &b->commit, err);
    if (!rc)
        rc = name_files(b, err);
    if (!rc)
        *begun = b;
    else
        fsdpck_save_abandon(b);
    return rc;
}

void fsdpck_save_abandon(struct fsdpck_save_begun *begun)
{
    if (!begun)
        return;
    fsdpck_commit_abandon(begun->commit);
    free(begun->place.dir);
    free(begun);
}

static int commit(struct fsdpck_save_begun *b, const struct fsdpck_save_request *req, const struct fsdpck_options *opt,
                  struct fsdpck_error *err)
{
    int rc = fsdpck_save_check_ranks(req, err);
    if (!rc && req->nranks != b->nranks)
        rc = fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "the save began with %u ranks, and commits with %u",
                              b->nranks, req->nranks);
    if (!rc)
        rc = fsdpck_save_check_lists(req, err);
    if (!rc)
        rc = fsdpck_save_check_state(req->state, err);
    if (!rc)
        rc = fsdpck_save_gather(req, opt, b->commit, b->place.save_id, err);
    if (rc)
        return rc;
    struct fsdpck_commit *c = b->commit;
    b->commit = NULL;
    return fsdpck_commit_finish(c, err);
}

int fsdpck_save_commit(struct fsdpck_save_begun *begun, const struct fsdpck_save_request *req,
                       const struct fsdpck_options *opt, struct fsdpck_error *err)
{
    struct fsdpck_options o = filled(opt);
    struct fsdpck_error own = { 0 };
    int rc = commit(begun, req, &o, err ? err : &own);
    fsdpck_save_abandon(begun);
    return rc;
}

/* ---- every rank ---- */

static int check_ascending(const uint32_t *ordinals, size_t n, struct fsdpck_error *err)
{
    for (size_t i = 1; ordinals && i < n; i++)
        if (ordinals[i] <= ordinals[i - 1])
            return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "ordinals of a part ascend; found %u after %u",
                                    ordinals[i], ordinals[i - 1]);
    return 0;
}

int fsdpck_save_part(const struct fsdpck_save_request *req, const uint32_t *tensor_ordinals,
                     const uint32_t *item_ordinals, const struct fsdpck_options *opt,
                     struct fsdpck_transfer_result *result, struct fsdpck_error *err)
{
    const struct fsdpck_save_ordinals ordinals = { .tensors = tensor_ordinals, .items = item_ordinals };
    struct fsdpck_options o = filled(opt);
    struct fsdpck_transfer_result none;
    struct fsdpck_save_place place = { 0 };
    struct fsdpck_error own = { 0 };
    int64_t start = o.io->now_ns(o.io->ctx);
    err = err ? err : &own;
    result = result ? result : &none;
    memset(result, 0, sizeof *result);
    int rc = fsdpck_save_check_ranks(req, err);
    if (!rc)
        rc = check_ascending(tensor_ordinals, req->ntensors, err);
    if (!rc)
        rc = check_ascending(item_ordinals, req->nitems, err);
    if (!rc)
        rc = fsdpck_save_check_lists(req, err);
    if (!rc)
        rc = fsdpck_save_check_data(req, err);
    if (!rc)
        rc = fsdpck_commit_join(o.io, req->out, place.save_id, &place.dir, &place.in_place, err);
    if (!rc)
        rc = fsdpck_save_shard(req, ordinals, &place, &o, result, err);
    result->ntensors = req->ntensors;
    result->nfiles = 1;
    fsdpck_uuid_format(place.save_id, result->save_id);
    result->seconds = (double)(o.io->now_ns(o.io->ctx) - start) * 1e-9;
    free(place.dir);
    return rc;
}
