/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/pass_body.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef TinkerPublic__ForwardBackwardRequest pass_message;

struct pass_body *pass_body_new(const void *bytes, size_t nbytes)
{
    struct pass_body *b = calloc(1, sizeof *b);
    if (b && !(b->message = tinker_public__forward_backward_request__unpack(NULL, nbytes, bytes))) {
        free(b);
        return NULL;
    }
    return b;
}

void pass_body_free(struct pass_body *b)
{
    if (!b)
        return;
    for (size_t i = 0; i < b->narrays; i++)
        free(b->arrays[i]);
    free(b->arrays);
    free(b->data);
    tinker_public__forward_backward_request__free_unpacked(b->message, NULL);
    free(b);
}

/* n elements of 4 bytes, owned by d. */
static void *take_array(struct pass_body *d, size_t n)
{
    if (d->narrays == d->capacity) {
        const size_t capacity = 2 * d->capacity + 16;
        void **grown = realloc(d->arrays, capacity * sizeof *grown);
        if (!grown)
            return NULL;
        d->arrays = grown;
        d->capacity = capacity;
    }
    return d->arrays[d->narrays++] = calloc(n + 1, 4);
}

/* ---- Tensors */

static bool say(struct pass_wrong *w, const char *name, const char *what)
{
    snprintf(w->text, sizeof w->text, "loss_fn_inputs['%.60s']: %s", name, what);
    return false;
}

static size_t element_nbytes(TinkerPublic__DType dtype)
{
    switch (dtype) {
    case TINKER_PUBLIC__DTYPE__DTYPE_FLOAT32:
    case TINKER_PUBLIC__DTYPE__DTYPE_INT32: return 4;
    case TINKER_PUBLIC__DTYPE__DTYPE_INT64: return 8;
    case TINKER_PUBLIC__DTYPE__DTYPE_BFLOAT16: return 2;
    default: return 0;
    }
}

static bool check_tensor(const char *name, const TinkerPublic__Tensor *t, int64_t n, struct pass_wrong *w)
{
    if (!t || t->data_case != TINKER_PUBLIC__TENSOR__DATA_DENSE || t->n_shape > 1)
        return say(w, name, "a dense tensor of one dimension is wanted (soft targets are not supported)");
    const size_t one = element_nbytes(t->dtype);
    if (!one || t->dense.len % one || (t->n_shape && (uint64_t)t->shape[0] != t->dense.len / one))
        return say(w, name, "its bytes are not those of its shape and dtype");
    if (t->dense.len / one != (uint64_t)n)
        return say(w, name, "it does not have as many elements as model_input has tokens");
    return true;
}

static double element(const TinkerPublic__Tensor *t, int64_t i)
{
    const unsigned char *at = t->dense.data + (size_t)i * element_nbytes(t->dtype);
    uint32_t word = 0;
    int64_t whole;
    int32_t half;
    float x;
    switch (t->dtype) {
    case TINKER_PUBLIC__DTYPE__DTYPE_INT64: memcpy(&whole, at, sizeof whole); return (double)whole;
    case TINKER_PUBLIC__DTYPE__DTYPE_INT32: memcpy(&half, at, sizeof half); return half;
    case TINKER_PUBLIC__DTYPE__DTYPE_BFLOAT16:
        memcpy((char *)&word + 2, at, 2);
        memcpy(&x, &word, sizeof x);
        return (double)x;
    default: memcpy(&x, at, sizeof x); return (double)x;
    }
}

static const float *take_floats(struct pass_body *d, const TinkerPublic__Tensor *t, int64_t n)
{
    float *out = take_array(d, (size_t)n);
    for (int64_t i = 0; out && i < n; i++)
        out[i] = (float)element(t, i);
    return out;
}

static const int32_t *take_ids(struct pass_body *d, const TinkerPublic__Tensor *t, int64_t n)
{
    int32_t *out = take_array(d, (size_t)n);
    for (int64_t i = 0; out && i < n; i++) {
        const double x = element(t, i);
        out[i] = x >= 0 && x < INT32_MAX ? (int32_t)x : -1; /* serve_check() refuses it */
    }
    return out;
}

static bool take_input(struct pass_body *d, const char *name, const TinkerPublic__Tensor *t, struct serve_datum *out,
                       struct pass_wrong *w)
{
    const struct {
        const char *name;
        const float **at;
    } floats[] = { { "weights", &out->weights },
                   { "logprobs", &out->logprobs },
                   { "advantages", &out->advantages },
                   { "sequence_ratio_mask", &out->mask },
                   { "clip_low_threshold", &out->clip_low },
                   { "clip_high_threshold", &out->clip_high } };
    if (!check_tensor(name, t, out->n, w))
        return false;
    if (strcmp(name, "target_tokens") == 0) {
        out->targets = take_ids(d, t, out->n);
        return out->targets || say(w, name, "out of memory");
    }
    for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++) {
        if (strcmp(name, floats[i].name) != 0)
            continue;
        *floats[i].at = take_floats(d, t, out->n);
        return *floats[i].at || say(w, name, "out of memory");
    }
    return say(w, name, "no loss of this server has such an input");
}

