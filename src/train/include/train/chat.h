/* SPDX-License-Identifier: Apache-2.0 */
/* Converts conversations to tokens with a loss mask, using the tokenizer and the chat template of a model folder.
 * Knows nothing of data files, packing or training. */
#ifndef TRAIN_CHAT_H
#define TRAIN_CHAT_H

#include <time.h>
#include <train/tokenizer.h>

#ifdef __cplusplus
extern "C" {
#endif

struct json_t;

/* Reads tokenizer.json, tokenizer_config.json and chat_template.jinja from a folder, or from the assets of a
 * checkpoint. The result may be used by any number of threads. */
struct chat;
FSDPCK_API int chat_open(const char *model, struct chat **out, struct fsdpck_error *err);
FSDPCK_API void chat_close(struct chat *c); /* NULL does nothing */
FSDPCK_API const struct tokenizer *chat_tokenizer(const struct chat *c);
FSDPCK_API bool chat_has_template(const struct chat *c);
/* True if the template shows the date: today, or the date passed to chat_set_date() ("2026-11-23"). Call
 * chat_set_date() before you make a coder. */
FSDPCK_API bool chat_asks_date(const struct chat *c);
FSDPCK_API int chat_read_date(const char *date, time_t *out, struct fsdpck_error *err);
FSDPCK_API int chat_set_date(struct chat *c, const char *date, struct fsdpck_error *err);
/* Sets the template's variable enable_thinking, which has no value otherwise. */
FSDPCK_API int chat_set_thinking(struct chat *c, bool on, struct fsdpck_error *err);
/* Hash of tokenizer, template and special tokens; and of the date, if the template shows it. */
FSDPCK_API uint64_t chat_fingerprint(const struct chat *c);

/* Which tokens are trained on: the choices of data.loss_on, in their order. */
enum chat_loss {
    CHAT_LOSS_ASSISTANT,      /* assistant turns with their end token; completions; the whole of a plain text */
    CHAT_LOSS_LAST_ASSISTANT, /* as ASSISTANT, but only the last assistant turn of a conversation */
    CHAT_LOSS_COMPLETION,     /* an alias of ASSISTANT, for prompt-and-completion data */
    CHAT_LOSS_ALL,
};

/* A coder is not thread-safe. The chat must outlive it. */
struct chat_coder;
FSDPCK_API int chat_coder_new(const struct chat *c, struct chat_coder **out, struct fsdpck_error *err);
FSDPCK_API void chat_coder_free(struct chat_coder *w);

/* Parts of an example that the model cannot learn from; one bit each. */
enum chat_note {
    CHAT_NOTE_TOOLS,     /* "tools" that the template does not show */
    CHAT_NOTE_REASONING, /* reasoning in the last turn that the template does not show */
    CHAT_NOTE_CONTENT,   /* content beside tool calls that the template does not show */
    CHAT_NOTE_ACROSS,    /* a turn that begins within a token: that token is not trained on */
    CHAT_NNOTES
};
FSDPCK_API const char *chat_note_text(
    enum chat_note note); /* "\"tools\" that the chat template does not show": what a document has */

/* The tokens of an example. Borrowed from the coder until its next call. */
struct chat_tokens {
    const uint32_t *ids;       /* (count) */
    const uint8_t *supervised; /* (count) 1: trained on */
    size_t count;
    unsigned notes; /* bits 1 << enum chat_note */
};
/* An example: {"messages": […]} (with "tools"), {"prompt": …, "completion": …} or {"text": …}. */
FSDPCK_API int chat_encode(struct chat_coder *w, struct json_t *example, enum chat_loss loss, struct chat_tokens *out,
                           struct fsdpck_error *err);
/* Renders a list of messages; the caller frees *text. tools may be NULL. */
FSDPCK_API int chat_render(struct chat_coder *w, struct json_t *messages, struct json_t *tools, bool generation_prompt,
                           char **text, size_t *nbytes, struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif
#endif
