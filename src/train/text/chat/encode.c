/* SPDX-License-Identifier: Apache-2.0 */
/* Converts examples to tokens and their loss mask. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "text/chat/impl.h"
#include "text/maps.h"

struct chat_coder {
    const struct chat *chat;
    struct encoder *encoder;
    struct token_list list;
    struct chat_turns turns;
    unsigned notes; /* enum chat_note bits of the last example */
    uint8_t *supervised;
    size_t supervised_capacity;
    char *text;
    size_t text_capacity;
};

int chat_coder_new(const struct chat *c, struct chat_coder **out, struct fsdpck_error *err)
{
    struct chat_coder *w = calloc(1, sizeof *w);
    int rc = w ? encoder_new(c->tokenizer, &w->encoder, err) : fsdpck_error_nomem(err, sizeof *w);
    if (rc) {
        free(w);
        w = NULL;
    } else {
        w->chat = c;
    }
    *out = w;
    return rc;
}

void chat_coder_free(struct chat_coder *w)
{
    if (!w)
        return;
    encoder_free(w->encoder);
    token_list_free(&w->list);
    chat_turns_free(&w->turns);
    free(w->supervised);
    free(w->text);
    free(w);
}

/* Allocates the mask of the encoded tokens, with room for one more, and sets it to 0. */
static int clear_mask(struct chat_coder *w, struct fsdpck_error *err)
{
    if (!grow((void **)&w->supervised, &w->supervised_capacity, w->list.count + 1, 1))
        return fsdpck_error_nomem(err, w->list.count);
    memset(w->supervised, 0, w->list.count + 1);
    return 0;
}

/* A token belongs to the span in which its first byte lies. */
static void supervise(struct chat_coder *w, size_t begin, size_t end)
{
    for (size_t i = 0; i < w->list.count; i++)
        w->supervised[i] |= w->list.begins[i] >= begin && w->list.begins[i] < end;
}

/* The token that begins before a span and covers its first byte. SIZE_MAX: a token begins exactly at the span. */
static size_t token_across(const struct chat_coder *w, const struct jinja_span *span)
{
    size_t i = 0;
    while (i < w->list.count && w->list.begins[i] < span->begin)
        i++;
    bool exact = i < w->list.count && w->list.begins[i] == span->begin;
    return exact || i == 0 || span->end <= span->begin ? SIZE_MAX : i - 1;
}

/* With {% generation %}, transformers includes such a token in the mask. If chat_find_turns() compared renderings, the
 * token also covers the end of the generation prompt; so it is masked out. */
static void supervise_turns(struct chat_coder *w)
{
    const struct chat_turns *t = &w->turns;
    for (size_t i = 0; i < t->nspans; i++) {
        size_t across = token_across(w, &t->spans[i]);
        supervise(w, t->spans[i].begin, t->spans[i].end);
        if (across != SIZE_MAX && jinja_has_generation(w->chat->jinja))
            w->supervised[across] = 1;
        else if (across != SIZE_MAX)
            w->notes |= 1u << CHAT_NOTE_ACROSS;
    }
}

static int encode_messages(struct chat_coder *w, json_t *messages, json_t *tools, enum chat_loss loss,
                           struct fsdpck_error *err)
{
    struct chat_turns *t = &w->turns;
    bool all = loss == CHAT_LOSS_ALL, last_only = loss == CHAT_LOSS_LAST_ASSISTANT || loss == CHAT_LOSS_COMPLETION;
    int rc = all ? chat_run(w->chat, messages, tools, false, &t->full, err)
                 : chat_find_turns(w->chat, messages, tools, last_only, t, err);
    if (!rc)
        rc = chat_check_shown(w->chat, messages, tools, t, last_only, all, &w->notes, err);
    if (!rc)
        rc = tokenizer_encode(w->encoder, t->full.text, t->full.nbytes, TOKENIZER_BEGINS, &w->list, err);
    if (!rc)
        rc = clear_mask(w, err);
    if (rc)
        return rc;
    if (all)
        supervise(w, 0, t->full.nbytes);
    else
        supervise_turns(w);
    return 0;
}

static int encode_chat(struct chat_coder *w, json_t *messages, json_t *given, enum chat_loss loss,
                       struct fsdpck_error *err)
{
    json_t *tools;
    int rc = chat_tools(given, &tools, err);
    if (!rc)
        rc = encode_messages(w, messages, tools, loss, err);
    json_decref(tools);
    return rc;
}

