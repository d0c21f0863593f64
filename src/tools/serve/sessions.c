/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions, and the models and samplers that end with them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/service.h"

#define FIND(list, wanted) \
    for (; list && strcmp(list->id, wanted) != 0; list = list->next) \
        ;

struct session *session_find(struct service *s, const char *id)
{
    struct session *one = s->sessions;
    FIND(one, id)
    return one;
}

struct model *model_find(struct service *s, const char *id)
{
    struct model *one = s->models;
    FIND(one, id)
    return one;
}

struct sampler *sampler_find(struct service *s, const char *id)
{
    struct sampler *one = s->samplers;
    FIND(one, id)
    return one;
}

struct model *model_new(struct service *s, struct session *session, uint64_t number, struct fsdpck_error *err)
{
    struct model *m = calloc(1, sizeof *m);
    if (!m || serve_adapter_new(s->engine, false, &m->adapter, err)) {
        free(m);
        fsdpck_error_nomem(err, sizeof *m);
        return NULL;
    }
    snprintf(m->id, sizeof m->id, "%.40s:train:%llu", session->id, (unsigned long long)number);
    m->session = session;
    m->next_seq = 1;
    m->last_request = time(NULL);
    m->next = s->models;
    s->models = m;
    return m;
}

struct sampler *sampler_new(struct service *s, struct session *session, uint64_t number, struct serve_adapter *adapter,
                            const char *path)
{
    struct sampler *one = calloc(1, sizeof *one);
    if (!one)
        return NULL;
    snprintf(one->id, sizeof one->id, "%.40s:sample:%llu", session->id, (unsigned long long)number);
    one->session = session;
    one->adapter = adapter;
    one->path = path ? strdup(path) : NULL;
    one->next = s->samplers;
    s->samplers = one;
    return one;
}

/* ---- The end */

static void free_model(struct service *s, struct model *m)
{
    struct request *next;
    for (struct request *r = m->waiting; r; r = next) {
        next = r->next;
        if (!r->refused)
            future_fail(s, r->future, true, "the session has ended, and an earlier request never arrived");
        request_free(r);
    }
    numbers_free(s, &m->seen);
    serve_adapter_release(m->adapter);
    json_decref(m->metadata);
    free(m);
}

static void free_sampler(struct service *s, struct sampler *one)
{
    numbers_free(s, &one->seen);
    if (one->adapter != serve_base(s->engine))
        serve_adapter_release(one->adapter);
    free(one->path);
    free(one);
}

#define REMOVE(type, list, is_it, release) \
    for (struct type **at = &(list), *one; (one = *at) != NULL;) { \
        if (!(is_it)) { \
            at = &one->next; \
            continue; \
        } \
        *at = one->next; \
        release; \
    }

void session_end(struct service *s, struct session *session)
{
    REMOVE(model, s->models, one->session == session, free_model(s, one))
    REMOVE(sampler, s->samplers, one->session == session, free_sampler(s, one))
    REMOVE(session, s->sessions, one == session, (void)0)
    numbers_free(s, &session->models);
    json_decref(session->metadata);
    free(session);
}

void sessions_sweep(struct service *s, time_t now)
{
    for (struct session *one = s->sessions, *next; one; one = next) {
        next = one->next;
        if (now - one->seen > (time_t)s->opt->session_timeout)
            session_end(s, one);
    }
}

/* ---- What is kept on disk about a run */

static json_t *facts_of(const struct service *s, const struct model *m)
{
    return json_pack("{s:s, s:I, s:f, s:b, s:b, s:b, s:I, s:O}", "base_model", s->name, "lora_rank",
                     (json_int_t)m->lora.rank, "lora_alpha", m->lora.alpha, "train_attn", (int)m->lora.attention,
                     "train_mlp", (int)m->lora.mlp, "train_unembed", (int)m->lora.head, "last_request_time",
                     (json_int_t)m->last_request, "user_metadata", m->metadata ? m->metadata : json_null());
}

int model_record(struct service *s, const struct model *m, struct fsdpck_error *err)
{
    json_t *before = store_run(&s->store, m->id), *facts = facts_of(s, m);
    json_t *expiries = json_object_get(before, "expires_at");
    if (facts && expiries)
        json_object_set(facts, "expires_at", expiries);
    int rc = facts ? store_write_run(&s->store, m->id, facts, err) : fsdpck_error_nomem(err, sizeof *facts);
    json_decref(before);
    json_decref(facts);
    return rc;
}
