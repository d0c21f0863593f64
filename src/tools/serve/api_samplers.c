/* SPDX-License-Identifier: Apache-2.0 */
/* Sampling clients. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/call.h"
#include "serve/stopper.h"
#include "tinker.pb-c.h"

enum { MOST_SAMPLES = 1024, MOST_TOP = 100 };

/* ---- Sessions of sampling */

static void answer_nothing(struct request *r)
{
    future_complete_json(r->service, r->future, json_object());
}

static void drop_begun(struct request *r)
{
    free((char *)r->task.begin.from.path);
}

/* A failure to begin is told by the first sample. */
static bool begin(struct service *s, struct serve_adapter *adapter, const char *path)
{
    struct request *r = request_new(s, SERVE_BEGIN, adapter, answer_nothing);
    struct future *f = r ? future_new(s) : NULL;
    if (!f) {
        request_free(r);
        return false;
    }
    f->orphaned = true;
    r->future = f;
    r->drop = drop_begun;
    r->task.begin.from.path = strdup(path);
    request_submit(r);
    return true;
}

static struct MHD_Response *answer_session(const struct sampler *x, unsigned *status)
{
    return call_json(json_pack("{s:s, s:s}", "type", "create_sampling_session", "sampling_session_id", x->id), status);
}

static struct MHD_Response *make(struct call *c, struct session *session, uint64_t number, const char *uri,
                                 const char *path, unsigned *status)
{
    struct service *s = c->service;
    struct fsdpck_error err = { 0 };
    struct serve_adapter *adapter = serve_base(s->engine);
    if (path && serve_adapter_new(s->engine, true, &adapter, &err))
        return call_error(status, &err);
    struct sampler *x = sampler_new(s, session, number, adapter, uri);
    if (!x || (path && !begin(s, adapter, path)))
        return call_refuse(status, MHD_HTTP_BAD_REQUEST, "out of memory");
    return answer_session(x, status);
}

static struct MHD_Response *create(struct call *c, unsigned *status)
{
    struct service *s = c->service;
    const char *id = call_text(c, "session_id"), *base = call_text(c, "base_model"), *uri = call_text(c, "model_path");
    const int64_t number = call_integer(c->json, "sampling_session_seq_id", -1);
    struct session *session = id ? session_find(s, id) : NULL;
    char path[STORE_PATH], sampler[ID_NBYTES + 40];
    struct store_place p;
    if (!session)
        return call_refuse(status, MHD_HTTP_NOT_FOUND, "there is no session '%.100s'; it may have ended", id ? id : "");
    if (number < 0)
        return call_refuse(status, MHD_HTTP_BAD_REQUEST, "sampling_session_seq_id is missing");
    if (base && strcmp(base, s->name) != 0)
        return call_refuse(status, MHD_HTTP_BAD_REQUEST, "base_model '%.200s': this server has '%.400s'", base,
                           s->name);
    if (!base && !uri)
        return call_refuse(status, MHD_HTTP_BAD_REQUEST, "base_model or model_path is missing");
    if (uri && (!store_parse(uri, &p) || p.kind == STORE_EXTERNAL))
        return call_refuse(status, MHD_HTTP_BAD_REQUEST,
                           "model_path '%.200s' is no path like tinker://RUN/sampler_weights/NAME", uri);
    if (uri && (!store_has(&s->store, &p) || !store_path(&s->store, &p, path)))
        return call_refuse(status, MHD_HTTP_NOT_FOUND, "there is no checkpoint '%.400s'", uri);
    snprintf(sampler, sizeof sampler, "%s:sample:%lld", session->id, (long long)number);
    const struct sampler *there = sampler_find(s, sampler);
    if (there)
        return answer_session(there, status); /* a retry */
    return make(c, session, (uint64_t)number, uri, uri ? path : NULL, status);
}

static struct sampler *find(struct call *c, const char *id, unsigned *status, struct MHD_Response **refusal)
{
    struct sampler *x = id ? sampler_find(c->service, id) : NULL;
    if (!x)
        *refusal = call_refuse(status, MHD_HTTP_NOT_FOUND, "there is no sampler '%.100s'; its session may have ended",
                               id ? id : "");
    else
        x->session->seen = service_now();
    return x;
}

