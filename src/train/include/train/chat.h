/* SPDX-License-Identifier: Apache-2.0 */
/* Conversations to tokens with a loss mask: a model folder's tokenizer and chat template. Knows nothing of files of data, packing or training. */
#ifndef TRAIN_CHAT_H
#define TRAIN_CHAT_H

#include <time.h>
#include <train/tokenizer.h>

#ifdef __cplusplus
extern "C" {
#endif

struct json_t;

/* tokenizer.json, tokenizer_config.json, chat_template.jinja of a folder, or of a checkpoint's assets. Read once, then used by any number of
 * threads. */
struct chat;
FSDPCK_API int chat_open(const char *model, struct chat **out, struct fsdpck_error *err);
FSDPCK_API void chat_close(struct chat *c); /* NULL does nothing */
FSDPCK_API const struct tokenizer *chat_tokenizer(const struct chat *c);
FSDPCK_API bool chat_has_template(const struct chat *c);
/* Whether the template shows the date, which is today's, or what chat_set_date() says: "2026-11-23". Before any coder is made. */
FSDPCK_API bool chat_asks_date(const struct chat *c);
FSDPCK_API int chat_read_date(const char *date, time_t *out, struct fsdpck_error *err);
FSDPCK_API int chat_set_date(struct chat *c, const char *date, struct fsdpck_error *err);
/* Of tokenizer, template, special tokens; where the template shows the date, of that too. */
FSDPCK_API uint64_t chat_fingerprint(const struct chat *c);

/* Which tokens are trained on: the choices of data.loss_on, in their order. */
enum chat_loss {
    CHAT_LOSS_ASSISTANT,      /* assistant turns with their end token; completions; all of a plain text */
    CHAT_LOSS_LAST_ASSISTANT, /* as ASSISTANT, of a conversation the last turn of the assistant only */
    CHAT_LOSS_COMPLETION,     /* the same under the name that prompt-and-completion data gives it */
    CHAT_LOSS_ALL,
};

/* One thread's work. The chat must outlive it. */
struct chat_coder;
FSDPCK_API int chat_coder_new(const struct chat *c, struct chat_coder **out, struct fsdpck_error *err);
FSDPCK_API void chat_coder_free(struct chat_coder *w);

/* What was given and cannot be learnt from; a bit each. */
enum chat_note {
    CHAT_NOTE_TOOLS,     /* "tools" that the template does not show */
    CHAT_NOTE_REASONING, /* reasoning of the last turn that it does not show */
    CHAT_NOTE_CONTENT,   /* content of a turn, beside its calls of tools, that it does not show */
    CHAT_NOTE_ACROSS,    /* a turn that begins within a token, which is not trained on */
    CHAT_NNOTES
};
FSDPCK_API const char *chat_note_text(enum chat_note note); /* "have …" */

/* What an example became. Borrowed from the coder until its next call. */
struct chat_tokens {
    const uint32_t *ids;      /* (count) */
    const uint8_t *supervised; /* (count) 1: trained on */
    size_t count;
    unsigned notes; /* bits 1 << enum chat_note */
};
/* An example: {"messages": […]} (with "tools"), {"prompt": …, "completion": …} or {"text": …}. */
FSDPCK_API int chat_encode(struct chat_coder *w, struct json_t *example, enum chat_loss loss, struct chat_tokens *out, struct fsdpck_error *err);
/* The text of a list of messages; free() it. tools may be NULL. */
FSDPCK_API int chat_render(struct chat_coder *w, struct json_t *messages, struct json_t *tools, bool generation_prompt, char **text, size_t *nbytes,
                           struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif
#endif
