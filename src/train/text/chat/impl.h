/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of a chat: the settings that chat_open() read from the model folder. */
#ifndef TRAIN_TEXT_CHAT_IMPL_H
#define TRAIN_TEXT_CHAT_IMPL_H

#include <train/chat.h>

#include "text/jinja/jinja.h"

struct chat {
    struct tokenizer *tokenizer;
    struct jinja *jinja;    /* NULL: the folder has no template */
    struct json_t *special; /* variables of the template: bos_token and the other special tokens, enable_thinking */
    int64_t eos;            /* -1: none */
    uint64_t fingerprint;
    time_t now; /* the date for all renderings */
};

/* A rendering and its assistant turns. Zero-initialise. */
struct chat_turns {
    struct jinja_output full;
    struct jinja_span *spans; /* (nspans) in order; borrowed from full or owned below */
    size_t nspans;
    struct jinja_span *owned;
    size_t owned_capacity;
};
void chat_turns_free(struct chat_turns *t);

/* Renders into out. Returns FSDPCK_ERR_FORMAT if messages is not a list, or if a message has no role or has nothing but
 * a role. */
int chat_run(const struct chat *c, struct json_t *messages, struct json_t *tools, bool generation_prompt,
             struct jinja_output *out, struct fsdpck_error *err);

/* The first `count` messages, with or without the generation prompt. If `letter` is not NULL, it replaces the texts of
 * message `varied`. */
struct chat_part {
    size_t count;
    bool prompt;
    size_t varied;
    const char *letter;
};
/* *rendered false: the template rejected these messages. */
int chat_run_first(const struct chat *c, struct json_t *messages, struct json_t *tools, const struct chat_part *part,
                   struct jinja_output *out, bool *rendered, struct fsdpck_error *err);
/* For messages that chat_run() has accepted. */
bool chat_is_assistant(struct json_t *message);
/* The message's reasoning, under any of its known keys. NULL: the message has none. Borrowed. */
struct json_t *chat_reasoning(struct json_t *message);
/* Renders all messages and finds the assistant turns in the text (all, or the last one). Each turn includes its end
 * token. */
int chat_find_turns(const struct chat *c, struct json_t *messages, struct json_t *tools, bool last_only,
                    struct chat_turns *out, struct fsdpck_error *err);
/* Checks that the text contains the content of the messages. For each kind of missing content, sets a bit of *notes
 * (enum chat_note). If a trained turn does not show its tool calls, returns FSDPCK_ERR_UNSUPPORTED. whole: the loss
 * covers the whole text; otherwise only the turns. */
int chat_check_shown(const struct chat *c, struct json_t *messages, struct json_t *tools,
                     const struct chat_turns *turns, bool last_only, bool whole, unsigned *notes,
                     struct fsdpck_error *err);
/* Converts an example in another trainer's format to messages (owned). NULL: the format is unknown, or the example has
 * "messages". */
int chat_form(struct json_t *example, struct json_t **messages, struct fsdpck_error *err);
/* The example's list of tools, possibly parsed from a string of JSON (owned). NULL: the example has none. */
int chat_tools(struct json_t *given, struct json_t **out, struct fsdpck_error *err);
/* Checks that the text shows the tool calls of one message, at any place. */
int chat_check_calls(const struct jinja_output *text, struct json_t *message, size_t number, struct fsdpck_error *err);

#endif
