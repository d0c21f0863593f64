/* SPDX-License-Identifier: Apache-2.0 */
/* An adapter begins, takes other values, and is copied for sampling. Its layout is that of a run with the same config,
 * with the base's parameters where the server has them. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "model/layout_beside.h"
#include "rank/host_memory.h"
#include "serve/serve_impl.h"
#include "state/adapter.h"
#include "state/load.h"

/* ---- Its config */

/* target_modules and target_parameters as PEFT has them: ends of names. */
struct targets {
    json_t *modules, *parameters;
    bool apart; /* experts as parameters where they are modules too: other layers by their whole paths */
};

static void add_name(json_t *names, const char *name)
{
    for (size_t i = 0; i < json_array_size(names); i++)
        if (strcmp(json_string_value(json_array_get(names, i)), name) == 0)
            return;
    json_array_append_new(names, json_string(name));
}

static void add_linear(struct targets *t, const struct linear *lin)
{
    add_name(t->modules, t->apart ? lin->path : strrchr(lin->path, '.') + 1);
}

static void add_mlp(struct targets *t, const struct mlp *x)
{
    add_linear(t, &x->gate);
    add_linear(t, &x->up);
    add_linear(t, &x->down);
}

/* The experts of gpt-oss are no modules. */
static void add_experts(struct targets *t, const struct layer *l)
{
    if (!t->apart && !l->experts[0].gate.bare) {
        add_mlp(t, &l->experts[0]);
        return;
    }
    add_name(t->parameters, "mlp.experts.gate_up_proj");
    add_name(t->parameters, "mlp.experts.down_proj");
}

static void add_layer(struct targets *t, const struct layer *l, const struct serve_lora *lora)
{
    const struct linear *const attention[] = { &l->q, &l->k, &l->v, &l->o };
    for (size_t k = 0; lora->attention && k < 4; k++)
        add_linear(t, attention[k]);
    if (!lora->mlp)
        return;
    if (l->experts)
        add_experts(t, l);
    else
        add_mlp(t, &l->mlp);
    if (l->shares)
        add_mlp(t, &l->shared);
}

/* The section "lora"; owned. NULL: *err is set. */
static json_t *lora_section(const struct serve *s, const struct serve_lora *lora, bool apart, struct fsdpck_error *err)
{
    struct targets t = { json_array(), json_array(), apart };
    for (int64_t i = 0; i < s->job.model.nlayer; i++)
        add_layer(&t, &s->job.layout.layers[i], lora);
    if (lora->head)
        add_name(t.modules, "lm_head");
    const size_t n = json_array_size(t.modules) + json_array_size(t.parameters);
    json_t *out = json_pack("{s:I, s:f, s:o, s:o}", "r", (json_int_t)lora->rank, "lora_alpha", lora->alpha,
                            "target_modules", t.modules, "target_parameters", t.parameters);
    if (out && n)
        return out;
    json_decref(out);
    if (n)
        fsdpck_error_nomem(err, n);
    else
        fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                         "an adapter of nothing: train_attn, train_mlp and train_unembed are all false");
    return NULL;
}

static json_t *base_config(const struct serve *s, uint64_t seed)
{
    const bool recompute = s->config.fsdp.checkpointing == TRAIN_RECOMPUTE_BLOCK;
    return json_pack("{s:s, s:I, s:{s:s}, s:{s:s}, s:{s:s}, s:{s:s}}", "model", s->config.model, "seed",
                     (json_int_t)seed, "data", "train", "-", "dtype", "param",
                     s->config.dtype.param == TRAIN_BF16 ? "bf16" : "fp32", "fsdp", "activation_checkpointing",
                     recompute ? "block" : "none", "train", "weight_decay_on", "all");
}

