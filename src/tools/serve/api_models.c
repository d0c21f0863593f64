/* SPDX-License-Identifier: Apache-2.0 */
/* Training clients: made, loaded and updated. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "serve/admit.h"

#define ALPHA 32.0 /* of every rank: the scale is 32/r */

/* ---- New ones */

/* An adapter has begun, or has other values. */
static void answer_begun(struct request *r)
{
    struct service *s = r->service;
    struct model *m = request_model(r);
    struct fsdpck_error err = { 0 };
    json_t *o = json_pack("{s:s}", "type", r->path ? "load_weights" : "create_model");
    if (m)
        m->lora = r->task.begin.lora;
    if (m && model_record(s, m, &err)) {
        json_decref(o);
        future_fail_with(s, r->future, &err);
        return;
    }
    json_object_set_new(o, "model_id", json_string(r->id));
    if (r->path)
        json_object_set_new(o, "path", json_string(r->path));
    future_complete_json(s, r->future, o);
}

static void drop_begun(struct request *r)
{
    free((char *)r->task.begin.from.path);
}

/* A path of a checkpoint that is there; *answer: the refusal. */
static bool find_place(struct call *c, const char *uri, struct store_place *p, char path[STORE_PATH], unsigned *status,
                       struct MHD_Response **answer)
{
    if (!uri || !store_parse(uri, p))
        *answer = call_refuse(status, MHD_HTTP_BAD_REQUEST, "'%.200s' is no path like tinker://RUN/weights/NAME",
                              uri ? uri : "");
    else if (!store_has(&c->service->store, p) || !store_path(&c->service->store, p, path))
        *answer = call_refuse(status, MHD_HTTP_NOT_FOUND, "there is no checkpoint '%.400s'", uri);
    else
        return true;
    return false;
}

/* Adds a model to a session, and begins it. */
static struct MHD_Response *begin(struct call *c, struct session *session, uint64_t number,
                                  const struct serve_lora *lora, const char *uri, const char *path, unsigned *status)
{
    struct service *s = c->service;
    struct fsdpck_error err = { 0 };
    struct future *f = future_new(s);
    struct model *m = f ? model_new(s, session, number, &err) : NULL;
    struct request *r = m ? request_new(s, SERVE_BEGIN, m->adapter, answer_begun) : NULL;
    if (!r || !numbers_add(&session->models, (struct numbered){ number, call_hash(c), f })) {
        request_free(r);
        return call_refuse(status, MHD_HTTP_BAD_REQUEST, "out of memory");
    }
    m->lora = *lora;
    m->metadata = json_incref(json_object_get(c->json, "user_metadata"));
    r->future = f;
    r->drop = drop_begun;
    r->task.begin.lora = *lora;
    r->task.begin.from.optimizer = call_bool(c->json, "optimizer", false);
    r->task.begin.from.path = path ? strdup(path) : NULL;
    r->path = uri ? strdup(uri) : NULL;
    snprintf(r->id, sizeof r->id, "%s", m->id);
    struct MHD_Response *answer = call_future(f, status);
    request_submit(r);
    return answer;
}

/* The session of a request for a new model; NULL: *answer is the answer. */
static struct session *admit_session(struct call *c, int64_t number, unsigned *status, struct MHD_Response **answer)
{
    const char *id = call_text(c, "session_id"), *base = call_text(c, "base_model");
    struct session *one = id ? session_find(c->service, id) : NULL;
    if (!one)
        *answer =
            call_refuse(status, MHD_HTTP_NOT_FOUND, "there is no session '%.100s'; it may have ended", id ? id : "");
    else if (base && strcmp(base, c->service->name) != 0)
        *answer = call_refuse(status, MHD_HTTP_BAD_REQUEST, "base_model '%.200s': this server has '%.400s'", base,
                              c->service->name);
    else
        *answer = admit_again(&one->models, number, call_hash(c), status);
    return *answer ? NULL : one;
}

static const char *check_optimizer(const json_t *o)
{
    const char *type = json_string_value(json_object_get(o, "type"));
    return !type || strcmp(type, "adamw") == 0 || strcmp(type, "adam") == 0 ? NULL : type;
}

static struct serve_lora lora_of(const json_t *o)
{
    uint32_t random = 0;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        random = (uint32_t)time(NULL);
    return (struct serve_lora){ .rank = (uint64_t)call_integer(o, "rank", 32),
                                .seed = (uint64_t)call_integer(o, "seed", (int64_t)(random >> 1)),
                                .alpha = ALPHA,
                                .attention = call_bool(o, "train_attn", true),
                                .mlp = call_bool(o, "train_mlp", true),
                                .head = call_bool(o, "train_unembed", true) };
}

static struct MHD_Response *create(struct call *c, unsigned *status)
{
    const int64_t number = call_integer(c->json, "model_seq_id", -1);
    const json_t *config = json_object_get(c->json, "lora_config");
    const char *optimizer = check_optimizer(json_object_get(c->json, "optimizer_config"));
    struct MHD_Response *answer = NULL;
    struct session *session = admit_session(c, number, status, &answer);
    struct fsdpck_error err = { 0 };
    if (!session)
        return answer;
    if (!json_is_object(config))
        return call_refuse(status, MHD_HTTP_BAD_REQUEST,
                           "lora_config is missing: this server trains adapters of its model");
    if (optimizer)
        return call_refuse(status, MHD_HTTP_BAD_REQUEST, "optimizer_config: '%.40s'; there is adamw", optimizer);
    if (!call_text(c, "base_model"))
        return call_refuse(status, MHD_HTTP_BAD_REQUEST, "base_model is missing");
    const struct serve_lora lora = lora_of(config);
    if (serve_check_room(c->service->engine, &lora, &err))
        return call_error(status, &err);
    return begin(c, session, (uint64_t)number, &lora, NULL, NULL, status);
}