/* Adds the prefix of the post-processor, unless the text already begins with bos_token. */
static int encode_text(struct chat_coder *w, const char *text, size_t nbytes, struct fsdpck_error *err)
{
    const struct chat *c = w->chat;
    const char *bos = json_string_value(json_object_get(c->special, "bos_token"));
    bool has_bos = bos && *bos && nbytes >= strlen(bos) && memcmp(text, bos, strlen(bos)) == 0;
    return tokenizer_encode(w->encoder, text, nbytes, TOKENIZER_BEGINS | (has_bos ? 0 : TOKENIZER_SPECIAL), &w->list,
                            err);
}

/* Appends the end token if the model has one and the text does not end with it. */
static int end_text(struct chat_coder *w, size_t nbytes, struct fsdpck_error *err)
{
    struct token_list *l = &w->list;
    if (w->chat->eos < 0 || (l->count && l->ids[l->count - 1] == (uint32_t)w->chat->eos))
        return 0;
    if (!grow((void **)&l->ids, &l->capacity, l->count + 1, sizeof *l->ids) ||
        !grow((void **)&l->begins, &l->begins_capacity, l->count + 1, sizeof *l->begins))
        return fsdpck_error_nomem(err, l->count * sizeof *l->ids);
    l->ids[l->count] = (uint32_t)w->chat->eos;
    l->begins[l->count++] = (uint32_t)nbytes;
    return 0;
}

static int encode_plain(struct chat_coder *w, const char *text, size_t nbytes, size_t from, struct fsdpck_error *err)
{
    int rc = encode_text(w, text, nbytes, err);
    if (!rc)
        rc = end_text(w, nbytes, err);
    if (!rc)
        rc = clear_mask(w, err);
    if (!rc)
        supervise(w, from, nbytes + 1);
    return rc;
}

static int encode_completion(struct chat_coder *w, json_t *prompt, json_t *completion, enum chat_loss loss,
                             struct fsdpck_error *err)
{
    if (!json_is_string(prompt) || !json_is_string(completion))
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL, "'prompt' and 'completion' must both be strings");
    size_t np = json_string_length(prompt), nc = json_string_length(completion);
    if (!grow((void **)&w->text, &w->text_capacity, np + nc + 1, 1))
        return fsdpck_error_nomem(err, np + nc);
    memcpy(w->text, json_string_value(prompt), np);
    memcpy(w->text + np, json_string_value(completion), nc);
    return encode_plain(w, w->text, np + nc, loss == CHAT_LOSS_ALL ? 0 : np, err);
}

int chat_encode(struct chat_coder *w, json_t *example, enum chat_loss loss, struct chat_tokens *out,
                struct fsdpck_error *err)
{
    json_t *messages = json_object_get(example, "messages"), *prompt = json_object_get(example, "prompt"),
           *text = json_object_get(example, "text");
    json_t *made;
    w->list.count = 0;
    w->notes = 0;
    *out = (struct chat_tokens){ 0 };
    int rc = chat_form(example, &made, err);
    messages = made ? made : messages;
    if (rc)
        return rc;
    if (messages)
        rc = encode_chat(w, messages, json_object_get(example, "tools"), loss, err);
    else if (prompt)
        rc = encode_completion(w, prompt, json_object_get(example, "completion"), loss, err);
    else if (json_is_string(text))
        rc = encode_plain(w, json_string_value(text), json_string_length(text), 0, err);
    else {
        rc = fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL,
                              "none of 'messages', 'conversations', 'instruction' with 'output', 'prompt' with "
                              "'completion', 'text', 'input_ids' with 'labels' is in it");
        fsdpck_error_hint(
            err,
            "data.columns says what other columns stand for: { \"prompt\": \"question\", \"completion\": \"answer\" }");
    }
    json_decref(made);
    *out = (struct chat_tokens){ w->list.ids, w->supervised, rc ? 0 : w->list.count, w->notes };
    return rc;
}

int chat_render(struct chat_coder *w, json_t *messages, json_t *tools, bool generation_prompt, char **text,
                size_t *nbytes, struct fsdpck_error *err)
{
    struct jinja_output out = { 0 };
    json_t *list;
    int rc = chat_tools(tools, &list, err);
    if (!rc)
        rc = chat_run(w->chat, messages, list, generation_prompt, &out, err);
    json_decref(list);
    free(out.spans);
    if (rc)
        free(out.text);
    *text = rc ? NULL : out.text;
    *nbytes = rc ? 0 : out.nbytes;
    return rc;
}
