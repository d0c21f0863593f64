/* SPDX-License-Identifier: Apache-2.0 */
/* The base of a server: loaded by its ranks, which are threads that see all of its parameters. Behind them, parameter
 * memory has room for adapters, which takes pages only where it is used. */
#include <jansson.h>
#include <fsdpck/base.h>
#include <stdlib.h>

#include "model/family.h"
#include "model/layout_beside.h"
#include "rank/device.h"
#include "rank/host_memory.h"
#include "serve/serve_impl.h"
#include "state/load.h"
#include "state/sources.h"

enum { SEQ_LEN = 2048, MAX_RANK = 64, PAGE_NBYTES = 4096, LEAST_PAGES = 2 };

/* ---- The base */

static int make_config(const struct serve_options *opt, struct train_config *out, struct fsdpck_error *err)
{
    json_t *root = json_pack("{s:s, s:{s:s}, s:{s:s}, s:{s:s}}", "model", opt->model, "data", "train", "-", "dtype",
                             "param", opt->dtype ? opt->dtype : "bf16", "fsdp", "activation_checkpointing",
                             opt->recompute ? "block" : "none");
    int rc = root ? train_config_take("fsdptrain serve", root, out, err)
                  : fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "'%s' is no UTF-8", opt->model);
    out->frozen = true;
    return rc;
}

static int open_job(struct serve *s, const struct serve_options *opt, struct fsdpck_error *err)
{
    const unsigned share = fsdpck_processors() / s->nranks;
    s->opt = (struct train_options){ .nranks = s->nranks, .note = opt->fs.note, .ctx = opt->fs.ctx };
    s->job = (struct job){ .config = &s->config,
                           .opt = &s->opt,
                           .fs = opt->fs,
                           .serves = true,
                           .nranks = s->nranks,
                           .nlocal = s->nranks,
                           .nthreads = opt->nthreads ? opt->nthreads
                                       : share       ? share
                                                     : 1 };
    int rc = model_read(s->config.model, &s->job.fs, &s->job.model, err);
    if (!rc)
        rc = model_check_decoder(&s->job.model, s->config.model, err);
    if (!rc)
        rc = sources_packed(&s->job, &s->job.packed, err);
    if (!rc)
        rc = layout_make(&s->job.model, &s->config, &s->job.packed, s->nranks, &s->job.layout, err);
    return rc ? rc : job_check_sources(&s->job, err);
}

/* Adapters may take half of the memory that the base leaves. */
static int open_world(struct serve *s, struct fsdpck_error *err)
{
    struct comm_sizes sizes = job_comm_sizes(&s->job);
    const size_t base = (sizes.value_nbytes + PAGE_NBYTES - 1) / PAGE_NBYTES * PAGE_NBYTES;
    const uint64_t room = host_memory(1);
    if (room < base)
        return fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "the base takes %.2f GiB, and %.2f are free",
                                (double)base / 1073741824.0, (double)room / 1073741824.0);
    const size_t beside = (room - base) / 2 / PAGE_NBYTES * PAGE_NBYTES;
    s->beside_nbytes = beside;
    sizes.value_nbytes = base + beside;
    if (!ranges_give(&s->ranges, base, beside))
        return fsdpck_error_nomem(err, beside);
    int rc = job_status_new(0, s->nranks, s->nranks, 600, &s->job_status, err);
    return rc ? rc : comm_world_new(s->nranks, sizes, s->job_status, &s->world, err);
}

/* The memory that the computation of the largest adapter takes. apart: with experts as parameters. */
static int measure_adapter(struct serve *s, bool apart, uint64_t *nbytes, struct fsdpck_error *err)
{
    const struct serve_lora largest = { .rank = s->max_rank, .alpha = 1, .attention = true, .mlp = true, .head = true };
    const struct rank *r = s->lanes[0].rank;
    struct train_config config = { 0 };
    struct layout l = { 0 };
    struct compute *c = NULL;
    int rc = adapter_config_of(s, &largest, apart, &config, err);
    if (!rc)
        rc = adapter_layout(s, &config, &l, err);
    if (!rc)
        rc = compute_new_beside(r->compute, &s->job.model, &l, &config, (int64_t)s->seq_len, (size_t)s->seq_len, &c,
                                err);
    *nbytes = rc ? 0 : c->nbytes;
    compute_free(c);
    layout_free(&l);
    train_config_free(&config);
    return rc;
}

