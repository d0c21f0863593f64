/* SPDX-License-Identifier: Apache-2.0 */
/* Converts a prompt (typed, or a line of data) to the tokens with which generation starts. */
#include <train/sample.h>

#include <jansson.h>
#include <stdlib.h>

static int encode(const struct chat *chat, const char *text, size_t nbytes, int flags, struct token_list *list,
                  struct fsdpck_error *err)
{
    struct encoder *e;
    int rc = encoder_new(chat_tokenizer(chat), &e, err);
    if (!rc)
        rc = tokenizer_encode(e, text, nbytes, flags, list, err);
    encoder_free(e);
    return rc;
}

/* Adds no special tokens: the template writes them. */
static int encode_messages(const struct chat *chat, json_t *messages, json_t *tools, struct token_list *list,
                           struct fsdpck_error *err)
{
    struct chat_coder *coder;
    char *text = NULL;
    size_t nbytes = 0;
    int rc = chat_coder_new(chat, &coder, err);
    if (!rc)
        rc = chat_render(coder, messages, tools, true, &text, &nbytes, err);
    if (!rc)
        rc = encode(chat, text, nbytes, 0, list, err);
    free(text);
    chat_coder_free(coder);
    return rc;
}

static int encode_user(const struct chat *chat, json_t *text, struct token_list *list, struct fsdpck_error *err)
{
    json_t *messages = json_pack("[{s:s, s:O}]", "role", "user", "content", text);
    int rc =
        messages ? encode_messages(chat, messages, NULL, list, err) : fsdpck_error_nomem(err, json_string_length(text));
    json_decref(messages);
    return rc;
}

int sample_prompt_encode(const struct chat *chat, json_t *prompt, bool as_chat, struct token_list *list,
                         struct fsdpck_error *err)
{
    json_t *messages = json_is_array(prompt) ? prompt : json_object_get(prompt, "messages"),
           *tools = json_object_get(prompt, "tools");
    json_t *text =
        json_object_get(prompt, "prompt") ? json_object_get(prompt, "prompt") : json_object_get(prompt, "text");
    if (json_is_string(prompt) && as_chat)
        return encode_user(chat, prompt, list, err);
    if (messages)
        return encode_messages(chat, messages, json_is_null(tools) ? NULL : tools, list, err);
    text = json_is_string(prompt) ? prompt : text;
    if (!json_is_string(text))
        return fsdpck_error_set(
            err, FSDPCK_ERR_FORMAT, NULL,
            "a prompt is a text, a list of messages, or an object with 'messages', 'prompt' or 'text'");
    return encode(chat, json_string_value(text), json_string_length(text), TOKENIZER_SPECIAL, list, err);
}