int adapter_config_of(const struct serve *s, const struct serve_lora *lora, bool apart, struct train_config *out,
                      struct fsdpck_error *err)
{
    *out = (struct train_config){ 0 };
    if (lora->rank < 1 || lora->rank > s->max_rank)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "an adapter of rank %llu; this server takes 1 to %llu",
                                (unsigned long long)lora->rank, (unsigned long long)s->max_rank);
    json_t *section = lora_section(s, lora, apart, err), *root = section ? base_config(s, lora->seed) : NULL;
    if (!section)
        return err->code;
    if (!root) {
        json_decref(section);
        return fsdpck_error_nomem(err, sizeof *root);
    }
    json_object_set_new(root, "lora", section);
    return train_config_take("fsdptrain serve", root, out, err);
}

static int check_kind(const struct serve *s, const char *path, const struct train_lora_config *lora,
                      struct fsdpck_error *err)
{
    if (lora->use_dora || lora->nmodules_to_save)
        return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, path,
                                "an adapter with %s; LoRA of linear layers and experts alone is served",
                                lora->use_dora ? "DoRA" : "modules_to_save");
    if (lora->r > s->max_rank)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, path, "an adapter of rank %llu; this server takes up to %llu",
                                (unsigned long long)lora->r, (unsigned long long)s->max_rank);
    return 0;
}

/* A bad adapter is an input error, not one of the config. */
static int config_from(const struct serve *s, const char *path, struct train_config *out, struct fsdpck_error *err)
{
    json_t *root = base_config(s, 0);
    struct fsdpck_error why = { 0 };
    *out = (struct train_config){ 0 };
    int rc = root ? adapter_put_lora(path, root, err) : fsdpck_error_nomem(err, sizeof *root);
    if (rc) {
        json_decref(root);
        return rc;
    }
    rc = train_config_take(path, root, out, &why);
    if (rc)
        return fsdpck_error_set(err, rc == FSDPCK_ERR_USAGE ? FSDPCK_ERR_FORMAT : rc, why.file, "%s", why.message);
    return check_kind(s, path, &out->lora, err);
}

int adapter_layout(const struct serve *s, const struct train_config *config, struct layout *out,
                   struct fsdpck_error *err)
{
    int rc = layout_make(&s->job.model, config, &s->job.packed, 1, out, err);
    if (!rc && (out->embed.r || out->params[out->embed.w].trainable)) {
        layout_free(out);
        rc = fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, NULL,
                              "an adapter of the embedding; LoRA of linear layers and experts alone is served");
    }
    return rc;
}

/* ---- Its memory and state */

static int take_values(struct serve *s, struct held *h, struct fsdpck_error *err)
{
    const size_t nbytes = layout_own_nbytes(&h->job.layout);
    const uint64_t beside = h->config.frozen ? 0 : rank_beside_nbytes(&h->job.layout), free_nbytes = host_memory(1);
    pthread_mutex_lock(&s->mutex);
    const bool fits = nbytes + beside <= free_nbytes && ranges_take(&s->ranges, nbytes, &h->values.first);
    const size_t room = ranges_largest(&s->ranges);
    pthread_mutex_unlock(&s->mutex);
    if (!fits)
        return fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL,
                                "an adapter of %lld parameters takes %.1f MiB; %.1f MiB of memory are free for it",
                                (long long)h->job.layout.ntrained, (double)(nbytes + beside) / 1048576.0,
                                (double)(room < free_nbytes ? room : free_nbytes) / 1048576.0);
    h->values.nbytes = nbytes;
    memset(s->lanes[0].comm->values + h->values.first, 0, nbytes); /* another one may have been there */
    return layout_beside(&s->job.layout, h->values.first, &h->job.layout, err);
}

/* From h->config, which the result owns. */
static int hold(struct serve *s, struct held *h, struct fsdpck_error *err)
{
    h->job = s->job;
    h->job.config = &h->config;
    h->job.nranks = h->job.nlocal = 1;
    h->job.layout = (struct layout){ 0 };
    h->computes = calloc(s->nranks, sizeof(struct compute *));
    if (!h->computes)
        return fsdpck_error_nomem(err, s->nranks * sizeof(struct compute *));
    int rc = adapter_layout(s, &h->config, &h->job.layout, err);
    if (!rc)
        rc = take_values(s, h, err);
    return rc ? rc : rank_beside_open(s->lanes[0].rank, &h->job, &h->beside, err);
}

