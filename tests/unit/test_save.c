/* Saves by several processes that share a directory and a barrier: what they hand over is what is read back, however it lay in their memory; and
 * where one of them fails, all of them do and nothing is left. */
#include <fsdpck/fsdpck.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
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

#include "model.h"
#include "shard_check.h"
#include "tree.h"

enum { MAX_RANKS = 8, MAX_TENSORS = 12, MAX_BOXES = 24, TIMEOUT_SECONDS = 20 };

/* ---- the barrier of a few processes, which gives up rather than hang ---- */

struct shared { /* memory of all ranks */
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    uint32_t nranks, nwaiting, generation;
    int code[MAX_RANKS];
    unsigned ncalls[MAX_RANKS]; /* of the barrier */
    struct fsdpck_error err[MAX_RANKS];
    char save_id[MAX_RANKS][37];
};

struct seat {
    struct shared *shared;
    uint32_t rank;
    unsigned fail_at; /* which call of the barrier says that a rank is lost; 0: none */
};

static int meet(void *ctx)
{
    struct seat *seat = ctx;
    struct shared *s = seat->shared;
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

static struct shared *new_shared(uint32_t nranks)
{
    pthread_mutexattr_t ma;
    pthread_condattr_t ca;
    struct shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
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

/* ---- a job: what is saved, and how it is spread ---- */

struct spread { /* of a tensor */
    int mesh; /* number in job.meshes, or -1: explicit boxes */
    struct fsdpck_placement placements[FSDPCK_MAX_MESH_DIMS];
    size_t nboxes; /* explicit */
    uint64_t offset[MAX_BOXES][MODEL_MAX_DIMS], size[MAX_BOXES][MODEL_MAX_DIMS];
    uint32_t rank[MAX_BOXES];
    struct fsdpck_key path[3];
    uint32_t npath;
    bool has_content; /* no rank sees less than whole rows */
};

struct job;
/* Called in the process of a rank before it saves: may spoil its request, or its I/O. */
typedef void (*spoil_fn)(struct job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *tensors, struct fsdpck_io *io);

struct job {
    char *root, *out; /* out is in root, alone */
    struct model model;
    struct spread spreads[MAX_TENSORS];
    struct fsdpck_mesh meshes[4];
    uint32_t nranks;
    uint64_t seed;
    const char *state, *assets;
    bool in_place; /* shard files have other names then */
    bool force, alias; /* alias: "tied.weight" is another name of tensor 0 */
    unsigned fail_at;
    uint32_t fail_from, fail_to; /* ranks whose barrier fails */
    spoil_fn spoil;
};

/* ---- a rank ---- */

struct holding { /* a box in a rank's memory, strided as it came */
    uint64_t offset[MODEL_MAX_DIMS], size[MODEL_MAX_DIMS];
    int64_t strides[MODEL_MAX_DIMS];
    uint8_t *memory;
};

struct rank {
    struct job *job;
    uint64_t rng;
    struct holding held[MAX_TENSORS * MAX_BOXES];
    struct fsdpck_save_box boxes[MAX_TENSORS * MAX_BOXES];
    size_t nheld;
    const struct model_tensor *t; /* being handed over */
};

/* Dense; or with the dimensions in another order, padding between them, and some of them backwards. */
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
    r->boxes[r->nheld++] = (struct fsdpck_save_box){ .offset = h->offset, .size = h->size, .data = h->memory + low, .strides = dense ? NULL : h->strides };
    return 0;
}

static void hand_over(struct rank *r, uint32_t rank, size_t i, struct fsdpck_save_tensor *out)
{
    const struct spread *s = &r->job->spreads[i];
    const struct fsdpck_mesh *mesh = s->mesh < 0 ? NULL : &r->job->meshes[s->mesh];
    uint32_t coord[FSDPCK_MAX_MESH_DIMS];
    size_t first = r->nheld;
    r->t = &r->job->model.tensors[i];
    *out = (struct fsdpck_save_tensor){ .name = r->t->name, .path = s->path, .npath = s->npath, .dtype = r->t->dtype, .ndim = r->t->ndim, .shape = r->t->shape,
                                        .mesh = mesh, .placements = mesh ? s->placements : NULL, .boxes = r->boxes + first };
    for (size_t b = 0; b < s->nboxes; b++)
        if (s->rank[b] == rank)
            hold_box(r, s->offset[b], s->size[b]);
    if (mesh && fsdpck_mesh_coordinate(mesh, rank, coord))
        fsdpck_placement_boxes(mesh, s->placements, r->t->ndim, r->t->shape, coord, hold_box, r);
    out->nboxes = r->nheld - first;
}

static void run_rank(struct job *job, uint32_t rank, struct shared *shared)
{
    static struct rank r;
    struct fsdpck_save_tensor tensors[MAX_TENSORS + 1];
    struct fsdpck_io io = model_fast_io();
    struct fsdpck_options opt = { .io = &io, .nthreads = 1 + rank % 2 };
    struct fsdpck_transfer_result result;
    struct seat seat = { shared, rank, rank >= job->fail_from && rank <= job->fail_to ? job->fail_at : 0 };
    struct fsdpck_save_request req = { .out = job->out, .rank = rank, .nranks = job->nranks, .barrier = job->nranks > 1 || job->fail_at ? meet : NULL,
                                       .barrier_ctx = &seat, .tensors = tensors, .ntensors = job->model.ntensors, .state = job->state,
                                       .assets = job->assets, .force = job->force };
    r = (struct rank){ .job = job, .rng = job->seed * 100 + rank };
    for (size_t i = 0; i < job->model.ntensors; i++)
        hand_over(&r, rank, i, &tensors[i]);
    if (job->alias)
        tensors[req.ntensors++] = (struct fsdpck_save_tensor){ .name = "tied.weight", .alias_of = job->model.tensors[0].name };
    if (job->spoil)
        job->spoil(job, &req, tensors, &io);
    shared->code[rank] = fsdpck_save(&req, &opt, &result, &shared->err[rank]);
    snprintf(shared->save_id[rank], sizeof shared->save_id[rank], "%s", result.save_id);
    for (size_t i = 0; i < r.nheld; i++)
        free(r.held[i].memory);
}

struct run {
    struct shared *shared;
    pid_t pids[MAX_RANKS];
};

/* All ranks, each a process of its own. */
static struct run start_job(struct job *job)
{
    struct run run = { .shared = new_shared(job->nranks) };
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

static struct shared *finish_job(const struct run *run, uint32_t nranks)
{
    for (uint32_t rank = 0; rank < nranks; rank++) {
        int status = -1;
        assert_int_equal(waitpid(run->pids[rank], &status, 0), run->pids[rank]);
        assert_int_equal(status, 0);
    }
    return run->shared;
}

/* The caller unmaps what is returned. */
static struct shared *run_job(struct job *job)
{
    struct run run = start_job(job);
    return finish_job(&run, job->nranks);
}

static void expect_saved(struct job *job)
{
    struct shared *s = run_job(job);
    for (uint32_t r = 0; r < job->nranks; r++) {
        if (s->code[r] != 0)
            fail_msg("rank %u of %u: %s: %s: %s", r, job->nranks, s->err[r].file, s->err[r].tensor, s->err[r].message);
        assert_string_equal(s->save_id[r], s->save_id[0]);
        if (job->nranks > 1)
            assert_int_equal(s->ncalls[r], 3);
    }
    munmap(s, sizeof *s);
}

/* Everybody fails, and the directory is as it was. Returns what the rank says. */
static struct fsdpck_error expect_failed(struct job *job, uint32_t rank)
{
    char *before = tree_dump(job->root);
    struct shared *s = run_job(job);
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

static void job_free(struct job *job)
{
    tree_remove(job->root);
    free(job->root);
    free(job->out);
    model_free(&job->model);
}

static struct job new_job(uint64_t seed, uint32_t nranks)
{
    struct job job = { .nranks = nranks, .seed = seed, .root = tree_new(), .fail_to = MAX_RANKS };
    job.out = tree_path(job.root, "out");
    uint32_t half = nranks % 2 == 0 ? 2 : 1;
    static const uint32_t backwards[] = { 7, 6, 5, 4, 3, 2, 1, 0 };
    job.meshes[0] = (struct fsdpck_mesh){ .ndim = 1, .names = { "shard" }, .sizes = { nranks } };
    job.meshes[1] = (struct fsdpck_mesh){ .ndim = 2, .names = { "replicate", "shard" }, .sizes = { half, nranks / half } };
    job.meshes[2] = (struct fsdpck_mesh){ .ndim = 2, .names = { "dp", "tp" }, .sizes = { nranks / half, half } };
    job.meshes[3] = (struct fsdpck_mesh){ .ndim = 1, .names = { "few" }, .sizes = { nranks - nranks / 3 }, .ranks = backwards + MAX_RANKS - nranks };
    return job;
}

static bool keeps_rows(const struct fsdpck_mesh *mesh, const struct spread *s, const struct model_tensor *t)
{
    for (uint32_t m = 0; m < mesh->ndim; m++)
        if (s->placements[m].kind != FSDPCK_REPLICATE && s->placements[m].dim != 0 && mesh->sizes[m] > 1 && t->shape[s->placements[m].dim] > 1)
            return false;
    return true;
}

static void spread_by_rule(struct job *job, struct spread *s, const struct model_tensor *t, uint64_t *rng)
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

/* The whole, cut again and again, each piece to some rank. */
static void spread_by_boxes(struct job *job, struct spread *s, const struct model_tensor *t, uint64_t *rng)
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

static void add_tensors(struct job *job, size_t n, uint64_t max_nbytes)
{
    uint64_t rng = job->seed;
    for (size_t i = 0; i < n; i++) {
        const struct model_tensor *t = model_add_random(&job->model, &rng, 1 + model_below(&rng, max_nbytes));
        struct spread *s = &job->spreads[i];
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

/* ---- what must be true of a save ---- */

static void count_problem(void *ctx, const struct fsdpck_problem *p)
{
    print_error("%s@%llu: %s\n", p->file, (unsigned long long)p->offset, p->what);
    ++*(unsigned *)ctx;
}

static void check_verify(const struct job *job)
{
    unsigned n = 0;
    struct fsdpck_verify_result result;
    struct fsdpck_error err = { 0 };
    assert_int_equal(fsdpck_verify(job->out, "fsdpck", false, NULL, count_problem, &n, &result, &err), 0);
    assert_true(n == 0 && result.nproblems == 0 && result.hashed);
    assert_int_equal(result.nfiles, job->nranks);
}

static void check_tensor(const struct job *job, size_t i, const struct fsdpck_tensor *t)
{
    const struct spread *s = &job->spreads[i];
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

static void check_saved(struct job *job)
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

/* Beside the checkpoint there is nothing, and in it only what belongs there. */
static void check_tidy(const struct job *job)
{
    char *dump = tree_dump(job->root);
    assert_null(strstr(dump, ".tmp-"));
    assert_null(strstr(dump, ".old-"));
    assert_null(strstr(dump, "fsdpck-l"));
    assert_null(strstr(dump, "writer-"));
    free(dump);
}

/* The same model, written by one process at another rank count, has the same content ids wherever both know one. */
static void check_contents(const struct job *job)
{
    struct fsdpck_source *a = NULL, *b = NULL, *file = NULL;
    char *path = tree_path(job->root, "model.safetensors"), *out = tree_path(job->root, "converted");
    struct fsdpck_convert_request req = { .out = out, .mesh = { .ndim = 1, .names = { "shard" }, .sizes = { job->nranks + 1 } } };
    struct fsdpck_error err = { 0 };
    model_write_safetensors(&job->model, path);
    assert_int_equal(fsdpck_source_open(path, NULL, NULL, &file, &err), 0);
    assert_int_equal(fsdpck_convert(file, &req, NULL, NULL, &err), 0);
    assert_int_equal(fsdpck_source_open(job->out, NULL, NULL, &a, &err), 0);
    assert_int_equal(fsdpck_source_open(out, NULL, NULL, &b, &err), 0);
    for (size_t i = 0; i < job->model.ntensors; i++) {
        const struct fsdpck_tensor *x = fsdpck_source_tensor(a, i), *y = fsdpck_source_find(b, x->name);
        assert_true(y && y->has_content);
        if (x->has_content)
            assert_memory_equal(x->content, y->content, 16);
    }
    fsdpck_source_close(a);
    fsdpck_source_close(b);
    fsdpck_source_close(file);
    tree_remove(out);
    tree_remove(path);
    free(out);
    free(path);
}

static void test_random_saves(void **state)
{
    (void)state;
    static const uint32_t nranks[] = { 1, 2, 3, 5, 8 };
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct job job = new_job(seed, nranks[seed % 5]);
        add_tensors(&job, 1 + seed % MAX_TENSORS, seed % 4 ? 3000 : 400000);
        job.alias = seed % 3 == 0;
        job.state = seed % 2 ? "{\"step\": 7, \"nested\": {\"a\": [1, 2.5, \"x\"]}}" : NULL;
        expect_saved(&job);
        check_saved(&job);
        check_tidy(&job);
        check_contents(&job);
        job_free(&job);
    }
}

/* More than one band of 4 MiB of a box, transposed and backwards as it may be. */
static void test_large_boxes(void **state)
{
    (void)state;
    for (uint64_t seed = 101; seed <= 103; seed++) {
        struct job job = new_job(seed, 2);
        model_add(&job.model, &(uint64_t){ seed }, FSDPCK_FLOAT32, 2, (uint64_t[]){ 1731, 1733 });
        model_add(&job.model, &(uint64_t){ seed + 1 }, FSDPCK_INT8, 3, (uint64_t[]){ 3, 5, 700001 });
        job.spreads[0] = (struct spread){ .placements = { { .kind = FSDPCK_SHARD, .dim = seed == 103 } }, .has_content = seed != 103 };
        job.spreads[1] = (struct spread){ .placements = { { .kind = FSDPCK_REPLICATE } }, .has_content = true };
        expect_saved(&job);
        check_saved(&job);
        job_free(&job);
    }
}

static void test_assets(void **state)
{
    (void)state;
    struct job job = new_job(200, 2);
    add_tensors(&job, 3, 1000);
    tree_file(job.root, "folder/config.json", "{\"model_type\": \"tiny\"}");
    tree_file(job.root, "folder/sub/words.txt", "one two");
    job.assets = tree_path(job.root, "folder");
    expect_saved(&job);
    check_saved(&job);
    char *config = tree_path(job.out, "assets"), *dump = tree_dump(config);
    assert_string_equal(dump, "config.json={\"model_type\": \"tiny\"}\nsub/\nsub/words.txt=one two\n");
    free(dump);
    free(config);
    free((char *)job.assets);
    job_free(&job);
}

/* An existing output is refused by all, left as it is, and replaced by force. */
static void test_existing_output(void **state)
{
    (void)state;
    for (uint32_t nranks = 1; nranks <= 3; nranks++) {
        struct job job = new_job(300 + nranks, nranks), other = new_job(400 + nranks, 1 + nranks % 3);
        add_tensors(&job, 4, 2000);
        add_tensors(&other, 5, 2000);
        expect_saved(&job);
        struct fsdpck_error err = expect_failed(&job, 0);
        assert_int_equal(err.code, FSDPCK_ERR_EXISTS);
        check_saved(&job);
        char *root = other.root, *out = other.out;
        other.root = job.root, other.out = job.out, other.force = true, other.state = "{\"again\":true}";
        expect_saved(&other);
        check_saved(&other);
        check_tidy(&other);
        other.root = root, other.out = out;
        job_free(&job);
        job_free(&other);
    }
}

/* ---- failures ---- */

/* Three ranks, two tensors of the same shape, and one of rows and columns. */
static struct job small_job(void)
{
    uint64_t rng = 500;
    struct job job = new_job(500, 3);
    for (int i = 0; i < 2; i++) {
        model_add(&job.model, &rng, FSDPCK_FLOAT32, 2, (uint64_t[]){ 7, 5 });
        job.spreads[i] = (struct spread){ .placements = { { .kind = FSDPCK_SHARD } } };
    }
    model_add(&job.model, &rng, FSDPCK_BFLOAT16, 2, (uint64_t[]){ 4, 6 });
    job.spreads[2] = (struct spread){ .mesh = -1, .nboxes = 3, .offset = { { 0, 0 }, { 0, 4 }, { 3, 0 } }, .size = { { 3, 4 }, { 4, 2 }, { 1, 4 } }, .rank = { 0, 1, 2 } };
    return job;
}

static void expect_spoilt(spoil_fn spoil, uint32_t rank, int code, const char *what)
{
    struct job job = small_job();
    job.spoil = spoil;
    struct fsdpck_error err = expect_failed(&job, rank);
    if (err.code != code || !strstr(err.message, what))
        fail_msg("wanted %d '%s', have %d: %s: %s", code, what, err.code, err.file, err.message);
    job.spoil = NULL; /* and nothing stands in the way of the next one */
    expect_saved(&job);
    job_free(&job);
}

static void other_shape(struct job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t, struct fsdpck_io *io)
{
    static const uint64_t shape[2] = { 6, 5 };
    static const uint64_t size[2] = { 2, 5 }, offset[2] = { 2, 0 };
    static struct fsdpck_save_box box;
    (void)job, (void)io;
    if (req->rank != 1)
        return;
    box = (struct fsdpck_save_box){ .offset = offset, .size = size, .data = t[0].boxes[0].data };
    t[0].shape = shape;
    t[0].boxes = &box;
}

static void other_dtype(struct job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t, struct fsdpck_io *io)
{
    (void)job, (void)io;
    if (req->rank == 1)
        t[0].dtype = FSDPCK_INT32;
}

static void other_order(struct job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t, struct fsdpck_io *io)
{
    struct fsdpck_save_tensor first = t[0];
    (void)job, (void)io;
    if (req->rank == 2) {
        t[0] = t[1];
        t[1] = first;
    }
}

static void one_tensor_less(struct job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t, struct fsdpck_io *io)
{
    (void)job, (void)t, (void)io;
    req->ntensors -= req->rank == 2;
}

static void one_tensor_less_on_rank_0(struct job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t, struct fsdpck_io *io)
{
    (void)job, (void)t, (void)io;
    req->ntensors -= req->rank == 0;
}

static void other_nranks(struct job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t, struct fsdpck_io *io)
{
    (void)job, (void)t, (void)io;
    req->nranks += req->rank == 2;
}

static void test_other_lists(void **state)
{
    (void)state;
    expect_spoilt(other_shape, 1, FSDPCK_ERR_USAGE, "list of tensors");
    expect_spoilt(other_dtype, 1, FSDPCK_ERR_USAGE, "list of tensors");
    expect_spoilt(other_order, 2, FSDPCK_ERR_USAGE, "list of tensors");
    expect_spoilt(one_tensor_less, 2, FSDPCK_ERR_USAGE, "list of tensors");
    expect_spoilt(one_tensor_less_on_rank_0, 1, FSDPCK_ERR_USAGE, "list of tensors");
    expect_spoilt(other_nranks, 2, FSDPCK_ERR_USAGE, "list of tensors");
}

static void same_name(struct job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t, struct fsdpck_io *io)
{
    (void)job, (void)req, (void)io;
    t[1].name = t[0].name;
}

static void alias_of_nothing(struct job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t, struct fsdpck_io *io)
{
    (void)job, (void)io;
    t[req->ntensors++] = (struct fsdpck_save_tensor){ .name = "tied", .alias_of = "untied" };
}

static void state_is_a_list(struct job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t, struct fsdpck_io *io)
{
    (void)job, (void)t, (void)io;
    req->state = "[1]";
}

static void no_such_rank(struct job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t, struct fsdpck_io *io)
{
    static const uint32_t ranks[] = { 0, 1, 3 };
    (void)req, (void)t, (void)io;
    job->meshes[0].ranks = ranks;
    t[0].nboxes = t[0].nboxes && req->rank < 2 ? 1 : 0;
    t[1].nboxes = t[0].nboxes;
}

static void rank_twice(struct job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t, struct fsdpck_io *io)
{
    static const uint32_t ranks[] = { 0, 1, 1 };
    no_such_rank(job, req, t, io);
    job->meshes[0].ranks = ranks;
}

static void mesh_of_none(struct job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t, struct fsdpck_io *io)
{
    (void)req, (void)io;
    job->meshes[0].sizes[0] = 0;
    t[0].nboxes = t[1].nboxes = 0;
}

static void test_senseless_requests(void **state)
{
    (void)state;
    expect_spoilt(same_name, 0, FSDPCK_ERR_USAGE, "twice");
    expect_spoilt(alias_of_nothing, 0, FSDPCK_ERR_USAGE, "is not a tensor listed before it");
    expect_spoilt(state_is_a_list, 0, FSDPCK_ERR_USAGE, "not a JSON object");
    expect_spoilt(no_such_rank, 0, FSDPCK_ERR_USAGE, "mesh");
    expect_spoilt(rank_twice, 0, FSDPCK_ERR_USAGE, "mesh");
    expect_spoilt(mesh_of_none, 0, FSDPCK_ERR_USAGE, "mesh");
}

static void wrong_box(struct job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t, struct fsdpck_io *io)
{
    static const uint64_t offset[2] = { 4, 0 };
    (void)job, (void)io;
    if (req->rank == 1)
        ((struct fsdpck_save_box *)t[0].boxes)->offset = offset;
}

static void no_box(struct job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t, struct fsdpck_io *io)
{
    (void)job, (void)io;
    if (req->rank == 2)
        t[1].nboxes = 0;
}

static void box_outside(struct job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t, struct fsdpck_io *io)
{
    static const uint64_t offset[2] = { 1, UINT64_MAX };
    (void)job, (void)io;
    if (req->rank == 1)
        ((struct fsdpck_save_box *)t[2].boxes)->offset = offset;
}

static void overlap(struct job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t, struct fsdpck_io *io)
{
    static const uint64_t offset[2] = { 0, 3 };
    (void)job, (void)io;
    if (req->rank == 1)
        ((struct fsdpck_save_box *)t[2].boxes)->offset = offset;
}

static void hole(struct job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t, struct fsdpck_io *io)
{
    (void)job, (void)io;
    if (req->rank == 2)
        t[2].nboxes = 0;
}

static void test_wrong_boxes(void **state)
{
    (void)state;
    expect_spoilt(wrong_box, 1, FSDPCK_ERR_USAGE, "not those that mesh and placements give");
    expect_spoilt(no_box, 2, FSDPCK_ERR_USAGE, "not those that mesh and placements give");
    expect_spoilt(box_outside, 1, FSDPCK_ERR_USAGE, "leaves its shape");
    expect_spoilt(overlap, 0, FSDPCK_ERR_FORMAT, "overlap");
    expect_spoilt(hole, 0, FSDPCK_ERR_MISSING, "20 of its 24 elements");
}

/* ---- ranks that fail at work ---- */

static int64_t full_disk(void *ctx, int fd, const void *buf, uint64_t nbytes, uint64_t offset)
{
    (void)ctx, (void)fd, (void)buf, (void)nbytes, (void)offset;
    return -ENOSPC;
}

static int failing_fsync(void *ctx, int fd)
{
    (void)ctx, (void)fd;
    return -EIO;
}

static void disk_is_full(struct job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t, struct fsdpck_io *io)
{
    (void)job, (void)t;
    if (req->rank == 1)
        io->pwrite = full_disk;
}

/* The file looks complete, but the rank knows that it may not be. */
static void fsync_fails(struct job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t, struct fsdpck_io *io)
{
    (void)job, (void)t;
    if (req->rank == 2)
        io->fsync = failing_fsync;
}

static void rank_0_fails(struct job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t, struct fsdpck_io *io)
{
    (void)job, (void)t;
    if (req->rank == 0)
        io->fsync = failing_fsync;
}

static void test_failing_ranks(void **state)
{
    (void)state;
    expect_spoilt(disk_is_full, 1, FSDPCK_ERR_IO, "No space left");
    expect_spoilt(fsync_fails, 2, FSDPCK_ERR_IO, "fsync");
    expect_spoilt(rank_0_fails, 0, FSDPCK_ERR_IO, "");
}

/* OUT is the directory that the ranks work in: it is written in place. */
static void work_inside(struct job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t, struct fsdpck_io *io)
{
    (void)t, (void)io;
    if (chdir(job->out) != 0)
        abort();
    req->out = ".";
}

static void fail_inside(struct job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *t, struct fsdpck_io *io)
{
    work_inside(job, req, t, io);
    fsync_fails(job, req, t, io);
}

static void test_in_place(void **state)
{
    (void)state;
    struct job job = small_job();
    tree_dir(job.root, "out");
    job.in_place = true;
    job.spoil = fail_inside;
    expect_failed(&job, 0);
    job.spoil = work_inside;
    expect_saved(&job);
    check_saved(&job);
    struct fsdpck_error err = expect_failed(&job, 0);
    assert_int_equal(err.code, FSDPCK_ERR_EXISTS);
    job.force = true;
    job.spoil = fail_inside;
    expect_failed(&job, 0);
    check_saved(&job);
    job.spoil = work_inside;
    job.state = "{\"second\":2}";
    expect_saved(&job);
    check_saved(&job);
    check_tidy(&job);
    job_free(&job);
}

static void test_failing_barrier(void **state)
{
    (void)state;
    for (unsigned call = 1; call <= 2; call++)
        for (uint32_t from = 0; from < 2; from++) { /* for everybody; for rank 0 alone */
            struct job job = small_job();
            job.fail_at = call;
            job.fail_to = from ? 0 : MAX_RANKS;
            struct fsdpck_error err = expect_failed(&job, 0);
            assert_int_equal(err.code, FSDPCK_ERR_IO);
            assert_non_null(strstr(err.message, "the barrier failed (-77)"));
            job.fail_at = 0;
            expect_saved(&job);
            job_free(&job);
        }
}

/* After rank 0 has committed there is nothing left to give up: the checkpoint is there, and those who can see it say so. */
static void test_barrier_fails_after_the_commit(void **state)
{
    (void)state;
    struct job job = small_job();
    job.fail_at = 3;
    expect_saved(&job);
    check_saved(&job);
    job_free(&job);
}

/* Two jobs save the same tensors, with other values, to one place at one time: what stands there in the end is all of one of them, and nobody is told
 * anything else. */
static void test_two_jobs_at_once(void **state)
{
    (void)state;
    for (int round = 0; round < 30; round++) {
        struct job jobs[2] = { small_job(), small_job() };
        struct run runs[2];
        unsigned nsaved = 0;
        char *own = jobs[1].out;
        jobs[1].out = jobs[0].out;
        for (uint64_t i = 0; i < jobs[1].model.tensors[0].nbytes; i++)
            jobs[1].model.tensors[0].data[i] ^= 0xff;
        for (int k = 0; k < 2; k++)
            runs[k] = start_job(&jobs[k]);
        for (int k = 0; k < 2; k++) {
            struct shared *s = finish_job(&runs[k], jobs[k].nranks);
            for (uint32_t r = 0; r < jobs[k].nranks; r++)
                assert_int_equal(s->code[r] == 0, s->code[0] == 0);
            if (s->code[0] == 0)
                check_saved(&jobs[k]);
            nsaved += s->code[0] == 0;
            munmap(s, sizeof *s);
        }
        assert_true(nsaved <= 1);
        assert_int_equal(tree_exists(jobs[0].root, "out"), nsaved == 1);
        jobs[1].out = own;
        job_free(&jobs[0]);
        job_free(&jobs[1]);
    }
}

static void test_one_rank_needs_no_barrier(void **state)
{
    (void)state;
    struct job job = small_job();
    struct fsdpck_save_request req = { .out = job.out, .nranks = 1 };
    struct fsdpck_error err = { 0 };
    assert_int_equal(fsdpck_save(&req, NULL, NULL, &err), 0); /* not even tensors */
    check_tidy(&job);
    req = (struct fsdpck_save_request){ .out = job.out, .nranks = 2, .force = true };
    assert_int_equal(fsdpck_save(&req, NULL, NULL, &err), FSDPCK_ERR_USAGE);
    req = (struct fsdpck_save_request){ .out = job.out, .rank = 1, .nranks = 1, .force = true };
    assert_int_equal(fsdpck_save(&req, NULL, NULL, NULL), FSDPCK_ERR_USAGE);
    req.nranks = 0;
    assert_int_equal(fsdpck_save(&req, NULL, NULL, NULL), FSDPCK_ERR_USAGE);
    job_free(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_saves),       cmocka_unit_test(test_large_boxes),     cmocka_unit_test(test_assets),
        cmocka_unit_test(test_existing_output),    cmocka_unit_test(test_other_lists),     cmocka_unit_test(test_senseless_requests),
        cmocka_unit_test(test_wrong_boxes),        cmocka_unit_test(test_failing_ranks),   cmocka_unit_test(test_failing_barrier),
        cmocka_unit_test(test_in_place),
        cmocka_unit_test(test_barrier_fails_after_the_commit), cmocka_unit_test(test_two_jobs_at_once),
        cmocka_unit_test(test_one_rank_needs_no_barrier),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
