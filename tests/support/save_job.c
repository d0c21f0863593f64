/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as forked processes that save a model together. The barrier times out rather than hang. */
#include "save_job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "shard_check.h"
#include "tree.h"

#define TIMEOUT_SECONDS 1800

/* ---- a barrier for a few processes, which times out rather than hang ---- */

struct seat {
    struct save_shared *shared;
    uint32_t rank;
    unsigned fail_at; /* call of the barrier that reports a lost rank; 0: none */
};

static int meet(void *ctx)
{
    struct seat *seat = ctx;
    struct save_shared *s = seat->shared;
    struct timespec deadline;
    int r = 0;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += TIMEOUT_SECONDS;
    pthread_mutex_lock(&s->mutex);
    bool fails = ++s->ncalls[seat->rank] == seat->fail_at;
    uint32_t generation = s->generation;
    if (++s->nwaiting == s->nranks) {
        s->nwaiting = 0;
        s->generation++;
        pthread_cond_broadcast(&s->cond);
    }
    while (r == 0 && s->generation == generation)
        r = pthread_cond_timedwait(&s->cond, &s->mutex, &deadline);
    pthread_mutex_unlock(&s->mutex);
    return fails ? -77 : r;
}

static struct save_shared *new_shared(uint32_t nranks)
{
    pthread_mutexattr_t ma;
    pthread_condattr_t ca;
    struct save_shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(s != MAP_FAILED);
    pthread_mutexattr_init(&ma);
    pthread_mutexattr_setpshared(&ma, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&s->mutex, &ma);
    pthread_condattr_init(&ca);
    pthread_condattr_setpshared(&ca, PTHREAD_PROCESS_SHARED);
    pthread_cond_init(&s->cond, &ca);
    s->nranks = nranks;
    return s;
}

/* ---- a rank ---- */

struct holding { /* a box in a rank's memory, strided */
    uint64_t offset[MODEL_MAX_DIMS], size[MODEL_MAX_DIMS];
    int64_t strides[MODEL_MAX_DIMS];
    uint8_t *memory;
};

struct rank {
    struct save_job *job;
    uint64_t rng;
    struct holding held[MAX_TENSORS * MAX_BOXES];
    struct fsdpck_save_box boxes[MAX_TENSORS * MAX_BOXES];
    size_t nheld;
    const struct model_tensor *t; /* the tensor being passed to the library */
};

/* Stores a box in a rank's memory: dense, or with another order of dimensions, padding, and some of them backwards. */
static int hold_box(void *ctx, const uint64_t *offset, const uint64_t *size)
{
    struct rank *r = ctx;
    const struct model_tensor *t = r->t;
    struct holding *h = &r->held[r->nheld];
    bool dense = model_below(&r->rng, 3) == 0, turned = !dense && model_below(&r->rng, 2);
    int64_t extent = (int64_t)t->item, low = 0;
    if (r->nheld == MAX_TENSORS * MAX_BOXES)
        abort();
    for (uint32_t i = 0; i < t->ndim; i++) {
        uint32_t d = turned ? i : t->ndim - 1 - i;
        h->offset[d] = offset[d];
        h->size[d] = size[d];
        h->strides[d] = extent += dense ? 0 : (int64_t)model_below(&r->rng, 7);
        extent *= size[d] ? (int64_t)size[d] : 1;
        if (!dense && size[d] && model_below(&r->rng, 3) == 0) {
            low += h->strides[d] * ((int64_t)size[d] - 1);
            h->strides[d] = -h->strides[d];
        }
    }
    if (!(h->memory = malloc((size_t)(low + extent) + 1)))
        abort();
    model_get_box(t, offset, size, h->memory + low, h->strides);
    r->boxes[r->nheld++] = (struct fsdpck_save_box){
        .offset = h->offset, .size = h->size, .data = h->memory + low, .strides = dense ? NULL : h->strides
    };
    return 0;
}

