/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions, and what clients ask before and beside them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "serve/call.h"

static const char prefix[] = "s-"; /* of the ids of sessions, also of those that have ended */

/* The defaults of the SDK suit this server. Sampling works by single futures. */
static struct MHD_Response *config(struct call *c, unsigned *status)
{
    (void)c;
    return call_json(json_pack("{s:b, s:b, s:b, s:b}", "pjwt_auth_enabled", 0, "parallel_fwdbwd_chunks", 1,
                               "sample_use_retrieve_futures", 0, "custom_loss_server_side", 0),
                     status);
}

static struct MHD_Response *dynamic_config(struct call *c, unsigned *status)
{
    (void)c;
    return call_json(json_pack("{s:i, s:b}", "refresh_interval_sec", 300, "sample_cancel_enabled", 0), status);
}

static struct MHD_Response *create(struct call *c, unsigned *status)
{
    struct session *one = calloc(1, sizeof *one);
    uint64_t random;
    if (!one || getrandom(&random, sizeof random, 0) != sizeof random) {
        free(one);
        return NULL;
    }
    snprintf(one->id, sizeof one->id, "%s%016llx", prefix, (unsigned long long)random);
    one->seen = service_now();
    one->metadata = json_incref(json_object_get(c->json, "user_metadata"));
    one->next = c->service->sessions;
    c->service->sessions = one;
    return call_json(json_pack("{s:s, s:s}", "type", "create_session", "session_id", one->id), status);
}

static struct MHD_Response *refuse_session(const char *id, unsigned *status)
{
    const bool ended = id && strncmp(id, prefix, strlen(prefix)) == 0;
    return call_refuse(status, ended ? MHD_HTTP_GONE : MHD_HTTP_NOT_FOUND,
                       ended ? "session '%.100s' has ended" : "there is no session '%.100s'", id ? id : "");
}

static struct MHD_Response *heartbeat(struct call *c, unsigned *status)
{
    const char *id = call_text(c, "session_id");
    struct session *one = id ? session_find(c->service, id) : NULL;
    if (!one)
        return refuse_session(id, status);
    one->seen = service_now();
    return call_json(json_pack("{s:s}", "type", "session_heartbeat"), status);
}

static struct MHD_Response *finish(struct call *c, unsigned *status)
{
    struct session *one = session_find(c->service, c->parts[0]);
    if (!one)
        return refuse_session(c->parts[0], status);
    session_end(c->service, one);
    return call_nothing(status);
}

/* Nothing is kept of it. */
static struct MHD_Response *telemetry(struct call *c, unsigned *status)
{
    (void)c;
    return call_json(json_pack("{s:s}", "status", "accepted"), status);
}

static struct MHD_Response *health(struct call *c, unsigned *status)
{
    (void)c;
    return call_json(json_pack("{s:s}", "status", "ok"), status);
}

static struct MHD_Response *capabilities(struct call *c, unsigned *status)
{
    const struct service *s = c->service;
    const json_int_t context = s->facts.context < s->facts.seq_len ? s->facts.context : s->facts.seq_len;
    return call_json(json_pack("{s:[{s:s, s:I, s:b, s:b}]}", "supported_models", "model_name", s->name,
                               "max_context_length", context, "trainable", 1, "sampleable", 1),
                     status);
}

static struct MHD_Response *list(struct call *c, unsigned *status)
{
    const int64_t limit = call_query(c, "limit", 20), offset = call_query(c, "offset", 0);
    json_t *ids = json_array();
    int64_t i = 0;
    for (const struct session *one = c->service->sessions; one; one = one->next, i++)
        if (i >= offset && i < offset + limit)
            json_array_append_new(ids, json_string(one->id));
    return call_json(json_pack("{s:o}", "sessions", ids), status);
}

static struct MHD_Response *show(struct call *c, unsigned *status)
{
    const struct session *one = session_find(c->service, c->parts[0]);
    json_t *runs, *samplers;
    if (!one)
        return refuse_session(c->parts[0], status);
    runs = json_array();
    samplers = json_array();
    for (const struct model *m = c->service->models; m; m = m->next)
        if (m->session == one)
            json_array_append_new(runs, json_string(m->id));
    for (const struct sampler *x = c->service->samplers; x; x = x->next)
        if (x->session == one)
            json_array_append_new(samplers, json_string(x->id));
    return call_json(json_pack("{s:o, s:o}", "training_run_ids", runs, "sampler_ids", samplers), status);
}

const struct route routes_sessions[] = {
    { .method = "POST", .path = "/api/v1/client/config", .handle = config },
    { .method = "POST", .path = "/api/v1/client/dynamic_config", .handle = dynamic_config },
    { .method = "POST", .path = "/api/v1/create_session", .handle = create },
    { .method = "POST", .path = "/api/v1/session_heartbeat", .handle = heartbeat },
    { .method = "POST", .path = "/api/v1/sessions/*/finish", .handle = finish },
    { .method = "POST", .path = "/api/v1/telemetry", .handle = telemetry },
    { .method = "GET", .path = "/api/v1/healthz", .handle = health, .open = true },
    { .method = "GET", .path = "/api/v1/get_server_capabilities", .handle = capabilities },
    { .method = "GET", .path = "/api/v1/sessions", .handle = list },
    { .method = "GET", .path = "/api/v1/sessions/*", .handle = show },
    { .path = NULL },
};