void held_free(struct serve *s, struct held *h)
{
    if (!h)
        return;
    for (uint32_t i = 0; h->computes && i < s->nranks; i++)
        compute_free(h->computes[i]);
    free(h->computes);
    rank_beside_close(&h->beside);
    pthread_mutex_lock(&s->mutex);
    ranges_give(&s->ranges, h->values.first, h->values.nbytes); /* without memory for the list, it stays taken */
    pthread_mutex_unlock(&s->mutex);
    layout_free(&h->job.layout); /* the rest of the job is the server's */
    train_config_free(&h->config);
    free(h);
}

/* The rank, alpha and layers of an adapter that has begun. */
static struct serve_lora describe(const struct held *h)
{
    struct serve_lora lora = { .rank = h->config.lora.r, .seed = h->config.seed, .alpha = h->config.lora.alpha };
    for (int64_t i = 0; i < h->job.model.nlayer; i++) {
        const struct layer *l = &h->job.layout.layers[i];
        const struct mlp *x = l->experts ? &l->experts[0] : &l->mlp;
        lora.attention |= l->q.r || l->k.r || l->v.r || l->o.r;
        lora.mlp |= x->gate.r || x->up.r || x->down.r || l->router.r || (l->shares && l->shared.down.r);
    }
    lora.head = h->job.layout.head.r > 0;
    return lora;
}

/* Makes *out from a config; frees the config if it fails. */
static int make(struct lane *lane, struct train_config *config, const struct serve_from *from, bool frozen,
                struct held **out, struct fsdpck_error *err)
{
    struct serve *s = lane->s;
    struct held *h = calloc(1, sizeof *h);
    *out = NULL;
    if (!h) {
        train_config_free(config);
        return fsdpck_error_nomem(err, sizeof *h);
    }
    h->config = *config;
    h->config.frozen = frozen;
    int rc = hold(s, h, err);
    if (!rc) {
        rank_beside_use(&h->beside, lane->compute);
        rc = rank_load_beside(s->lanes[0].rank, h->beside.rank, false, err);
    }
    if (!rc && from->optimizer)
        rc = save_read(h, from->path, err);
    if (rc)
        held_free(s, h);
    else
        *out = h;
    return rc;
}

static int make_from(struct lane *lane, const struct serve_from *from, const struct serve_lora *lora, bool frozen,
                     struct held **out, struct fsdpck_error *err)
{
    struct train_config config;
    int rc = from->path ? config_from(lane->s, from->path, &config, err)
                        : adapter_config_of(lane->s, lora, false, &config, err);
    if (rc) {
        train_config_free(&config);
        return rc;
    }
    return make(lane, &config, from, frozen, out, err);
}

int adapter_begin(struct lane *lane, struct serve_task *t)
{
    struct held *h;
    int rc = make_from(lane, &t->begin.from, &t->begin.lora, t->adapter->frozen, &h, &t->err);
    if (rc)
        return rc;
    t->begin.lora = describe(h);
    t->adapter->held = h;
    return 0;
}

static bool are_alike(const struct layout *a, const struct layout *b)
{
    bool alike = a->nparams == b->nparams;
    for (size_t i = 0; i < a->nparams && alike; i++)
        alike = strcmp(a->params[i].name, b->params[i].name) == 0 && a->params[i].nrow == b->params[i].nrow &&
                a->params[i].ncol == b->params[i].ncol;
    return alike;
}

int adapter_load(struct lane *lane, struct serve_task *t)
{
    struct held *h, *before = t->adapter->held;
    int rc = make_from(lane, &t->begin.from, NULL, t->adapter->frozen, &h, &t->err);
    if (rc)
        return rc;
    if (!are_alike(&h->job.layout, &before->job.layout)) {
        held_free(lane->s, h);
        return fsdpck_error_set(&t->err, FSDPCK_ERR_USAGE, t->begin.from.path,
                                "an adapter of other layers or another rank than the one that it is loaded into");
    }
    t->begin.lora = describe(h);
    t->adapter->held = h;
    held_free(lane->s, before);
    return 0;
}