static void hand_over(struct rank *r, uint32_t rank, size_t i, struct fsdpck_save_tensor *out)
{
    const struct save_spread *s = &r->job->spreads[i];
    const struct fsdpck_mesh *mesh = s->mesh < 0 ? NULL : &r->job->meshes[s->mesh];
    uint32_t coord[FSDPCK_MAX_MESH_DIMS];
    size_t first = r->nheld;
    r->t = &r->job->model.tensors[i];
    *out = (struct fsdpck_save_tensor){ .name = r->t->name,
                                        .path = s->path,
                                        .npath = s->npath,
                                        .dtype = r->t->dtype,
                                        .ndim = r->t->ndim,
                                        .shape = r->t->shape,
                                        .mesh = mesh,
                                        .placements = mesh ? s->placements : NULL,
                                        .boxes = r->boxes + first };
    for (size_t b = 0; b < s->nboxes; b++)
        if (s->rank[b] == rank)
            hold_box(r, s->offset[b], s->size[b]);
    if (mesh && fsdpck_mesh_coordinate(mesh, rank, coord))
        fsdpck_placement_boxes(mesh, s->placements, r->t->ndim, r->t->shape, coord, hold_box, r);
    out->nboxes = r->nheld - first;
}

static void run_rank(struct save_job *job, uint32_t rank, struct save_shared *shared)
{
    static struct rank r;
    struct fsdpck_save_tensor tensors[MAX_TENSORS + 1];
    struct fsdpck_io io = model_fast_io();
    struct fsdpck_options opt = { .io = &io, .nthreads = 1 + rank % 2 };
    struct fsdpck_transfer_result result;
    struct seat seat = { shared, rank, rank >= job->fail_from && rank <= job->fail_to ? job->fail_at : 0 };
    struct fsdpck_save_request req = { .out = job->out,
                                       .rank = rank,
                                       .nranks = job->nranks,
                                       .barrier = job->nranks > 1 || job->fail_at ? meet : NULL,
                                       .barrier_ctx = &seat,
                                       .tensors = tensors,
                                       .ntensors = job->model.ntensors,
                                       .state = job->state,
                                       .assets = job->assets,
                                       .force = job->force };
    r = (struct rank){ .job = job, .rng = job->seed * 100 + rank };
    for (size_t i = 0; i < job->model.ntensors; i++)
        hand_over(&r, rank, i, &tensors[i]);
    if (job->alias)
        tensors[req.ntensors++] =
            (struct fsdpck_save_tensor){ .name = "tied.weight", .alias_of = job->model.tensors[0].name };
    if (job->spoil)
        job->spoil(job, &req, tensors, &io);
    shared->code[rank] = fsdpck_save(&req, &opt, &result, &shared->err[rank]);
    snprintf(shared->save_id[rank], sizeof shared->save_id[rank], "%s", result.save_id);
    for (size_t i = 0; i < r.nheld; i++)
        free(r.held[i].memory);
}

struct save_run save_job_start(struct save_job *job)
{
    struct save_run run = { .shared = new_shared(job->nranks) };
    fflush(NULL);
    for (uint32_t rank = 0; rank < job->nranks; rank++) {
        run.pids[rank] = fork();
        assert_true(run.pids[rank] >= 0);
        if (run.pids[rank] == 0) {
            run_rank(job, rank, run.shared);
            _exit(0);
        }
    }
    return run;
}

struct save_shared *save_job_finish(const struct save_run *run, uint32_t nranks)
{
    for (uint32_t rank = 0; rank < nranks; rank++) {
        int status = -1;
        assert_int_equal(waitpid(run->pids[rank], &status, 0), run->pids[rank]);
        assert_int_equal(status, 0);
    }
    return run->shared;
}

/* Runs the job. The caller unmaps the result. */
static struct save_shared *run_job(struct save_job *job)
{
    struct save_run run = save_job_start(job);
    return save_job_finish(&run, job->nranks);
}

void save_job_succeeds(struct save_job *job)
{
    struct save_shared *s = run_job(job);
    for (uint32_t r = 0; r < job->nranks; r++) {
        if (s->code[r] != 0)
            fail_msg("rank %u of %u: %s: %s: %s", r, job->nranks, s->err[r].file, s->err[r].tensor, s->err[r].message);
        assert_string_equal(s->save_id[r], s->save_id[0]);
        if (job->nranks > 1)
            assert_int_equal(s->ncalls[r], 3);
    }
    munmap(s, sizeof *s);
}

struct fsdpck_error save_job_fails(struct save_job *job, uint32_t rank)
{
    char *before = tree_dump(job->root);
    struct save_shared *s = run_job(job);
    struct fsdpck_error err = s->err[rank];
    for (uint32_t r = 0; r < job->nranks; r++) {
        if (s->code[r] == 0)
            fail_msg("rank %u was told that it is saved", r);
        assert_int_equal(s->code[r], s->err[r].code);
        assert_true(s->err[r].message[0] != 0);
        assert_int_equal(s->ncalls[r], job->nranks > 1 ? 3 : 0);
    }
    char *after = tree_dump(job->root);
    assert_string_equal(before, after);
    free(before);
    free(after);
    munmap(s, sizeof *s);
    return err;
}

