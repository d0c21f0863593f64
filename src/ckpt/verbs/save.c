/* fsdpck_save(): the steps of a save and who takes them. Every rank passes the same three barriers whatever went wrong, so nobody waits for ever. */
#include <fsdpck/save.h>

#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "commit/commit.h"
#include "base/ioutil.h"
#include "format/manifest.h"
#include "verbs/save_commit.h"
#include "verbs/save_shard.h"
#include "format/shard_name.h"

#define INDEX_HEAD_NBYTES 256u /* format, version, save_id come first */

struct save {
    const struct fsdpck_save_request *req;
    struct fsdpck_options opt;
    struct fsdpck_commit *commit; /* rank 0's */
    uint8_t save_id[16];
    char *dir; /* the staging directory, as this rank sees it */
    bool in_place;
    struct fsdpck_error *err;
};

static int check_state(const char *state, struct fsdpck_error *err)
{
    json_error_t e;
    json_t *o = state ? json_loads(state, JSON_REJECT_DUPLICATES, &e) : NULL;
    bool ok = !state || json_is_object(o);
    json_decref(o);
    return ok ? 0 : fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "the state is not a JSON object");
}

/* Rank 0: the staging directory, and the names of all files that will be in it. */
static int begin(struct save *s)
{
    const struct fsdpck_save_request *req = s->req;
    int r = check_state(req->state, s->err);
    if (r == 0)
        r = fsdpck_draw_save_id(s->opt.io, s->save_id, s->err);
    if (r == 0)
        r = fsdpck_commit_begin(s->opt.io, req->out, FSDPCK_COMMIT_CHECKPOINT, "index.json", s->save_id, req->force, &s->commit, s->err);
    if (r != 0)
        return r;
    s->in_place = fsdpck_commit_in_place(s->commit);
    for (uint32_t rank = 0; r == 0 && rank < req->nranks; rank++) {
        char name[FSDPCK_SHARD_NAME_MAX];
        fsdpck_shard_name(rank, s->in_place, s->save_id, name);
        r = fsdpck_commit_created(s->commit, name, s->err);
    }
    if (r == 0 && !(s->dir = strdup(fsdpck_commit_dir(s->commit))))
        r = fsdpck_error_nomem(s->err, 0);
    return r;
}

static int write_shard(struct save *s, struct fsdpck_transfer_result *result)
{
    char name[FSDPCK_SHARD_NAME_MAX];
    fsdpck_shard_name(s->req->rank, s->in_place, s->save_id, name);
    char *path = fsdpck_path_join(s->dir, name, s->err);
    int r = path ? fsdpck_save_shard(s->req, &s->opt, path, s->save_id, result, s->err) : FSDPCK_ERR_NOMEM;
    free(path);
    return r;
}

/* Rank 0: all or nothing. */
static int end(struct save *s, int r)
{
    struct fsdpck_commit *commit = s->commit;
    s->commit = NULL;
    if (r == 0)
        r = fsdpck_save_gather(s->req, &s->opt, commit, s->save_id, s->err);
    if (r == 0)
        return fsdpck_commit_finish(commit, s->err);
    fsdpck_commit_abandon(commit);
    return r;
}

/* The other ranks: the output must be this save now. */
static int look(struct save *s)
{
    const struct fsdpck_io *io = s->opt.io;
    char head[INDEX_HEAD_NBYTES + 1] = { 0 }, uuid[37];
    char *path = fsdpck_path_join(s->req->out, "index.json", s->err);
    int fd = path ? io->open(io->ctx, path, FSDPCK_OPEN_READ, 0) : -1;
    if (fd >= 0) {
        io->pread(io->ctx, fd, head, INDEX_HEAD_NBYTES, 0);
        io->close(io->ctx, fd);
    }
    free(path);
    fsdpck_uuid_format(s->save_id, uuid);
    if (strstr(head, uuid))
        return 0;
    return fsdpck_error_set(s->err, FSDPCK_ERR_IO, s->req->out, "the save was given up: rank 0, or a rank before it, failed and says why");
}

static int barrier(const struct save *s, int r)
{
    int b = s->req->barrier ? s->req->barrier(s->req->barrier_ctx) : 0;
    if (b == 0 || r != 0)
        return r;
    return fsdpck_error_set(s->err, FSDPCK_ERR_IO, s->req->out, "the save was given up: the barrier failed (%d), a rank is lost", b);
}

static int save(struct save *s, struct fsdpck_transfer_result *result)
{
    const struct fsdpck_save_request *req = s->req;
    int r = fsdpck_save_check(req, s->err);
    if (r == 0 && req->rank == 0)
        r = begin(s);
    r = barrier(s, r);
    if (r == 0 && req->rank != 0)
        r = fsdpck_commit_join(s->opt.io, req->out, s->save_id, &s->dir, &s->in_place, s->err);
    if (r == 0)
        r = write_shard(s, result);
    r = barrier(s, r);
    if (s->commit)
        r = end(s, r);
    r = barrier(s, r);
    return r == 0 && req->rank != 0 ? look(s) : r;
}

int fsdpck_save(const struct fsdpck_save_request *req, const struct fsdpck_options *opt, struct fsdpck_transfer_result *result,
                struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    struct fsdpck_transfer_result none;
    struct save s = { .req = req, .opt = opt ? *opt : (struct fsdpck_options){ 0 }, .err = err ? err : &own };
    fsdpck_options_fill(&s.opt);
    int64_t start = s.opt.io->now_ns(s.opt.io->ctx);
    result = result ? result : &none;
    memset(result, 0, sizeof *result);
    int r = save(&s, result);
    result->ntensors = req->ntensors;
    result->nfiles = req->nranks;
    fsdpck_uuid_format(s.save_id, result->save_id);
    result->seconds = (double)(s.opt.io->now_ns(s.opt.io->ctx) - start) * 1e-9;
    free(s.dir);
    return r;
}
