/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of a chat: what is read from a model folder. */
#ifndef TRAIN_TEXT_CHAT_IMPL_H
#define TRAIN_TEXT_CHAT_IMPL_H

#include <train/chat.h>

#include "text/jinja/jinja.h"

struct chat {
    struct tokenizer *tokenizer;
    struct jinja *jinja;    /* NULL: the folder has no template */
    struct json_t *special; /* bos_token … as the template sees them */
    int64_t eos;            /* -1: none */
    uint64_t fingerprint;
    time_t now; /* one date for all */
};

/* Zero-initialise. A rendering and its assistant turns. */
struct chat_turns {
    struct jinja_output full;
    struct jinja_span *spans; /* (nspans) in order; borrowed from full or owned below */
    size_t nspans;
    struct jinja_span *owned;
    size_t owned_capacity;
};
void chat_turns_free(struct chat_turns *t);

/* Renders into out. A list of messages that is none, or a message without a role or with nothing else, is
 * FSDPCK_ERR_FORMAT. */
int chat_run(const struct chat *c, struct json_t *messages, struct json_t *tools, bool generation_prompt,
             struct jinja_output *out, struct fsdpck_error *err);

/* The first `count` messages, with the prompt for an answer or without; with `letter` for the words of message `varied`
 * (NULL: as they are). */
struct chat_part {
    size_t count;
    bool prompt;
    size_t varied;
    const char *letter;
};
/* *rendered false: the template refuses these messages. */
int chat_run_first(const struct chat *c, struct json_t *messages, struct json_t *tools, const struct chat_part *part,
                   struct jinja_output *out, bool *rendered, struct fsdpck_error *err);
/* Of messages that chat_run() took. */
bool chat_is_assistant(struct json_t *message);
/* What a message has under one of the names of reasoning; NULL: nothing. Borrowed. */
struct json_t *chat_reasoning(struct json_t *message);
/* Renders all messages and finds the turns of the assistant in the text (or the last of them), each with its end token.
 */
int chat_find_turns(const struct chat *c, struct json_t *messages, struct json_t *tools, bool last_only,
                    struct chat_turns *out, struct fsdpck_error *err);
/* Whether the text shows what the messages hold: *notes gets a bit (enum chat_note) for each kind of thing that it
 * leaves out. A turn that is trained on and whose calls of tools are left out is refused. whole: all of the text is
 * trained on, else the turns. */
int chat_check_shown(const struct chat *c, struct json_t *messages, struct json_t *tools,
                     const struct chat_turns *turns, bool last_only, bool whole, unsigned *notes,
                     struct fsdpck_error *err);
/* Messages of an example in another trainer's form; owned. NULL: it is in none, or has messages itself. */
int chat_form(struct json_t *example, struct json_t **messages, struct fsdpck_error *err);
/* The list of tools of an example, which may be JSON in a text; owned. NULL: there are none. */
int chat_tools(struct json_t *given, struct json_t **out, struct fsdpck_error *err);
/* Of one message, anywhere in the text. */
int chat_check_calls(const struct jinja_output *text, struct json_t *message, size_t number, struct fsdpck_error *err);

#endif
