/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of fsdptrain's config, which its pages describe beside its verbs. */
#include <stdio.h>
#include <string.h>
#include <train/config.h>

#include "describe/describe.h"
#include "describe/keys.h"

/* "fsdp.reduction=invariant" of a key with words, "train.max_steps=" of another. */
static void put_key(const struct train_config_key *key, void (*put)(const char *word))
{
    char word[160];
    if (!key->choices) {
        snprintf(word, sizeof word, "%s=", key->name);
        put(word);
    }
    for (const char *at = key->choices; at && *at; at += *at == '|') {
        const size_t n = strcspn(at, "|");
        snprintf(word, sizeof word, "%s=%.*s", key->name, (int)n, at);
        put(word);
        at += n;
    }
}

static void settings(void (*put)(const char *word))
{
    for (size_t i = 0; i < train_config_nkeys(); i++) {
        struct train_config_key key;
        train_config_key(i, &key);
        put_key(&key, put);
    }
}

static const struct form forms[] = {
    { .name = "config-man", .begin = keys_put_man },
    { .name = "config-markdown", .begin = keys_put_markdown },
};

const struct describe_more describe_more = {
    .settings = settings, .forms = forms, .nforms = sizeof forms / sizeof forms[0], .also = "fsdptrain-config(5)"
};
