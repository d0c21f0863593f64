/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as threads (ranks.h). Knows how tensors are cut among ranks; knows nothing of files. */
#include "ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fsdpck/save.h>

enum { MAX_TENSORS = 8 };

struct group {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    uint32_t nranks, waiting;
    unsigned round;
    bool broken, failed;
};

struct rank {
    struct group *group;
    const struct faulty *mortal;
    bool phases;
    struct fsdpck_options opt;
    struct fsdpck_save_request req;
    struct fsdpck_save_tensor tensors[MAX_TENSORS];
    struct fsdpck_save_box boxes[MAX_TENSORS];
    uint64_t dims[MAX_TENSORS][2 * MODEL_MAX_DIMS];
    struct fsdpck_placement placements[MAX_TENSORS];
    pthread_t thread;
    int code;
    struct fsdpck_error err;
};

static bool is_dead(const struct rank *r)
{
    return r->mortal != NULL && faulty_hit(r->mortal);
}

static int meet(void *ctx)
{
    const struct rank *r = ctx;
    struct group *g = r->group;
    pthread_mutex_lock(&g->lock);
    unsigned round = g->round;
    if (is_dead(r))
        g->broken = true;
    else if (!g->broken && ++g->waiting == g->nranks) {
        g->waiting = 0;
        g->round++;
    }
    pthread_cond_broadcast(&g->moved);
    while (!g->broken && g->round == round)
        pthread_cond_wait(&g->moved, &g->lock);
    bool passed = g->round != round;
    pthread_mutex_unlock(&g->lock);
    return passed ? 0 : 1;
}

struct cutting {
    struct rank *r;
    const struct model_tensor *t;
    size_t i;
};

static int take_box(void *ctx, const uint64_t *offset, const uint64_t *size)
{
    struct cutting *c = ctx;
    uint64_t *dims = c->r->dims[c->i], n = c->t->ndim, row = c->t->ndim > 0 ? c->t->nbytes / c->t->shape[0] : 0;
    for (uint64_t d = 0; d < n; d++) {
        dims[d] = offset[d];
        dims[n + d] = size[d];
    }
    c->r->boxes[c->i] =
        (struct fsdpck_save_box){ .offset = dims, .size = dims + n, .data = c->t->data + (n > 0 ? dims[0] * row : 0) };
    c->r->tensors[c->i].nboxes = 1;
    return 0;
}

static void cut(struct rank *r, const struct model *m, const struct fsdpck_mesh *mesh)
{
    for (size_t i = 0; i < m->ntensors; i++) {
        const struct model_tensor *t = &m->tensors[i];
        struct cutting c = { r, t, i };
        bool whole = i == 0 || t->ndim == 0;
        r->placements[i] = (struct fsdpck_placement){ .kind = whole ? FSDPCK_REPLICATE : FSDPCK_SHARD };
        r->tensors[i] = (struct fsdpck_save_tensor){ .name = t->name,
                                                     .dtype = t->dtype,
                                                     .ndim = t->ndim,
                                                     .shape = t->shape,
                                                     .mesh = mesh,
                                                     .placements = &r->placements[i],
                                                     .boxes = &r->boxes[i] };
        if (fsdpck_placement_boxes(mesh, &r->placements[i], t->ndim, t->shape, &r->req.rank, take_box, &c) != 0)
            abort();
    }
}

/* What ranks that exchange messages do: all learn whether one of them failed, or died. */
static bool all_well(struct rank *r, int code)
{
    struct group *g = r->group;
    pthread_mutex_lock(&g->lock);
    g->failed |= code != 0;
    pthread_mutex_unlock(&g->lock);
    bool met = meet(r) == 0;
    pthread_mutex_lock(&g->lock);
    bool well = met && !g->failed;
    pthread_mutex_unlock(&g->lock);
    return well;
}

static int save_in_phases(struct rank *r)
{
    const char byte = 1;
    const struct fsdpck_save_item item = { .name = "item", .data = r->req.rank == 1 ? &byte : NULL, .nbytes = 1 };
    struct fsdpck_save_begun *begun = NULL;
    bool first = r->req.rank == 0;
    r->req.items = &item;
    r->req.nitems = 1;
    int rc = first ? fsdpck_save_begin(&r->req, &r->opt, &begun, &r->err) : 0;
    bool well = all_well(r, rc);
    if (well)
        rc = fsdpck_save_part(&r->req, NULL, NULL, &r->opt, NULL, &r->err);
    well = all_well(r, rc) && well;
    if (begun && well)
        rc = fsdpck_save_commit(begun, &r->req, &r->opt, &r->err);
    else
        fsdpck_save_abandon(begun);
    if (!all_well(r, rc) && !rc && (!first || !well)) {
        rc = r->err.code = FSDPCK_ERR_PEER;
        snprintf(r->err.message, sizeof r->err.message, "another rank failed");
    }
    return rc;
}

static void *run(void *arg)
{
    struct rank *r = arg;
    r->code = r->phases ? save_in_phases(r) : fsdpck_save(&r->req, &r->opt, NULL, &r->err);
    return NULL;
}

void ranks_save(const struct verb *v, const struct model *m, const char *out, const char *assets,
                const struct fsdpck_base *base, const struct fsdpck_options *opt, const struct verb_how *how,
                struct verb_result *result)
{
    struct rank ranks[VERB_MAX_RANKS] = { 0 };
    uint32_t nranks = v->nranks;
    struct group group = { .lock = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER, .nranks = nranks };
    const struct fsdpck_mesh mesh = { .ndim = 1, .names = { "shard" }, .sizes = { nranks } };
    if (nranks > VERB_MAX_RANKS || m->ntensors > MAX_TENSORS)
        abort();
    for (uint32_t i = 0; i < nranks; i++) {
        struct rank *r = &ranks[i];
        r->group = &group;
        r->mortal = how->mortal[i];
        r->phases = v->phases;
        r->opt = *opt;
        r->opt.io = how->io[i];
        r->req = (struct fsdpck_save_request){ .out = out,
                                               .rank = i,
                                               .nranks = nranks,
                                               .barrier = meet,
                                               .barrier_ctx = r,
                                               .tensors = r->tensors,
                                               .ntensors = m->ntensors,
                                               .state = "{\"step\":1}",
                                               .assets = assets,
                                               .base = base,
                                               .force = how->force,
                                               .compress = v->compress };
        cut(r, m, &mesh);
        if (pthread_create(&r->thread, NULL, run, r) != 0)
            abort();
    }
    for (uint32_t i = 0; i < nranks; i++) {
        pthread_join(ranks[i].thread, NULL);
        result->code[i] = ranks[i].code;
        result->err[i] = ranks[i].err;
    }
    pthread_cond_destroy(&group.moved);
    pthread_mutex_destroy(&group.lock);
}
