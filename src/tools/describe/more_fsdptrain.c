/* SPDX-License-Identifier: Apache-2.0 */
/* Describes the config keys of fsdptrain, besides its verbs. */
#include <stdio.h>
#include <string.h>
#include <train/config.h>

#include "describe/describe.h"
#include "describe/keys.h"

/* Calls put with "fsdp.reduction=invariant" for each choice of a key, or with "train.max_steps=" for other keys. */
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

const struct describe_more describe_more = { .settings = settings,
                                             .forms = forms,
                                             .nforms = sizeof forms / sizeof forms[0],
                                             .also = { "fsdptrain-config(5)", "fsdpck(1)", "fsdpck(5)" } };
