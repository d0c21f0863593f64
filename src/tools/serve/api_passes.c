/* SPDX-License-Identifier: Apache-2.0 */
/* Forward and backward passes, whose bodies and results are protobuf. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/admit.h"
#include "serve/pass_body.h"

/* The log-probabilities of all data, one after another, in memory that the caller frees; false: out of memory. */
static bool join_logprobs(const struct serve_pass *p, TinkerPublic__BatchedTensor *out)
{
    size_t n = 0, at = 0;
    for (size_t i = 0; i < p->ndata; i++)
        n += (size_t)p->data[i].n;
    int64_t *offsets = calloc(p->ndata + 1, sizeof *offsets);
    float *values = malloc((n + 1) * sizeof *values);
    out->data = (ProtobufCBinaryData){ n * sizeof *values, (uint8_t *)values };
    out->offsets = (ProtobufCBinaryData){ (p->ndata + 1) * sizeof *offsets, (uint8_t *)offsets };
    out->dtype = TINKER_PUBLIC__DTYPE__DTYPE_FLOAT32;
    for (size_t i = 0; i < p->ndata && offsets && values; i++) {
        memcpy(values + at, p->data[i].target_logprobs, (size_t)p->data[i].n * sizeof *values);
        at += (size_t)p->data[i].n;
        offsets[i + 1] = (int64_t)(at * sizeof *values);
    }
    return offsets && values;
}

static char *pack_output(const struct serve_pass *p, TinkerPublic__BatchedTensor *logprobs, size_t *nbytes)
{
    TinkerPublic__ArrayRecord__FieldsEntry field = TINKER_PUBLIC__ARRAY_RECORD__FIELDS_ENTRY__INIT,
                                           *fields[] = { &field };
    TinkerPublic__ArrayRecord record = TINKER_PUBLIC__ARRAY_RECORD__INIT, *records[] = { &record };
    TinkerPublic__ForwardBackwardOutput__MetricsEntry sum = TINKER_PUBLIC__FORWARD_BACKWARD_OUTPUT__METRICS_ENTRY__INIT,
                                                      *metrics[] = { &sum };
    TinkerPublic__ForwardBackwardOutput out = TINKER_PUBLIC__FORWARD_BACKWARD_OUTPUT__INIT;
    field.key = "logprobs";
    field.value = logprobs;
    record.type_tag = out.loss_fn_output_type = "ArrayRecord";
    record.fields = fields;
    record.n_fields = out.n_loss_fn_outputs = out.n_metrics = 1;
    record.num_datums = (int64_t)p->ndata;
    sum.key = "loss:sum";
    sum.value = p->loss_sum;
    out.loss_fn_outputs = records;
    out.metrics = metrics;
    *nbytes = tinker_public__forward_backward_output__get_packed_size(&out);
    char *body = malloc(*nbytes + 1);
    if (body)
        tinker_public__forward_backward_output__pack(&out, (uint8_t *)body);
    return body;
}

static void answer_pass(struct request *r)
{
    TinkerPublic__BatchedTensor logprobs = TINKER_PUBLIC__BATCHED_TENSOR__INIT;
    size_t nbytes = 0;
    char *body = join_logprobs(&r->task.pass, &logprobs) ? pack_output(&r->task.pass, &logprobs, &nbytes) : NULL;
    free(logprobs.data.data);
    free(logprobs.offsets.data);
    future_complete(r->service, r->future, body, nbytes, true);
}

static void drop_pass(struct request *r)
{
    pass_body_free(r->own);
}

/* The request owns the body. */
static bool fill(struct request *r, struct pass_body *body, bool forward_only, struct pass_wrong *w)
{
    struct fsdpck_error err = { 0 };
    r->own = body;
    r->drop = drop_pass;
    if (!pass_body_take(body, &r->task.pass, w))
        return false;
    r->task.pass.backward &= !forward_only;
    if (serve_check(r->service->engine, &r->task, &err))
        snprintf(w->text, sizeof w->text, "%.290s", err.message);
    return !err.code;
}

static struct MHD_Response *pass(struct call *c, bool forward_only, unsigned *status)
{
    struct MHD_Response *answer = NULL;
    struct pass_wrong w;
    struct pass_body *body = pass_body_new(c->body ? c->body : "", c->nbytes);
    if (!body)
        return call_refuse(status, MHD_HTTP_BAD_REQUEST, "the body is no ForwardBackwardRequest (protobuf)");
    const int64_t seq = body->message->seq_id;
    struct model *m = admit_model(c, body->message->model_id, seq, status, &answer);
    struct request *r = m ? request_new(c->service, SERVE_PASS, m->adapter, answer_pass) : NULL;
    if (!r)
        pass_body_free(body);
    if (!m)
        return answer;
    if (!r || fill(r, body, forward_only, &w))
        return admit_submit(c, m, seq, r, status);
    request_free(r);
    return admit_refuse(c, m, seq, call_refuse(status, MHD_HTTP_BAD_REQUEST, "%s", w.text));
}

static struct MHD_Response *forward_backward(struct call *c, unsigned *status)
{
    return pass(c, false, status);
}

static struct MHD_Response *forward(struct call *c, unsigned *status)
{
    return pass(c, true, status);
}

const struct route routes_passes[] = {
    { .method = "POST", .path = "/api/v1/forward_backward", .handle = forward_backward, .protobuf = true },
    { .method = "POST", .path = "/api/v1/forward", .handle = forward, .protobuf = true },
    { .path = NULL },
};
