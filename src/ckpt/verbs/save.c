/* SPDX-License-Identifier: Apache-2.0 */
/* fsdpck_save(): the steps of a save on each rank. Every rank passes the same three barriers, even after an error, so
 * that no rank waits forever. */
#include <fsdpck/save.h>

#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "commit/commit.h"
#include "base/ioutil.h"
#include "base/json_read.h"
#include "format/manifest.h"
#include "verbs/save_commit.h"
#include "verbs/save_list.h"
#include "verbs/save_shard.h"
#include "format/shard_name.h"

#define INDEX_HEAD_NBYTES 128u /* format, version, requires, save_id come first; an index is never shorter */

struct save {
    const struct fsdpck_save_request *req;
    struct fsdpck_options opt;
    struct fsdpck_commit *commit; /* rank 0's */
    uint8_t save_id[16];
    char *dir; /* the staging directory, by this rank's path */
    bool in_place;
    struct fsdpck_save_list list;
    struct fsdpck_error *err;
};

static bool is_json(const char *text, struct fsdpck_error *err)
{
    struct fsdpck_json j;
    fsdpck_json_begin(&j, "", 0, text, strlen(text), err);
    fsdpck_json_skip(&j);
    fsdpck_json_end(&j);
    fsdpck_json_free(&j);
    return !j.failed;
}

static int check_state(const char *state, struct fsdpck_error *err)
{
    struct fsdpck_error why = { 0 };
    json_error_t e = { 0 };
    json_t *o = state ? json_loads(state, JSON_REJECT_DUPLICATES, &e) : NULL;
    bool parsed = !state || o, object = !state || json_is_object(o);
    json_decref(o);
    if (object)
        return 0;
    /* jansson does not distinguish bad syntax from running out of memory */
    bool unclear =
        !parsed && (json_error_code(&e) == json_error_unknown || json_error_code(&e) == json_error_invalid_syntax);
    if (unclear && (is_json(state, &why) || why.code == FSDPCK_ERR_NOMEM))
        return fsdpck_error_nomem(err, strlen(state));
    return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "the state is not a JSON object");
}

/* Rank 0: makes the staging directory, and lists the names of all files that it will contain. */
static int begin(struct save *s)
{
    const struct fsdpck_save_request *req = s->req;
    int rc = check_state(req->state, s->err);
    if (!rc)
        rc = fsdpck_draw_save_id(s->opt.io, s->save_id, s->err);
    if (!rc)
        rc = fsdpck_commit_begin(s->opt.io, req->out, FSDPCK_COMMIT_CHECKPOINT, "index.json", s->save_id, req->force,
                                 &s->commit, s->err);
    if (rc)
        return rc;
    s->in_place = fsdpck_commit_in_place(s->commit);
    for (uint32_t rank = 0; !rc && rank < req->nranks; rank++) {
        char name[FSDPCK_SHARD_NAME_MAX];
        fsdpck_shard_name(rank, s->in_place, s->save_id, name);
        rc = fsdpck_commit_created(s->commit, name, s->err);
    }
    if (!rc && !(s->dir = strdup(fsdpck_commit_dir(s->commit))))
        rc = fsdpck_error_nomem(s->err, 0);
    if (!rc)
        rc = fsdpck_save_list_name(req, s->save_id, &s->list, s->err);
    return !rc ? fsdpck_save_list_put(s->opt.io, s->dir, &s->list, s->err) : rc;
}

/* Other ranks: find rank 0's staging directory, and check that it is for the same tensors. */
static int join(struct save *s)
{
    int rc = fsdpck_commit_join(s->opt.io, s->req->out, s->save_id, &s->dir, &s->in_place, s->err);
    if (!rc)
        rc = fsdpck_save_list_name(s->req, s->save_id, &s->list, s->err);
    return !rc ? fsdpck_save_list_check(s->opt.io, s->dir, &s->list, s->req->rank, s->err) : rc;
}

static int write_shard(struct save *s, struct fsdpck_transfer_result *result)
{
    char name[FSDPCK_SHARD_NAME_MAX];
    fsdpck_shard_name(s->req->rank, s->in_place, s->save_id, name);
    char *path = fsdpck_path_join(s->dir, name, s->err);
    int rc = path ? fsdpck_save_shard(s->req, &s->opt, path, s->save_id, result, s->err) : FSDPCK_ERR_NOMEM;
    free(path);
    if (rc && s->req->rank != 0)
        fsdpck_save_list_fail(s->opt.io, s->dir, &s->list);
    return rc;
}

/* Rank 0: commits or abandons everything. */
static int end(struct save *s, int r)
{
    struct fsdpck_commit *commit = s->commit;
    s->commit = NULL;
    if (r == 0)
        r = fsdpck_save_list_take(s->opt.io, s->dir, &s->list, s->err);
    if (r == 0)
        r = fsdpck_save_gather(s->req, &s->opt, commit, s->save_id, s->err);
    if (r == 0)
        return fsdpck_commit_finish(commit, s->err);
    fsdpck_commit_abandon(commit);
    return r;
}

static int wait_for_ranks(const struct save *s)
{
    return s->req->barrier ? s->req->barrier(s->req->barrier_ctx) : 0;
}

static int lost(const struct save *s, int code)
{
    return fsdpck_error_set(s->err, FSDPCK_ERR_PEER, s->req->out,
                            "the save was given up: the barrier failed (%d), a rank is lost", code);
}

/* Other ranks: regardless of the barriers, check the output: either it is now this save, or the save was abandoned. */
static int look(struct save *s, int barrier_code)
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
    fsdpck_uuid_format(s->save_id, uuid);
    if (why.code == 0 && strstr(head, uuid))
        return 0;
    if (barrier_code != 0)
        return lost(s, barrier_code);
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
    int rc = fsdpck_save_check(s->req, s->err);
    if (!rc && first)
        rc = begin(s);
    int code = wait_for_ranks(s);
    if (!rc && code != 0)
        rc = lost(s, code);
    if (!rc && !first)
        rc = join(s);
    if (!rc)
        rc = write_shard(s, result);
    code = wait_for_ranks(s);
    if (!rc && first && code != 0)
        rc = lost(s, code);
    if (s->commit)
        rc = end(s, rc);
    int last = wait_for_ranks(s);
    return !rc && !first ? look(s, code ? code : last) : rc; /* a rank lost after the commit does not matter */
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
    fsdpck_uuid_format(s.save_id, result->save_id);
    result->seconds = (double)(s.opt.io->now_ns(s.opt.io->ctx) - start) * 1e-9;
    free(s.dir);
    return rc;
}