/* ---- For sampling */

static void copy_values(const struct serve *s, const struct layout *from, const struct layout *to)
{
    unsigned char *values = s->lanes[0].comm->values;
    for (size_t i = 0; i < from->nparams; i++)
        if (param_is_adapter(&from->params[i]))
            memcpy(values + to->params[i].value_at, values + from->params[i].value_at,
                   param_value_nbytes(from, &from->params[i]));
}

static int copy_config(const struct train_config *config, struct train_config *out, struct fsdpck_error *err)
{
    json_t *root = json_deep_copy(config->root);
    *out = (struct train_config){ 0 };
    return root ? train_config_take("fsdptrain serve", root, out, err) : fsdpck_error_nomem(err, sizeof *root);
}

int adapter_freeze(struct lane *lane, struct serve_task *t)
{
    const struct held *from = t->adapter->held;
    struct held *h = calloc(1, sizeof *h);
    int rc = h ? copy_config(&from->config, &h->config, &t->err) : fsdpck_error_nomem(&t->err, sizeof *h);
    if (!rc) {
        h->config.frozen = true;
        rc = hold(lane->s, h, &t->err);
    }
    if (rc) {
        if (h)
            held_free(lane->s, h);
        return rc;
    }
    copy_values(lane->s, &from->job.layout, &h->job.layout);
    t->frozen->held = h;
    return 0;
}

int adapter_begin_base(struct serve *s, struct serve_adapter *a, struct fsdpck_error *err)
{
    struct held *h = a->held = calloc(1, sizeof *h);
    int rc = h ? copy_config(&s->config, &h->config, err) : fsdpck_error_nomem(err, sizeof *h);
    if (rc)
        return rc;
    h->config.frozen = true;
    return hold(s, h, err);
}

/* ---- To compute with it */

int adapter_compute(struct lane *lane, struct held *h, struct compute **out, struct fsdpck_error *err)
{
    struct compute **c = &h->computes[lane->number];
    const int64_t ntok = (int64_t)lane->s->seq_len;
    int rc = 0;
    if (!*c) {
        rc = compute_new_beside(lane->compute, &h->job.model, &h->job.layout, &h->config, ntok, (size_t)ntok, c, err);
        if (!rc && (*c)->nbytes > lane->activations.nbytes)
            rc = fsdpck_error_set(err, FSDPCK_ERR_LIMIT, NULL,
                                  "the activations of this adapter take %.2f GiB; --max-rank makes room for %.2f",
                                  (double)(*c)->nbytes / 1073741824.0, (double)lane->activations.nbytes / 1073741824.0);
        if (!rc)
            rc = compute_bind(*c, lane->activations.data, NULL, NULL, err);
        if (rc) {
            compute_free(*c);
            *c = NULL;
        }
    }
    *out = *c;
    return rc;
}

int serve_check_room(struct serve *s, const struct serve_lora *lora, struct fsdpck_error *err)
{
    struct train_config config;
    struct layout l = { 0 };
    int rc = adapter_config_of(s, lora, false, &config, err);
    if (!rc)
        rc = adapter_layout(s, &config, &l, err);
    const uint64_t nbytes = rc ? 0 : layout_own_nbytes(&l) + rank_beside_nbytes(&l), free_nbytes = host_memory(1);
    pthread_mutex_lock(&s->mutex);
    const bool fits = rc || (nbytes <= free_nbytes && layout_own_nbytes(&l) <= ranges_largest(&s->ranges));
    pthread_mutex_unlock(&s->mutex);
    if (!fits)
        rc = fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL,
                              "an adapter of rank %llu takes %.1f MiB, which are not free: finished sessions "
                              "leave theirs",
                              (unsigned long long)lora->rank, (double)nbytes / 1048576.0);
    layout_free(&l);
    train_config_free(&config);
    return rc;
}