/* The memory that a rank's computations share: that of the largest adapter of either kind. */
static int measure(struct serve *s, struct fsdpck_error *err)
{
    uint64_t modules = 0, parameters = 0;
    int rc = measure_adapter(s, false, &modules, err);
    if (!rc)
        rc = measure_adapter(s, true, &parameters, err);
    s->activation_nbytes = modules > parameters ? modules : parameters;
    return rc;
}

/* ---- Its ranks */

static int open_rank(struct lane *lane, struct fsdpck_error *err)
{
    struct serve *s = lane->s;
    int rc = comm_world_join(s->world, lane->number, &lane->comm, err);
    if (!rc)
        rc = rank_open_bare(&s->job, lane->comm, &lane->rank, err);
    if (!rc)
        rc = rank_load(lane->rank, false, err);
    if (!rc)
        rc = choose_new(s->job.model.nvocab, &lane->choose, err);
    if (rc)
        rank_fail(&s->job, s->job_status, err);
    else
        lane->compute = lane->rank->compute;
    return rc;
}

/* The thread for files has a stream of its own. */
static int open_files(struct lane *lane, struct fsdpck_error *err)
{
    const struct serve *s = lane->s;
    const struct rank *r = s->lanes[0].rank;
    int rc = compute_new_bare(&s->job.model, &s->job.layout, &s->config,
                              &(struct compute_device){ r->where->device, r->where->index, 1 }, &lane->compute, err);
    if (!rc)
        compute_set_values(lane->compute, r->comm->values);
    return rc;
}

static int take_activations(struct lane *lane, struct fsdpck_error *err)
{
    const struct rank *r = lane->rank;
    const struct kern_location location = { .kind = KERN_MEMORY_DEVICE, .index = r->where->index, .huge_pages = true };
    char message[KERN_MESSAGE_BYTES] = "";
    if (r->where->device->memory->alloc(location, lane->s->activation_nbytes, &lane->activations, message) == KERN_OK)
        return 0;
    return fsdpck_error_set(
        err, FSDPCK_ERR_NOMEM, NULL, "activations of %llu tokens take %.2f GiB for a rank, which are not there: %s",
        (unsigned long long)lane->s->seq_len, (double)lane->s->activation_nbytes / 1073741824.0, message);
}

/* Of the thread for files, whose stream no rank uses. Unless told otherwise, a quarter of the memory that the base
 * leaves. */
static int open_kv(struct serve *s, uint64_t nbytes, struct fsdpck_error *err)
{
    int rc = kv_pool_new(s->lanes[s->nranks].compute, nbytes ? nbytes : s->beside_nbytes / 2, s->job.model.max_position,
                         &s->kv, err);
    if (rc || kv_pool_npages(s->kv) >= LEAST_PAGES)
        return rc;
    return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                            "%llu bytes for keys and values: %d pages of %d tokens are wanted, which take %zu bytes",
                            (unsigned long long)nbytes, LEAST_PAGES, KV_PAGE, LEAST_PAGES * kv_pool_page_nbytes(s->kv));
}

/* Ranks load the base together. */
static void *run_lane(void *ctx)
{
    struct lane *lane = ctx;
    struct serve *s = lane->s;
    const int rc = lane->number < s->nranks ? open_rank(lane, &lane->err) : 0;
    pthread_mutex_lock(&s->mutex);
    s->nready++;
    pthread_cond_broadcast(&s->changed);
    while (!s->opened && !s->ends)
        pthread_cond_wait(&s->changed, &s->mutex);
    pthread_mutex_unlock(&s->mutex);
    return rc ? NULL : queue_run(lane);
}

static int start(struct lane *lane, struct fsdpck_error *err)
{
    const int failed = pthread_create(&lane->thread, NULL, run_lane, lane);
    lane->started = !failed;
    return failed ? fsdpck_error_sys(err, failed, NULL, "pthread_create") : 0;
}

/* What the first rank that failed by itself says. */
static int await_ranks(struct serve *s, struct fsdpck_error *err)
{
    pthread_mutex_lock(&s->mutex);
    while (s->nready < s->nranks)
        pthread_cond_wait(&s->changed, &s->mutex);
    pthread_mutex_unlock(&s->mutex);
    return job_status_error(s->job_status, err) ? err->code : 0;
}