static struct MHD_Response *show(struct call *c, unsigned *status)
{
    struct MHD_Response *refusal = NULL;
    const struct sampler *x = find(c, c->parts[0], status, &refusal);
    if (!x)
        return refusal;
    return call_json(
        json_pack("{s:s, s:s, s:s?}", "sampler_id", x->id, "base_model", c->service->name, "model_path", x->path),
        status);
}

/* ---- A sample */

struct sampling {
    int32_t *prompt;
    struct stopper *stopper; /* NULL: no text ends a sample */
};

static void drop_sampling(struct request *r)
{
    struct sampling *x = r->own;
    if (x) {
        free(x->prompt);
        stopper_free(x->stopper);
    }
    free(x);
}

/* NULL: taken; otherwise what is wrong. */
static const char *take_prompt(const json_t *prompt, struct sampling *own, struct serve_sample *out)
{
    const json_t *chunks = json_object_get(prompt, "chunks");
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(chunks); i++) {
        const json_t *chunk = json_array_get(chunks, i), *tokens = json_object_get(chunk, "tokens");
        const char *type = json_string_value(json_object_get(chunk, "type"));
        if (!json_is_array(tokens) || (type && strcmp(type, "encoded_text") != 0))
            return "prompt: a chunk is not of tokens; this server takes text";
        n += json_array_size(tokens);
    }
    own->prompt = calloc(n + 1, sizeof *own->prompt);
    if (!own->prompt)
        return "out of memory";
    n = 0;
    for (size_t i = 0; i < json_array_size(chunks); i++) {
        const json_t *tokens = json_object_get(json_array_get(chunks, i), "tokens");
        for (size_t k = 0; k < json_array_size(tokens); k++) {
            const json_t *id = json_array_get(tokens, k);
            const json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
            own->prompt[n++] = value >= 0 && value < INT32_MAX ? (int32_t)value : -1;
        }
    }
    out->prompt = own->prompt;
    out->nprompt = n;
    return NULL;
}

/* stop: null is the model's own end tokens; ids, or texts. */
static const char *take_stop(struct service *s, const json_t *stop, struct sampling *own, struct serve_sample *out)
{
    out->rule.nstops = 0;
    if (!stop || json_is_null(stop)) {
        memcpy(out->rule.stops, s->rule.stops, sizeof out->rule.stops);
        out->rule.nstops = s->rule.nstops;
        return NULL;
    }
    if (json_is_string(stop) || (json_array_size(stop) && json_is_string(json_array_get(stop, 0)))) {
        out->ends = stopper_ends;
        return stopper_new(s->tokenizer, stop, out->nsamples, &own->stopper, &out->ctx);
    }
    if (!json_is_array(stop) || json_array_size(stop) > SAMPLE_STOPS)
        return "sampling_params.stop: a text, a list of texts, or a list of up to 64 token ids is wanted";
    for (size_t i = 0; i < json_array_size(stop); i++) {
        const json_t *id = json_array_get(stop, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
            return "sampling_params.stop: a text, a list of texts, or a list of token ids is wanted";
        out->rule.stops[out->rule.nstops++] = (uint32_t)json_integer_value(id);
    }
    return NULL;
}

static const char *take_rule(struct service *s, const json_t *params, struct sampling *own, struct serve_sample *out)
{
    const int64_t room = s->facts.cached - (int64_t)out->nprompt, most = call_integer(params, "max_tokens", room),
                  k = call_integer(params, "top_k", -1);
    if (most < 1)
        return "sampling_params.max_tokens: neither the context nor --kv-cache has room for another token";
    out->rule = (struct sample_rule){ .max_new_tokens = (uint64_t)most,
                                      .temperature = call_number(params, "temperature", 1),
                                      .top_p = call_number(params, "top_p", 1),
                                      .top_k = k > 0 ? (uint64_t)k : 0,
                                      .repetition_penalty = 1,
                                      .seed = (uint64_t)call_integer(params, "seed", 0) };
    if (!json_is_integer(json_object_get(params, "seed")))
        out->rule.seed = service_random();
    return take_stop(s, json_object_get(params, "stop"), own, out);
}

static const char *check_others(const json_t *o)
{
    static const char *const refused[] = { "target_prompt_logprobs", "prompt_alt_tokens_k", "prompt_logprobs_last_n",
                                           "record_stability_info" };
    static char text[100];
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        const json_t *value = json_object_get(o, refused[i]);
        if (!value || json_is_null(value) || json_is_false(value) ||
            (json_is_integer(value) && json_integer_value(value) == 0))
            continue;
        snprintf(text, sizeof text, "%s: this server has no such thing", refused[i]);
        return text;
    }
    return NULL;
}

