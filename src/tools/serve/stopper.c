/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/stopper.h"

#include <stdlib.h>
#include <string.h>

/* The text of a sample. */
struct written {
    struct token_text *text;
    char *tail; /* (nbytes) its end, as much of it as a stop may begin in; owned */
    size_t nbytes;
};

struct stopper {
    const struct tokenizer *tokenizer;
    json_t *stops;           /* a list of strings, none of them empty */
    struct written *samples; /* (nsamples) */
    uint32_t nsamples;
    size_t longest;
};

const char *stopper_new(const struct tokenizer *tokenizer, const json_t *stop, uint32_t nsamples, struct stopper **out,
                        void **ctx)
{
    if (!tokenizer)
        return "sampling_params.stop: the model's folder has no tokenizer.json, so that only token ids can stop";
    struct stopper *s = calloc(1, sizeof *s);
    if (!s)
        return "out of memory";
    *out = s;
    *ctx = s;
    s->tokenizer = tokenizer;
    s->samples = calloc(nsamples, sizeof *s->samples);
    s->nsamples = s->samples ? nsamples : 0;
    s->stops = json_is_array(stop) ? json_deep_copy(stop) : json_pack("[O]", (json_t *)stop);
    for (size_t i = 0; i < json_array_size(s->stops); i++) {
        const json_t *one = json_array_get(s->stops, i);
        if (!json_is_string(one) || json_string_length(one) == 0)
            return "sampling_params.stop: texts, none of them empty, are wanted";
        s->longest = json_string_length(one) > s->longest ? json_string_length(one) : s->longest;
    }
    return s->stops && s->samples ? NULL : "out of memory";
}

void stopper_free(struct stopper *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; i < s->nsamples; i++) {
        token_text_free(s->samples[i].text);
        free(s->samples[i].tail);
    }
    free(s->samples);
    json_decref(s->stops);
    free(s);
}

static bool has_stop(const struct stopper *s, const struct written *w)
{
    for (size_t i = 0; i < json_array_size(s->stops); i++) {
        const json_t *one = json_array_get(s->stops, i);
        if (memmem(w->tail, w->nbytes, json_string_value(one), json_string_length(one)))
            return true;
    }
    return false;
}

/* Keeps what the beginning of a stop may be in. */
static void forget(const struct stopper *s, struct written *w)
{
    const size_t kept = w->nbytes < s->longest ? w->nbytes : s->longest;
    memmove(w->tail, w->tail + w->nbytes - kept, kept);
    w->nbytes = kept;
}

/* Text that cannot be made ends nothing: the limit does. */
bool stopper_ends(void *ctx, uint32_t number, const int32_t *ids, size_t n)
{
    struct stopper *s = ctx;
    struct written *w = &s->samples[number];
    struct fsdpck_error ignored = { 0 };
    const char *text;
    size_t nbytes;
    if (!w->text && token_text_new(s->tokenizer, false, &w->text, &ignored))
        return false;
    if (token_text_add(w->text, (uint32_t)ids[n - 1], &text, &nbytes, &ignored))
        return false;
    char *grown = realloc(w->tail, w->nbytes + nbytes + 1);
    if (!grown)
        return false;
    w->tail = grown;
    memcpy(w->tail + w->nbytes, text, nbytes);
    w->nbytes += nbytes;
    const bool ends = has_stop(s, w);
    forget(s, w);
    return ends;
}
