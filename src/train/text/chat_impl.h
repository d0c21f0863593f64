/* Inside of a chat: what is read from a model folder. */
#ifndef TRAIN_TEXT_CHAT_IMPL_H
#define TRAIN_TEXT_CHAT_IMPL_H

#include <train/chat.h>

#include "text/jinja.h"

struct chat {
    struct tokenizer *tokenizer;
    struct jinja *jinja; /* NULL: the folder has no template */
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
    struct jinja_output part, other; /* scratch */
};
void chat_turns_free(struct chat_turns *t);

/* Renders into out. */
int chat_run(const struct chat *c, struct json_t *messages, struct json_t *tools, bool generation_prompt, struct jinja_output *out, struct fsdpck_error *err);
/* Renders all messages and finds the turns of the assistant in the text, each with its end token. */
int chat_find_turns(const struct chat *c, struct json_t *messages, struct json_t *tools, struct chat_turns *out, struct fsdpck_error *err);

#endif