/* ---- making jobs ---- */

void save_job_free(struct save_job *job)
{
    tree_remove(job->root);
    free(job->root);
    free(job->out);
    model_free(&job->model);
}

struct save_job save_job_new(uint64_t seed, uint32_t nranks)
{
    struct save_job job = { .nranks = nranks, .seed = seed, .root = tree_new(), .fail_to = MAX_RANKS };
    job.out = tree_path(job.root, "out");
    uint32_t half = nranks % 2 == 0 ? 2 : 1;
    static const uint32_t backwards[] = { 7, 6, 5, 4, 3, 2, 1, 0 };
    job.meshes[0] = (struct fsdpck_mesh){ .ndim = 1, .names = { "shard" }, .sizes = { nranks } };
    job.meshes[1] =
        (struct fsdpck_mesh){ .ndim = 2, .names = { "replicate", "shard" }, .sizes = { half, nranks / half } };
    job.meshes[2] = (struct fsdpck_mesh){ .ndim = 2, .names = { "dp", "tp" }, .sizes = { nranks / half, half } };
    job.meshes[3] = (struct fsdpck_mesh){
        .ndim = 1, .names = { "few" }, .sizes = { nranks - nranks / 3 }, .ranks = backwards + MAX_RANKS - nranks
    };
    return job;
}

static bool keeps_rows(const struct fsdpck_mesh *mesh, const struct save_spread *s, const struct model_tensor *t)
{
    for (uint32_t m = 0; m < mesh->ndim; m++)
        if (s->placements[m].kind != FSDPCK_REPLICATE && s->placements[m].dim != 0 && mesh->sizes[m] > 1 &&
            t->shape[s->placements[m].dim] > 1)
            return false;
    return true;
}

static void spread_by_rule(struct save_job *job, struct save_spread *s, const struct model_tensor *t, uint64_t *rng)
{
    s->mesh = (int)model_below(rng, 4);
    const struct fsdpck_mesh *mesh = &job->meshes[s->mesh];
    bool hsdp = s->mesh == 1;
    for (uint32_t m = 0; m < mesh->ndim; m++) {
        struct fsdpck_placement *p = &s->placements[m];
        p->kind = t->ndim == 0 || (hsdp ? m == 0 : model_below(rng, 4) == 0) ? FSDPCK_REPLICATE : FSDPCK_SHARD;
        p->dim = p->kind == FSDPCK_SHARD && model_below(rng, 2) ? (uint32_t)model_below(rng, t->ndim) : 0;
    }
    if (mesh->ndim == 2 && s->placements[0].kind == FSDPCK_SHARD && s->placements[1].kind == FSDPCK_SHARD &&
        s->placements[0].dim == s->placements[1].dim && model_below(rng, 2)) {
        s->placements[0].kind = FSDPCK_STRIDED_SHARD;
        s->placements[0].split = mesh->sizes[1];
    }
    s->has_content = keeps_rows(mesh, s, t);
}

/* Cuts the tensor repeatedly and assigns each piece to some rank. */
static void spread_by_boxes(struct save_job *job, struct save_spread *s, const struct model_tensor *t, uint64_t *rng)
{
    s->mesh = -1;
    s->nboxes = 1;
    memcpy(s->size[0], t->shape, sizeof t->shape);
    for (uint64_t i = model_below(rng, MAX_BOXES); t->ndim && i-- > 0;) {
        size_t k = model_below(rng, s->nboxes), n = s->nboxes++;
        uint32_t d = (uint32_t)model_below(rng, t->ndim);
        uint64_t at = model_below(rng, s->size[k][d] + 1);
        memcpy(s->offset[n], s->offset[k], sizeof s->offset[n]);
        memcpy(s->size[n], s->size[k], sizeof s->size[n]);
        s->size[k][d] = at;
        s->offset[n][d] += at;
        s->size[n][d] -= at;
    }
    s->has_content = true;
    for (size_t b = 0; b < s->nboxes; b++) {
        uint64_t nelem = 1;
        bool whole = true;
        s->rank[b] = (uint32_t)model_below(rng, job->nranks);
        for (uint32_t d = 0; d < t->ndim; d++) {
            nelem *= s->size[b][d];
            whole &= d == 0 || s->size[b][d] == t->shape[d];
        }
        s->has_content &= nelem == 0 || whole;
    }
}