static const char *fill(struct call *c, struct request *r)
{
    struct serve_sample *out = &r->task.sample;
    struct sampling *own = r->own = calloc(1, sizeof *own);
    static char text[800];
    struct fsdpck_error err = { 0 };
    r->drop = drop_sampling;
    if (!own)
        return "out of memory";
    const int64_t n = call_integer(c->json, "num_samples", 1), k = call_integer(c->json, "topk_sample_logprobs", 0),
                  prompt_k = call_integer(c->json, "topk_prompt_logprobs", 0);
    if (n < 1 || n > MOST_SAMPLES)
        return "num_samples: 1 to 1024 are wanted";
    if (k < 0 || k > MOST_TOP || prompt_k < 0 || prompt_k > MOST_TOP)
        return "topk_sample_logprobs and topk_prompt_logprobs: 0 to 100 are wanted";
    out->nsamples = (uint32_t)n;
    out->top_k = (uint32_t)k;
    out->prompt_top_k = (uint32_t)prompt_k;
    out->prompt_logprobs = call_bool(c->json, "prompt_logprobs", false);
    const char *wrong = check_others(c->json);
    if (!wrong)
        wrong = take_prompt(json_object_get(c->json, "prompt"), own, out);
    if (!wrong)
        wrong = take_rule(c->service, json_object_get(c->json, "sampling_params"), own, out);
    if (!wrong && serve_check(c->service->engine, &r->task, &err)) {
        snprintf(text, sizeof text, "%s", err.message);
        wrong = text;
    }
    return wrong;
}

/* ---- The answer */

static const int32_t no_id = 0;
static const float no_logprob = -99999.0f;

/* An empty place of the prompt's first row. */
static void clear_first(struct serve_sample *x)
{
    for (uint32_t j = 0; j < x->prompt_top_k; j++) {
        x->top_ids[j] = no_id;
        x->top_logprobs[j] = no_logprob;
    }
}

static ProtobufCBinaryData bytes_of(const void *data, size_t n)
{
    return (ProtobufCBinaryData){ n * 4, (uint8_t *)data };
}

static TinkerPublic__TopkLogprobs top_of(const int32_t *ids, const float *logprobs, uint32_t k, size_t n)
{
    TinkerPublic__TopkLogprobs top = TINKER_PUBLIC__TOPK_LOGPROBS__INIT;
    top.token_ids = bytes_of(ids, n * k);
    top.logprobs = bytes_of(logprobs, n * k);
    top.k = k;
    top.length = (uint32_t)n;
    return top;
}

static void fill_sequence(const struct serve_sampled *one, uint32_t top_k, TinkerPublic__SampledSequence *out,
                          TinkerPublic__TopkLogprobs *top)
{
    tinker_public__sampled_sequence__init(out);
    out->stop_reason =
        one->stopped ? TINKER_PUBLIC__STOP_REASON__STOP_REASON_STOP : TINKER_PUBLIC__STOP_REASON__STOP_REASON_LENGTH;
    out->tokens = bytes_of(one->ids, one->n);
    out->logprobs = bytes_of(one->logprobs, one->n);
    *top = top_of(one->top_ids, one->top_logprobs, top_k, one->n);
    out->topk_sampled_logprobs = top_k ? top : NULL;
}

