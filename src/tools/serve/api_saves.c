/* SPDX-License-Identifier: Apache-2.0 */
/* Saves of training clients: states, weights for samplers, exports, and snapshots in memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/admit.h"

struct saving {
    struct store_place place;
    char path[STORE_PATH];
    time_t expires;
};

static void drop_saving(struct request *r)
{
    free(r->own);
}

static void answer_saved(struct request *r)
{
    static const char *const types[STORE_NKINDS] = { "save_weights", "save_weights_for_sampler",
                                                     "save_weights_external" };
    struct service *s = r->service;
    const struct saving *x = r->own;
    struct fsdpck_error err = { 0 };
    const struct model *m = request_model(r);
    int rc = x->place.kind == STORE_EXTERNAL ? store_take_over(&s->store, x->path, &x->place, &err) : 0;
    if (!rc && m)
        rc = model_record(s, m, &err);
    if (!rc)
        rc = store_set_expiry(&s->store, &x->place, x->expires, &err);
    if (rc) {
        future_fail_with(s, r->future, &err);
        return;
    }
    json_t *o = json_pack("{s:s, s:s}", "type", types[x->place.kind], "path", r->path);
    if (x->place.kind == STORE_EXTERNAL)
        json_object_set_new(o, "size_bytes", json_integer(store_nbytes(&s->store, &x->place)));
    future_complete_json(s, r->future, o);
}

static const char *check_save(const json_t *o, const char *name)
{
    const json_t *age = json_object_get(o, "age_encryption_recipients");
    int64_t ttl;
    if (!name || !store_is_name(name))
        return "path: a plain name is wanted, without a slash";
    if (!call_ttl(o, &ttl))
        return "ttl_seconds: 3600 to 315576000 are wanted";
    return age && !json_is_null(age) ? "age_encryption_recipients: this server does not encrypt" : NULL;
}

/* Fills a request that saves the model in its run. */
static const char *prepare_save(struct call *c, const struct model *m, enum store_kind kind, struct request *r)
{
    static unsigned number;
    char temporary[40];
    const struct store *store = &c->service->store;
    int64_t ttl = 0;
    struct fsdpck_error err = { 0 };
    struct saving *x = r ? calloc(1, sizeof *x) : NULL;
    if (!x)
        return "out of memory";
    r->own = x;
    r->drop = drop_saving;
    snprintf(temporary, sizeof temporary, "export-%u", number++);
    const bool external = kind == STORE_EXTERNAL;
    if (!store_parse_parts(m->id, store_kind_name(kind), call_text(c, "path"), &x->place) ||
        !(external ? store_temporary(store, temporary, x->path) : store_path(store, &x->place, x->path)))
        return "the path is too long";
    if (!external && store_make_room(store, &x->place, &err))
        return "the state folder cannot be written";
    r->path = store_uri(&x->place);
    call_ttl(c->json, &ttl);
    x->expires = ttl ? time(NULL) + ttl : 0;
    r->task.save = (struct serve_save){ .path = x->path,
                                        .peft = external,
                                        .optimizer = kind == STORE_WEIGHTS,
                                        .force = call_bool(c->json, "overwrite", false) };
    return NULL;
}

static struct MHD_Response *save(struct call *c, enum store_kind kind, unsigned *status)
{
    const int64_t seq = call_integer(c->json, "seq_id", -1);
    struct MHD_Response *answer = NULL;
    struct model *m = admit_model(c, call_text(c, "model_id"), seq, status, &answer);
    if (!m)
        return answer;
    const char *wrong = check_save(c->json, call_text(c, "path"));
    struct request *r = wrong ? NULL : request_new(c->service, SERVE_SAVE, m->adapter, answer_saved);
    if (!wrong)
        wrong = prepare_save(c, m, kind, r);
    if (wrong) {
        request_free(r);
        return admit_refuse(c, m, seq, call_refuse(status, MHD_HTTP_BAD_REQUEST, "%s", wrong));
    }
    return admit_submit(c, m, seq, r, status);
}

static struct MHD_Response *save_weights(struct call *c, unsigned *status)
{
    return save(c, STORE_WEIGHTS, status);
}

static struct MHD_Response *save_external(struct call *c, unsigned *status)
{
    return save(c, STORE_EXTERNAL, status);
}

/* ---- Snapshots for samplers */

static void answer_frozen(struct request *r)
{
    future_complete_json(r->service, r->future,
                         json_pack("{s:s, s:n, s:s}", "type", "save_weights_for_sampler", "path", "sampling_session_id",
                                   (const char *)r->own));
}

static void drop_frozen(struct request *r)
{
    free(r->own);
}

/* The sampler is there at once; its adapter begins when the request's turn has come. */
static struct MHD_Response *snapshot(struct call *c, unsigned *status)
{
    const int64_t seq = call_integer(c->json, "seq_id", -1),
                  number = call_integer(c->json, "sampling_session_seq_id", -1);
    struct service *s = c->service;
    struct MHD_Response *answer = NULL;
    struct model *m = admit_model(c, call_text(c, "model_id"), seq, status, &answer);
    struct serve_adapter *frozen = NULL;
    struct fsdpck_error err = { 0 };
    if (!m)
        return answer;
    if (number < 0)
        return admit_refuse(c, m, seq,
                            call_refuse(status, MHD_HTTP_BAD_REQUEST, "path or sampling_session_seq_id is missing"));
    struct request *r = request_new(s, SERVE_FREEZE, m->adapter, answer_frozen);
    struct sampler *x = r && !serve_adapter_new(s->engine, true, &frozen, &err)
                            ? sampler_new(s, m->session, (uint64_t)number, frozen, NULL)
                            : NULL;
    if (!x) {
        request_free(r);
        r = NULL;
    } else {
        r->task.frozen = frozen;
        r->drop = drop_frozen;
        r->own = strdup(x->id);
    }
    return admit_submit(c, m, seq, r, status);
}

static struct MHD_Response *save_for_sampler(struct call *c, unsigned *status)
{
    return call_text(c, "path") ? save(c, STORE_SAMPLER, status) : snapshot(c, status);
}

const struct route routes_saves[] = {
    { .method = "POST", .path = "/api/v1/save_weights", .handle = save_weights },
    { .method = "POST", .path = "/api/v1/save_weights_for_sampler", .handle = save_for_sampler },
    { .method = "POST", .path = "/api/v1/save_weights_external", .handle = save_external },
    { .path = NULL },
};
