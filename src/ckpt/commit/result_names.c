/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of file names. It knows text, not files. */
#include "commit/result_names.h"

#include <stdio.h>
#include <string.h>

#include "base/hash.h"

static const char *skip_digits(const char *s, bool *any)
{
    const char *start = s;
    while (*s >= '0' && *s <= '9')
        s++;
    *any = s > start;
    return s;
}

/* Skips an optional "-UUID". */
static const char *skip_uuid(const char *s)
{
    char text[37];
    uint8_t uuid[16];
    if (s[0] != '-' || snprintf(text, sizeof text, "%s", s + 1) < 36 || !fsdpck_uuid_parse(text, uuid))
        return s;
    return s + 37;
}

/* PREFIX digits MIDDLE digits [-UUID] SUFFIX */
static bool is_numbered(const char *name, const char *prefix, const char *middle, const char *suffix)
{
    bool any;
    if (strncmp(name, prefix, strlen(prefix)) != 0)
        return false;
    name = skip_digits(name + strlen(prefix), &any);
    if (!any || strncmp(name, middle, strlen(middle)) != 0)
        return false;
    name = skip_digits(name + strlen(middle), &any);
    return any && strcmp(skip_uuid(name), suffix) == 0;
}

bool fsdpck_is_shard_name(const char *name)
{
    return is_numbered(name, "__", "_", ".distcp");
}
bool fsdpck_is_save_assets_name(const char *name)
{
    return strncmp(name, "assets-", 7) == 0 && *skip_uuid(name + 6) == '\0';
}

static bool is_one_of(const char *name, const char *const *names)
{
    for (; *names != NULL; names++)
        if (strcmp(name, *names) == 0)
            return true;
    return false;
}

bool fsdpck_is_weights_name(const char *name)
{
    static const char *const names[] = { "model.safetensors", "model.safetensors.index.json",
                                         "adapter_model.safetensors", "pytorch_lora_weights.safetensors", NULL };
    return is_one_of(name, names) || is_numbered(name, "model-", "-of-", ".safetensors") ||
           is_numbered(name, "model-rank-", "-part-", ".safetensors");
}

bool fsdpck_is_model_name(const char *name)
{
    static const char *const names[] = {
        "config.json",
        "generation_config.json",
        "adapter_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "vocab.txt",
        "merges.txt",
        "tokenizer.model",
        "spiece.model",
        "sentencepiece.bpe.model",
        "chat_template.json",
        "chat_template.jinja",
        "preprocessor_config.json",
        "processor_config.json",
        "video_preprocessor_config.json",
        "params.json",
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
        "adapter_model.bin",
        NULL,
    };
    return fsdpck_is_weights_name(name) || is_one_of(name, names) ||
           is_numbered(name, "pytorch_model-", "-of-", ".bin");
}

bool fsdpck_is_document_name(const char *name)
{
    static const char *const names[] = { "README.md", "LICENSE",       "LICENSE.md",     "LICENSE.txt",
                                         "NOTICE",    "USE_POLICY.md", ".gitattributes", NULL };
    return is_one_of(name, names);
}

bool fsdpck_is_checkpoint_name(const char *name)
{
    static const char *const names[] = { "index.json", ".metadata", "assets", "metadata.json", "common.pt", NULL };
    return fsdpck_is_shard_name(name) || fsdpck_is_save_assets_name(name) || is_one_of(name, names);
}

bool fsdpck_is_result_name(const char *name)
{
    return fsdpck_is_checkpoint_name(name) || fsdpck_is_model_name(name) || strcmp(name, "original") == 0;
}
