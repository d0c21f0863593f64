/* SPDX-License-Identifier: Apache-2.0 */
#include "model/layout_join.h"

#include <stdlib.h>
#include <string.h>

#include "arrays/grow.h"
#include "model/layout_place.h"

/* places: (all[i]->nparams) for each layout, the number of each of its parameters in `out`. */
struct join {
    struct layout *const *all;
    size_t n;
    struct layout *out;
    size_t **places;
};

/* A frozen parameter of the group that is there already, or nparams. */
static size_t find_frozen(const struct layout *l, size_t first, const struct param *p)
{
    size_t i = first;
    while (i < l->nparams && (l->params[i].trainable || strcmp(l->params[i].name, p->name) != 0))
        i++;
    return i;
}

static int add_param(struct layout *l, const struct param *p, int64_t own_first, struct fsdpck_error *err)
{
    if (!grow((void **)&l->params, &l->capacity, l->nparams + 1, sizeof *l->params))
        return fsdpck_error_nomem(err, (l->nparams + 1) * sizeof *l->params);
    struct param *copy = &l->params[l->nparams++];
    *copy = *p;
    copy->norms_of = -1; /* its layout knows the weight */
    copy->own_at += p->trainable ? own_first : 0;
    *(p->trainable && !p->constant ? &l->ntrained : &l->nfrozen) += p->nrow * p->ncol;
    return 0;
}

/* Adds a group's parameters of one layout, frozen or trained. first: of the group in `out`. */
static int add_group(struct join *j, size_t number, uint32_t group, size_t first, bool trained,
                     struct fsdpck_error *err)
{
    const struct layout *l = j->all[number];
    struct layout *out = j->out;
    int rc = 0;
    for (size_t i = 0; i < l->nparams && !rc; i++) {
        const struct param *p = &l->params[i];
        if (p->group != group || p->trainable != trained)
            continue;
        j->places[number][i] = trained ? out->nparams : find_frozen(out, first, p);
        if (j->places[number][i] == out->nparams)
            rc = add_param(out, p, l->own_first, err);
    }
    return rc;
}

static int add_groups(struct join *j, struct fsdpck_error *err)
{
    int rc = 0;
    for (uint32_t g = 0; g < j->out->ngroups && !rc; g++) {
        const size_t first = j->out->nparams;
        for (size_t i = 0; i < 2 * j->n && !rc; i++)
            rc = add_group(j, i % j->n, g, first, i >= j->n, err);
    }
    return rc;
}

static int32_t place_of(const struct join *j, size_t number, int32_t param)
{
    return (int32_t)j->places[number][param];
}

/* What the order of gathers depends on: the ends, and for each layer a parameter that has its dtype. */
static void describe(struct join *j)
{
    struct layout *out = j->out;
    bool tied = false;
    size_t trains = 0;
    for (size_t i = j->n; i-- > 0;) {
        const struct layout *l = j->all[i];
        tied |= layout_is_tied(l);
        out->embed.r = l->embed.r > out->embed.r ? l->embed.r : out->embed.r;
        out->head.r = l->head.r > out->head.r ? l->head.r : out->head.r;
        trains = l->params[l->embed.w].trainable ? i : trains;
    }
    out->embed.w = place_of(j, trains, j->all[trains]->embed.w);
    out->head.w = tied ? out->embed.w : place_of(j, 0, j->all[0]->head.w);
    out->norm = place_of(j, 0, j->all[0]->norm);
    for (uint32_t i = 0; i < out->nblocks; i++)
        out->layers[i].norm1 = place_of(j, 0, j->all[0]->layers[i].norm1);
}

/* An adapter may change the dtype that fsdp.policy gives a group, by what it trains at the ends. */
static int give_place(const struct param *from, struct param *to, struct fsdpck_error *err)
{
    if (from->dtype != to->dtype || from->reduce != to->reduce)
        return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, NULL,
                                "'%s' has another type beside the other tenants than alone: fsdp.policy sets types for "
                                "an end of the model that one of them trains as a copy",
                                to->name);
    to->value_at = from->value_at;
    to->shard_at = from->shard_at;
    to->grad_at = from->grad_at;
    to->own_at = from->own_at;
    return 0;
}

static int give_places(struct join *j, struct fsdpck_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < j->n && !rc; i++) {
        struct layout *l = j->all[i];
        for (size_t k = 0; k < l->nparams && !rc; k++)
            rc = give_place(&j->out->params[j->places[i][k]], &l->params[k], err);
        l->value_nbytes = j->out->value_nbytes;
        l->shard_nbytes = j->out->shard_nbytes;
        l->grad_nelem = j->out->grad_nelem;
        l->masters = j->out->masters;
        l->grads_by_group = l->grads_take_turns = false;
    }
    return rc;
}

static int allocate(struct join *j, struct fsdpck_error *err)
{
    j->out->layers = calloc(j->out->nblocks, sizeof *j->out->layers);
    j->out->blocks = calloc(j->out->nblocks, sizeof *j->out->blocks);
    j->places = calloc(j->n, sizeof *j->places);
    bool complete = j->out->layers && j->out->blocks && j->places;
    if (j->out->blocks) /* fsdp is the same for all */
        memcpy(j->out->blocks, j->all[0]->blocks, j->out->nblocks * sizeof *j->out->blocks);
    for (size_t i = 0; i < j->n && complete; i++) {
        j->places[i] = calloc(j->all[i]->nparams + 1, sizeof **j->places);
        complete = j->places[i] != NULL;
    }
    return complete ? 0 : fsdpck_error_nomem(err, j->n * sizeof *j->places);
}

int layout_join(struct layout *const *all, size_t n, const struct train_config *config, struct layout *out,
                struct fsdpck_error *err)
{
    struct layout l = { .nranks = all[0]->nranks, .ngroups = all[0]->ngroups, .nblocks = all[0]->nblocks };
    memcpy(l.mlp, all[0]->mlp, sizeof l.mlp);
    struct join j = { .all = all, .n = n, .out = &l };
    for (size_t i = 0; i < n; i++) {
        all[i]->own_first = l.own_nelem;
        l.own_nelem += all[i]->own_nelem;
    }
    int rc = allocate(&j, err);
    if (!rc)
        rc = add_groups(&j, err);
    if (!rc) {
        describe(&j);
        rc = layout_place(&l, config, err);
    }
    if (!rc)
        rc = give_places(&j, err);
    for (size_t i = 0; i < n && j.places; i++)
        free(j.places[i]);
    free(j.places);
    if (rc)
        layout_free(&l);
    *out = l;
    return rc;
}