/* list: (x->nsamples) */
static char *pack_with(struct serve_sample *x, TinkerPublic__SampledSequence **list, size_t *nbytes)
{
    TinkerPublic__SampleResponse out = TINKER_PUBLIC__SAMPLE_RESPONSE__INIT;
    TinkerPublic__TopkLogprobs prompt_top;
    out.sequences = list;
    out.n_sequences = x->nsamples;
    if (x->logprobs)
        out.prompt_logprobs = bytes_of(x->logprobs, x->nprompt);
    if (x->prompt_top_k) {
        clear_first(x);
        prompt_top = top_of(x->top_ids, x->top_logprobs, x->prompt_top_k, x->nprompt);
        out.topk_prompt_logprobs = &prompt_top;
    }
    *nbytes = tinker_public__sample_response__get_packed_size(&out);
    char *body = malloc(*nbytes + 1);
    if (body)
        tinker_public__sample_response__pack(&out, (uint8_t *)body);
    return body;
}

static char *pack(struct serve_sample *x, size_t *nbytes)
{
    const size_t n = x->nsamples;
    TinkerPublic__SampledSequence *all = calloc(n, sizeof *all), **list = calloc(n, sizeof *list);
    TinkerPublic__TopkLogprobs *tops = calloc(n, sizeof *tops);
    char *body = NULL;
    for (size_t i = 0; all && list && tops && i < n; i++) {
        fill_sequence(&x->samples[i], x->top_k, &all[i], &tops[i]);
        list[i] = &all[i];
    }
    if (all && list && tops)
        body = pack_with(x, list, nbytes);
    free(all);
    free(list);
    free(tops);
    return body;
}

static void answer_sample(struct request *r)
{
    size_t nbytes = 0;
    char *body = pack(&r->task.sample, &nbytes);
    future_complete(r->service, r->future, body, nbytes, true);
}

static struct MHD_Response *answer_submitted(const struct future *f, int64_t n, unsigned *status)
{
    char id[ID_NBYTES + 24];
    json_t *ids = json_array();
    for (int64_t i = 0; i < n; i++) {
        snprintf(id, sizeof id, "%s-%lld", f->id, (long long)i);
        json_array_append_new(ids, json_string(id));
    }
    return call_json(json_pack("{s:s, s:o}", "request_id", f->id, "sample_sequence_ids", ids), status);
}

static struct MHD_Response *sample(struct call *c, unsigned *status)
{
    const int64_t seq = call_integer(c->json, "seq_id", -1), n = call_integer(c->json, "num_samples", 1);
    struct MHD_Response *refusal = NULL;
    struct sampler *x = find(c, call_text(c, "sampling_session_id"), status, &refusal);
    const struct numbered *before = x && seq >= 0 ? numbers_find(&x->seen, (uint64_t)seq) : NULL;
    if (!x)
        return refusal;
    if (before && before->hash == call_hash(c) && before->future)
        return answer_submitted(before->future, n, status);
    if (seq < 0 || before)
        return call_refuse(status, MHD_HTTP_BAD_REQUEST, "seq_id %lld is missing, or was of another request",
                           (long long)seq);
    struct request *r = request_new(c->service, SERVE_SAMPLE, x->adapter, answer_sample);
    const char *wrong = r ? fill(c, r) : "out of memory";
    struct future *f = wrong ? NULL : future_new(c->service);
    if (!wrong && (!f || !numbers_add(&x->seen, (struct numbered){ (uint64_t)seq, call_hash(c), f })))
        wrong = "out of memory";
    if (wrong) {
        request_free(r);
        return call_refuse(status, MHD_HTTP_BAD_REQUEST, "%s", wrong);
    }
    r->future = f;
    struct MHD_Response *answer = answer_submitted(f, n, status);
    request_submit(r);
    return answer;
}

const struct route routes_samplers[] = {
    { .method = "POST", .path = "/api/v1/create_sampling_session", .handle = create },
    { .method = "GET", .path = "/api/v1/samplers/*", .handle = show },
    { .method = "POST", .path = "/api/v1/asample", .handle = sample },
    { .path = NULL },
};