static struct MHD_Response *load_new(struct call *c, unsigned *status)
{
    const int64_t number = call_integer(c->json, "model_seq_id", -1);
    const char *uri = call_text(c, "path");
    char path[STORE_PATH];
    struct store_place p;
    struct MHD_Response *answer = NULL;
    struct session *session = admit_session(c, number, status, &answer);
    if (!session || !find_place(c, uri, &p, path, status, &answer))
        return answer;
    return begin(c, session, (uint64_t)number, &(struct serve_lora){ 0 }, uri, path, status);
}

static struct MHD_Response *load(struct call *c, unsigned *status)
{
    const char *uri = call_text(c, "path");
    const int64_t seq = call_integer(c->json, "seq_id", -1);
    char path[STORE_PATH];
    struct store_place p;
    struct MHD_Response *answer = NULL;
    if (call_text(c, "session_id"))
        return load_new(c, status);
    struct model *m = admit_model(c, call_text(c, "model_id"), seq, status, &answer);
    if (!m)
        return answer;
    if (!find_place(c, uri, &p, path, status, &answer))
        return admit_refuse(c, m, seq, answer);
    struct request *r = request_new(c->service, SERVE_LOAD, m->adapter, answer_begun);
    if (r) {
        r->drop = drop_begun;
        r->path = strdup(uri);
        r->task.begin.from = (struct serve_from){ strdup(path), call_bool(c->json, "optimizer", false) };
    }
    return admit_submit(c, m, seq, r, status);
}

static struct MHD_Response *info(struct call *c, unsigned *status)
{
    const struct service *s = c->service;
    const char *id = call_text(c, "model_id");
    const struct model *m = id ? model_find(c->service, id) : NULL;
    if (!m)
        return call_refuse(status, MHD_HTTP_NOT_FOUND, "there is no model '%.100s'; its session may have ended",
                           id ? id : "");
    return call_json(json_pack("{s:s, s:{s:s, s:s, s:s}, s:s, s:b, s:I, s:s}", "type", "get_info", "model_data", "arch",
                               s->facts.architecture, "model_name", s->name, "tokenizer_id", s->name, "model_id", m->id,
                               "is_lora", 1, "lora_rank", (json_int_t)m->lora.rank, "model_name", s->name),
                     status);
}

/* ---- The update */

static void answer_optimized(struct request *r)
{
    future_complete_json(r->service, r->future,
                         json_pack("{s:s, s:{s:f}}", "type", "optim_step", "metrics", "grad_norm", r->task.adamw.norm));
}

/* NULL: *out is set. Otherwise what is wrong. */
static const char *adamw_of(const json_t *o, struct serve_adamw *out)
{
    static const char *const keys[] = { "learning_rate", "beta1",          "beta2", "eps",
                                        "weight_decay",  "grad_clip_norm", "type" };
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)o, key, value) {
        bool known = false;
        for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
            known |= strcmp(key, keys[i]) == 0;
        if (!known || (strcmp(key, "type") != 0 && !json_is_number(value)))
            return key;
    }
    *out = (struct serve_adamw){ .learning_rate = call_number(o, "learning_rate", 1e-4),
                                 .beta1 = call_number(o, "beta1", 0.9),
                                 .beta2 = call_number(o, "beta2", 0.95),
                                 .eps = call_number(o, "eps", 1e-12),
                                 .weight_decay = call_number(o, "weight_decay", 0),
                                 .max_grad_norm = call_number(o, "grad_clip_norm", 0) };
    if (!(out->beta1 >= 0 && out->beta1 < 1))
        return "beta1";
    if (!(out->beta2 >= 0 && out->beta2 < 1))
        return "beta2";
    if (!(out->eps >= 0) || isinf(out->eps))
        return "eps";
    if (!isfinite(out->learning_rate))
        return "learning_rate";
    return out->max_grad_norm >= 0 ? NULL : "grad_clip_norm";
}

static struct MHD_Response *optimize(struct call *c, unsigned *status)
{
    const int64_t seq = call_integer(c->json, "seq_id", -1);
    const json_t *params = json_object_get(c->json, "adam_params"),
                 *others = json_object_get(c->json, "optimizer_params");
    struct MHD_Response *answer = NULL;
    struct model *m = admit_model(c, call_text(c, "model_id"), seq, status, &answer);
    struct serve_adamw adamw;
    if (!m)
        return answer;
    params = json_is_object(params) ? params : others;
    const char *type = check_optimizer(params), *wrong = type ? type : adamw_of(params, &adamw);
    if (wrong)
        return admit_refuse(c, m, seq,
                            call_refuse(status, MHD_HTTP_BAD_REQUEST,
                                        type ? "optimizer '%.60s'; there is adamw" : "adam_params: '%.60s'", wrong));
    struct request *r = request_new(c->service, SERVE_OPTIMIZE, m->adapter, answer_optimized);
    if (r)
        r->task.adamw = adamw;
    return admit_submit(c, m, seq, r, status);
}

const struct route routes_models[] = {
    { .method = "POST", .path = "/api/v1/create_model", .handle = create },
    { .method = "POST", .path = "/api/v1/get_info", .handle = info },
    { .method = "POST", .path = "/api/v1/optim_step", .handle = optimize },
    { .method = "POST", .path = "/api/v1/load_weights", .handle = load },
    { .path = NULL },
};
