/* SPDX-License-Identifier: Apache-2.0 */
#include "image/prompt_tokens.h"

#include <train/sample.h>

static int find_pad(const struct pipeline *p, struct prompt_tokens *t, struct fsdpck_error *err)
{
    struct model_reader r;
    int rc = pipeline_json(p, "tokenizer", "tokenizer_config.json", NULL, &r, err);
    json_t *pad = json_object_get(r.root, "pad_token");
    const char *token = json_string_value(json_is_object(pad) ? json_object_get(pad, "content") : pad);
    const int64_t id = rc ? 0 : tokenizer_id(chat_tokenizer(t->chat), token ? token : "<|endoftext|>");
    if (!rc && id < 0)
        rc = fsdpck_error_set(err, FSDPCK_ERR_FORMAT, r.path, "the tokenizer has no pad_token \"%.40s\"",
                              token ? token : "<|endoftext|>");
    t->pad = (int32_t)id;
    json_decref(r.root);
    return rc;
}

int prompt_tokens_open(const struct pipeline *p, struct prompt_tokens *out, struct fsdpck_error *err)
{
    char path[PIPELINE_PATH];
    *out = (struct prompt_tokens){ 0 };
    int rc = pipeline_part(p, "tokenizer", path, err);
    if (!rc)
        rc = chat_open(path, &out->chat, err);
    if (!rc)
        rc = chat_set_thinking(out->chat, false, err);
    return rc ? rc : find_pad(p, out, err);
}

void prompt_tokens_close(struct prompt_tokens *t)
{
    chat_close(t->chat);
    t->chat = NULL;
}

int prompt_tokens_of(const struct prompt_tokens *t, const char *text, struct token_list *list, struct fsdpck_error *err)
{
    json_t *prompt = json_string(text);
    int rc = prompt ? sample_prompt_encode(t->chat, prompt, true, list, err)
                    : fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL, "a prompt that is no UTF-8");
    json_decref(prompt);
    if (!rc && list->count == 0)
        rc = fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL, "the chat template makes an empty text");
    return rc;
}
