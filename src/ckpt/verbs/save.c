/* SPDX-License-Identifier: Apache-2.0 */
/* fsdpck_save(): the steps of a save on each rank. Every rank passes the same three barriers, even after an error, so
 * that no rank waits forever. */
#include <fsdpck/save.h>

#include <stdlib.h>
#include <string.h>

#include "commit/commit.h"
#include "base/hash.h"
#include "base/ioutil.h"
#include "engine/source_impl.h"
#include "verbs/save_check.h"
#include "verbs/save_list.h"
#include "verbs/save_phases.h"

#define INDEX_HEAD_NBYTES 128u /* format, version, requires, save_id come first; an index is never shorter */

struct save {
    const struct fsdpck_save_request *req;
    struct fsdpck_options opt;
    struct fsdpck_save_begun *begun; /* rank 0's */
    struct fsdpck_save_place place;  /* by this rank's path */
    struct fsdpck_save_list list;
    struct fsdpck_error *err;
};

static int check(const struct fsdpck_save_request *req, struct fsdpck_error *err)
{
    int rc = fsdpck_save_check_ranks(req, err);
    if (!rc && req->nranks > 1 && !req->barrier)
        rc = fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "a save of %u ranks wants a barrier", req->nranks);
    if (!rc)
        rc = fsdpck_save_check_lists(req, err);
    return !rc ? fsdpck_save_check_data(req, err) : rc;
}

/* Rank 0: makes the staging directory, and the file by which the others compare their lists. */
static int begin(struct save *s)
{
    int rc = fsdpck_save_check_state(s->req->state, s->err);
    if (!rc)
        rc = fsdpck_save_begin(s->req, &s->opt, &s->begun, s->err);
    if (rc)
        return rc;
    s->place = s->begun->place;
    if (!(s->place.dir = strdup(s->begun->place.dir)))
        return fsdpck_error_nomem(s->err, 0);
    rc = fsdpck_save_list_name(s->req, s->place.save_id, &s->list, s->err);
    return !rc ? fsdpck_save_list_put(s->opt.io, s->place.dir, &s->list, s->err) : rc;
}

/* Other ranks: find rank 0's staging directory, and check that it is for the same tensors. */
static int join(struct save *s)
{
    struct fsdpck_save_place *p = &s->place;
    int rc = fsdpck_commit_join(s->opt.io, s->req->out, p->save_id, &p->dir, &p->in_place, s->err);
    if (!rc)
        rc = fsdpck_save_list_name(s->req, p->save_id, &s->list, s->err);
    return !rc ? fsdpck_save_list_check(s->opt.io, p->dir, &s->list, s->req->rank, s->err) : rc;
}

static int write_shard(struct save *s, struct fsdpck_transfer_result *result)
{
    int rc = fsdpck_save_shard(s->req, (struct fsdpck_save_ordinals){ 0 }, &s->place, &s->opt, result, s->err);
    if (rc && s->req->rank != 0)
        fsdpck_save_list_fail(s->opt.io, s->place.dir, &s->list);
    return rc;
}

/* Rank 0: commits or abandons everything. */
static int end(struct save *s, int r)
{
    struct fsdpck_save_begun *begun = s->begun;
    s->begun = NULL;
    if (r == 0)
        r = fsdpck_save_list_take(s->opt.io, s->place.dir, &s->list, s->err);
    if (r == 0)
        return fsdpck_save_commit(begun, s->req, &s->opt, s->err);
    fsdpck_save_abandon(begun);
    return r;
}

static int wait_for_ranks(const struct save *s)
{
    return s->req->barrier ? s->req->barrier(s->req->barrier_ctx) : 0;
}

static int fail_lost(const struct save *s, int code)
{
    return fsdpck_error_set(s->err, FSDPCK_ERR_PEER, s->req->out,
                            "the save was given up: the barrier failed (%d), a rank is lost", code);
}

/* Other ranks: regardless of the barriers, check the output: either it is now this save, or the save was abandoned. */
static int check_committed(struct save *s, int barrier_code)
{
    const struct fsdpck_io *io = s->opt.io;
    struct fsdpck_error why = { 0 };
    char head[INDEX_HEAD_NBYTES + 1] = { 0 }, uuid[37];
    char *path = fsdpck_path_join(s->req->out, "index.json", &why);
    int fd = path ? io->open(io->ctx, path, FSDPCK_OPEN_READ, 0) : -1;
    if (fd >= 0) {
        fsdpck_read_full(io, fd, path, head, INDEX_HEAD_NBYTES, 0, &why);
        io->close(io->ctx, fd);
    } else if (path) {
        fsdpck_error_sys(&why, -fd, path, "cannot open");
    }
    free(path);
    fsdpck_uuid_format(s->place.save_id, uuid);
    if (why.code == 0 && strstr(head, uuid))
        return 0;
    if (barrier_code != 0)
        return fail_lost(s, barrier_code);
    if (why.code == 0 || why.code == FSDPCK_ERR_MISSING)
        return fsdpck_error_set(s->err, FSDPCK_ERR_PEER, s->req->out,
                                "the save was given up: rank 0, or a rank before it, failed and says why");
    fsdpck_error_hint(&why, "this rank cannot see whether the save was committed; rank 0 knows");
    *s->err = why;
    return why.code;
}

static int save(struct save *s, struct fsdpck_transfer_result *result)
{
    bool first = s->req->rank == 0;
    int rc = check(s->req, s->err);
    if (!rc && first)
        rc = begin(s);
    int code = wait_for_ranks(s);
    if (!rc && code != 0)
        rc = fail_lost(s, code);
    if (!rc && !first)
        rc = join(s);
    if (!rc)
        rc = write_shard(s, result);
    code = wait_for_ranks(s);
    if (!rc && first && code != 0)
        rc = fail_lost(s, code);
    if (s->begun)
        rc = end(s, rc);
    int last = wait_for_ranks(s);
    /* a rank lost after the commit does not matter */
    return !rc && !first ? check_committed(s, code ? code : last) : rc;
}

int fsdpck_save(const struct fsdpck_save_request *req, const struct fsdpck_options *opt,
                struct fsdpck_transfer_result *result, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    struct fsdpck_transfer_result none;
    struct save s = { .req = req, .opt = opt ? *opt : (struct fsdpck_options){ 0 }, .err = err ? err : &own };
    fsdpck_options_fill(&s.opt);
    int64_t start = s.opt.io->now_ns(s.opt.io->ctx);
    result = result ? result : &none;
    memset(result, 0, sizeof *result);
    int rc = save(&s, result);
    result->ntensors = req->ntensors;
    result->nfiles = req->nranks;
    fsdpck_uuid_format(s.place.save_id, result->save_id);
    result->seconds = (double)(s.opt.io->now_ns(s.opt.io->ctx) - start) * 1e-9;
    free(s.place.dir);
    return rc;
}