void save_job_add_tensors(struct save_job *job, size_t n, uint64_t max_nbytes)
{
    uint64_t rng = job->seed;
    for (size_t i = 0; i < n; i++) {
        const struct model_tensor *t = model_add_random(&job->model, &rng, 1 + model_below(&rng, max_nbytes));
        struct save_spread *s = &job->spreads[i];
        if (model_below(&rng, 3) == 0)
            spread_by_boxes(job, s, t, &rng);
        else
            spread_by_rule(job, s, t, &rng);
        if (model_below(&rng, 3) == 0) {
            s->npath = 3;
            s->path[0].str = "model.x";
            s->path[1].position = i;
            s->path[2].str = "weight \"q\"";
        }
    }
}

/* ---- checks of a save ---- */

static void count_problem(void *ctx, const struct fsdpck_problem *p)
{
    print_error("%s@%llu: %s\n", p->file, (unsigned long long)p->offset, p->what);
    ++*(unsigned *)ctx;
}

static void check_verify(const struct save_job *job)
{
    unsigned n = 0;
    struct fsdpck_verify_result result;
    struct fsdpck_error err = { 0 };
    assert_int_equal(fsdpck_verify(job->out, "fsdpck", false, NULL, count_problem, &n, &result, &err), 0);
    assert_true(n == 0 && result.nproblems == 0 && result.hashed);
    assert_int_equal(result.nfiles, job->nranks);
}

static void check_tensor(const struct save_job *job, size_t i, const struct fsdpck_tensor *t)
{
    const struct save_spread *s = &job->spreads[i];
    const struct fsdpck_mesh *mesh = s->mesh < 0 ? NULL : &job->meshes[s->mesh];
    uint8_t content[16];
    assert_int_equal(t->npath, s->npath ? s->npath : 1);
    if (s->npath) {
        assert_string_equal(t->path[0].str, "model.x");
        assert_true(t->path[1].str == NULL && t->path[1].position == i);
        assert_string_equal(t->path[2].str, "weight \"q\"");
    }
    assert_int_equal(t->mesh != NULL, mesh != NULL);
    for (uint32_t m = 0; mesh && m < mesh->ndim; m++) {
        assert_true(t->placements[m].kind == s->placements[m].kind && t->placements[m].dim == s->placements[m].dim &&
                    t->placements[m].split == s->placements[m].split);
        assert_string_equal(t->mesh->names[m], mesh->names[m]);
        assert_int_equal(t->mesh->sizes[m], mesh->sizes[m]);
    }
    model_content(&job->model.tensors[i], content);
    if (s->has_content)
        assert_true(t->has_content);
    if (t->has_content)
        assert_memory_equal(t->content, content, 16);
}

void save_job_check(struct save_job *job)
{
    struct fsdpck_source *src = NULL;
    struct fsdpck_error err = { 0 };
    if (fsdpck_source_open(job->out, "fsdpck", NULL, &src, &err) != 0)
        fail_msg("%s: %s", err.file, err.message);
    assert_int_equal(fsdpck_source_ntensors(src), job->model.ntensors + job->alias);
    assert_int_equal(fsdpck_source_nranks(src), job->nranks);
    const char *bad = model_differs(&job->model, src, &err);
    if (bad)
        fail_msg("%s differs: %s", bad, err.message);
    bad = job->in_place ? NULL : shard_check(&job->model, job->out, job->nranks);
    if (bad)
        fail_msg("%s", bad);
    for (size_t i = 0; i < job->model.ntensors; i++)
        check_tensor(job, i, fsdpck_source_tensor(src, i));
    if (job->alias)
        assert_int_equal(fsdpck_source_tensor(src, job->model.ntensors)->alias_of, 0);
    assert_true((job->state == NULL) == (fsdpck_source_state(src) == NULL));
    if (job->state)
        assert_string_equal(fsdpck_source_state(src), job->state);
    fsdpck_source_close(src);
    check_verify(job);
}

void save_job_check_tidy(const struct save_job *job)
{
    char *dump = tree_dump(job->root);
    assert_null(strstr(dump, ".tmp-"));
    assert_null(strstr(dump, ".old-"));
    assert_null(strstr(dump, "fsdpck-l"));
    assert_null(strstr(dump, "writer-"));
    free(dump);
}
