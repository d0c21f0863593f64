/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/stopper.h"

#include <stdlib.h>
#include <string.h>

struct stopper {
    const struct tokenizer *tokenizer;
    json_t *stops; /* a list of strings, none of them empty */
    struct token_text *text;
    char *tail; /* (nbytes) the end of the text, as much of it as a stop may begin in */
    size_t nbytes, longest;
};

const char *stopper_new(const struct tokenizer *tokenizer, const json_t *stop, struct stopper **out, void **ctx)
{
    if (!tokenizer)
        return "sampling_params.stop: the model's folder has no tokenizer.json, so that only token ids can stop";
    struct stopper *s = calloc(1, sizeof *s);
    if (!s)
        return "out of memory";
    *out = s;
    *ctx = s;
    s->tokenizer = tokenizer;
    s->stops = json_is_array(stop) ? json_deep_copy(stop) : json_pack("[O]", (json_t *)stop);
    for (size_t i = 0; i < json_array_size(s->stops); i++) {
        const json_t *one = json_array_get(s->stops, i);
        if (!json_is_string(one) || json_string_length(one) == 0)
            return "sampling_params.stop: texts, none of them empty, are wanted";
        s->longest = json_string_length(one) > s->longest ? json_string_length(one) : s->longest;
    }
    return s->stops ? NULL : "out of memory";
}

void stopper_free(struct stopper *s)
{
    if (!s)
        return;
    json_decref(s->stops);
    token_text_free(s->text);
    free(s->tail);
    free(s);
}

static bool has_stop(const struct stopper *s)
{
    for (size_t i = 0; i < json_array_size(s->stops); i++) {
        const json_t *one = json_array_get(s->stops, i);
        if (memmem(s->tail, s->nbytes, json_string_value(one), json_string_length(one)))
            return true;
    }
    return false;
}

/* Keeps what the beginning of a stop may be in. */
static void forget(struct stopper *s)
{
    const size_t kept = s->nbytes < s->longest ? s->nbytes : s->longest;
    memmove(s->tail, s->tail + s->nbytes - kept, kept);
    s->nbytes = kept;
}

/* Text that cannot be made ends nothing: the limit does. */
bool stopper_ends(void *ctx, const int32_t *ids, size_t n)
{
    struct stopper *s = ctx;
    struct fsdpck_error ignored = { 0 };
    const char *text;
    size_t nbytes;
    if (n == 1) {
        token_text_free(s->text);
        s->text = NULL;
        s->nbytes = 0;
        if (token_text_new(s->tokenizer, false, &s->text, &ignored))
            return false;
    }
    if (!s->text || token_text_add(s->text, (uint32_t)ids[n - 1], &text, &nbytes, &ignored))
        return false;
    char *grown = realloc(s->tail, s->nbytes + nbytes + 1);
    if (!grown)
        return false;
    s->tail = grown;
    memcpy(s->tail + s->nbytes, text, nbytes);
    s->nbytes += nbytes;
    const bool ends = has_stop(s);
    forget(s);
    return ends;
}