static bool take_tokens(struct pass_body *d, const TinkerPublic__Datum *in, struct serve_datum *out,
                        struct pass_wrong *w)
{
    size_t nbytes = 0;
    for (size_t i = 0; i < in->n_model_input; i++) {
        const TinkerPublic__Chunk *chunk = in->model_input[i];
        if (chunk->kind_case != TINKER_PUBLIC__CHUNK__KIND_ENCODED_TEXT || chunk->encoded_text->tokens.len % 4) {
            snprintf(w->text, sizeof w->text, "model_input: chunk %zu is not of tokens; this server takes text", i);
            return false;
        }
        nbytes += chunk->encoded_text->tokens.len;
    }
    char *at = take_array(d, nbytes / 4);
    if (!at)
        return say(w, "model_input", "out of memory");
    out->tokens = (const int32_t *)(const void *)at;
    out->n = (int64_t)(nbytes / 4);
    for (size_t i = 0; i < in->n_model_input; i++) {
        const ProtobufCBinaryData *piece = &in->model_input[i]->encoded_text->tokens;
        if (piece->len)
            memcpy(at, piece->data, piece->len);
        at += piece->len;
    }
    out->target_logprobs = take_array(d, nbytes / 4);
    return out->target_logprobs || say(w, "model_input", "out of memory");
}

/* The number of a datum goes before what is wrong with it. */
static bool take_data(struct pass_body *d, const pass_message *in, struct pass_wrong *w)
{
    char text[200];
    d->data = calloc(in->n_data + 1, sizeof *d->data);
    bool good = d->data != NULL;
    for (size_t i = 0; i < in->n_data && good; i++) {
        const TinkerPublic__Datum *x = in->data[i];
        good = take_tokens(d, x, &d->data[i], w);
        for (size_t k = 0; k < x->n_loss_fn_inputs && good; k++)
            good = take_input(d, x->loss_fn_inputs[k]->key, x->loss_fn_inputs[k]->value, &d->data[i], w);
        d->ndata = i + 1;
        if (!good) {
            snprintf(text, sizeof text, "%.190s", w->text);
            snprintf(w->text, sizeof w->text, "datum %zu: %s", i, text);
        }
    }
    return good;
}

/* ---- Losses */

static bool take_setting(struct serve_pass *p, const char *key, double value)
{
    double *at = strcmp(key, "clip_low_threshold") == 0    ? &p->clip_low
                 : strcmp(key, "clip_high_threshold") == 0 ? &p->clip_high
                 : strcmp(key, "beta") == 0                ? &p->beta
                                                           : NULL;
    if (at)
        *at = value;
    return at;
}

static bool take_loss(const pass_message *in, struct serve_pass *p, struct pass_wrong *w)
{
    int loss = 0;
    while (loss < SERVE_NLOSSES && strcmp(in->loss_fn, serve_loss_name((enum serve_loss)loss)) != 0)
        loss++;
    if (loss == SERVE_NLOSSES) {
        snprintf(w->text, sizeof w->text,
                 "loss_fn '%.60s': there are cross_entropy, importance_sampling, ppo, cispo, dro and gspo; other "
                 "losses are for forward_backward_custom",
                 in->loss_fn);
        return false;
    }
    p->loss = (enum serve_loss)loss;
    p->clip_low = p->loss == SERVE_CISPO ? 0.0 : 0.8;
    p->clip_high = p->loss == SERVE_CISPO ? 4.0 : 1.2;
    p->beta = -1; /* not given */
    const char *wrong = NULL;
    for (size_t i = 0; i < in->n_loss_fn_config; i++)
        wrong = take_setting(p, in->loss_fn_config[i]->key, in->loss_fn_config[i]->value) ? wrong
                                                                                          : in->loss_fn_config[i]->key;
    for (size_t i = 0; i < in->n_loss_fn_config_v2; i++) {
        const TinkerPublic__LossConfigValue *value = in->loss_fn_config_v2[i]->value;
        const bool is_number = value && value->value_case == TINKER_PUBLIC__LOSS_CONFIG_VALUE__VALUE_NUMBER;
        wrong = is_number && take_setting(p, in->loss_fn_config_v2[i]->key, value->number)
                    ? wrong
                    : in->loss_fn_config_v2[i]->key;
    }
    if (wrong)
        snprintf(w->text, sizeof w->text,
                 "loss_fn_config['%.60s']: clip_low_threshold, clip_high_threshold and beta are known, as numbers",
                 wrong);
    return !wrong;
}

bool pass_body_take(struct pass_body *b, struct serve_pass *out, struct pass_wrong *wrong)
{
    snprintf(wrong->text, sizeof wrong->text, "out of memory");
    if (!take_loss(b->message, out, wrong) || !take_data(b, b->message, wrong))
        return false;
    out->data = b->data;
    out->ndata = b->ndata;
    out->backward = !b->message->forward_only;
    return true;
}