static int open_lanes(struct serve *s, struct fsdpck_error *err)
{
    s->lanes = calloc(s->nranks + 1, sizeof *s->lanes);
    if (!s->lanes)
        return fsdpck_error_nomem(err, (s->nranks + 1) * sizeof *s->lanes);
    int rc = 0;
    for (uint32_t i = 0; i <= s->nranks; i++)
        s->lanes[i] = (struct lane){ .s = s, .number = i };
    for (uint32_t i = 0; i < s->nranks && !rc; i++) {
        rc = start(&s->lanes[i], err);
        if (rc)
            rank_fail(&s->job, s->job_status, err);
    }
    if (!rc)
        rc = await_ranks(s, err);
    if (!rc)
        rc = open_files(&s->lanes[s->nranks], err);
    if (!rc)
        rc = measure(s, err);
    for (uint32_t i = 0; i < s->nranks && !rc; i++)
        rc = take_activations(&s->lanes[i], err);
    return rc ? rc : start(&s->lanes[s->nranks], err);
}

int serve_open(const struct serve_options *opt, struct serve **out, struct fsdpck_error *err)
{
    struct serve *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return fsdpck_error_nomem(err, sizeof *s);
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->nranks = opt->nranks ? opt->nranks : 1;
    s->seq_len = opt->seq_len ? opt->seq_len : SEQ_LEN;
    s->max_rank = opt->max_rank ? opt->max_rank : MAX_RANK;
    int rc = make_config(opt, &s->config, err);
    if (!rc)
        rc = open_job(s, opt, err);
    if (!rc)
        rc = open_world(s, err);
    if (!rc)
        rc = open_lanes(s, err);
    if (!rc)
        rc = open_kv(s, opt->kv_nbytes, err);
    if (!rc)
        rc = serve_adapter_new(s, true, &s->base, err);
    if (!rc)
        rc = adapter_begin_base(s, s->base, err);
    pthread_mutex_lock(&s->mutex);
    s->opened = !rc;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
    if (rc)
        serve_close(s);
    else
        *out = s;
    return rc;
}

/* ---- The end */

static void close_lane(struct lane *lane)
{
    if (lane->rank) {
        lane->rank->where->device->memory->free(&lane->activations);
        rank_close(lane->rank);
    } else {
        compute_free(lane->compute);
    }
    if (lane->comm)
        lane->comm->ops->free(lane->comm);
    choose_free(lane->choose);
    free(lane->grads);
}

static void stop_lanes(struct serve *s)
{
    pthread_mutex_lock(&s->mutex);
    s->ends = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
    for (uint32_t i = 0; s->lanes && i <= s->nranks; i++)
        if (s->lanes[i].started)
            pthread_join(s->lanes[i].thread, NULL);
}

/* Of samples whose prompts have been read, but which have not all begun. */
static void drop_tasks(const struct serve_adapter *a)
{
    for (struct serve_task *t = a->first; t; t = t->next)
        if (t->kind == SERVE_SAMPLE)
            generate_drop(a->s, t);
}

void serve_close(struct serve *s)
{
    if (!s)
        return;
    stop_lanes(s);
    for (struct serve_adapter *a = s->adapters, *next; a; a = next) {
        next = a->next;
        drop_tasks(a);
        held_free(s, a->held);
        free(a);
    }
    for (uint32_t i = 0; s->lanes && i <= s->nranks; i++)
        close_lane(&s->lanes[i]);
    free(s->lanes);
    kv_pool_free(s->kv);
    comm_world_free(s->world);
    job_status_free(s->job_status);
    ranges_free(&s->ranges);
    job_free(&s->job);
    train_config_free(&s->config);
    pthread_mutex_destroy(&s->mutex);
    pthread_cond_destroy(&s->changed);
    free(s);
}

/* The prompt's last page, if it is a part, is there twice. */
static int64_t cached_of(const struct serve *s)
{
    const int64_t most = kv_pool_most(s->kv), twice = (int64_t)(kv_pool_npages(s->kv) - 1) * KV_PAGE;
    return most < twice ? most : twice;
}

struct serve_facts serve_facts(const struct serve *s)
{
    return (struct serve_facts){ .nvocab = s->job.model.nvocab,
                                 .seq_len = (int64_t)s->seq_len,
                                 .max_rank = (int64_t)s->max_rank,
                                 .context = s->job.model.max_position,
                                 .cached = cached_of(s),
                                 .kv_nbytes = kv_pool_npages(s->kv) * kv_pool_page_nbytes(s->kv),
                                 .base_nbytes = s->job.layout.value_nbytes,
                                 .architecture = s->job.model.family->name,
                                 .nranks = s->nranks,
                                 .nthreads = s->job.nthreads };
}

struct serve_adapter *serve_base(struct serve *s)
{
    return s->base;
}
