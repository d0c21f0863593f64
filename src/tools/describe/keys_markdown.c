/* SPDX-License-Identifier: Apache-2.0 */
/* Writes docs/config.md: every key of CONFIG.json. */
#include <stdio.h>
#include <string.h>
#include <train/config.h>

#include "describe/keys.h"

/* Writes text into a table cell, with "|" escaped, as it would end the cell. */
static void put_cell(const char *text, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++)
        printf(text[i] == '|' ? "\\|" : "%c", text[i]);
}

static void put_words(const char *words)
{
    for (const char *at = words; *at; at += *at == '|') {
        const size_t n = strcspn(at, "|");
        printf(at == words ? "`%.*s`" : ", `%.*s`", (int)n, at);
        at += n;
    }
}

static void put_key(const struct train_config_key *key)
{
    printf("| `%s` | ", key->name);
    printf(key->required ? "required | " : *key->default_value ? "`%s` | " : "none | ", key->default_value);
    if (key->choices)
        put_words(key->choices);
    else
        put_cell(key->values, strlen(key->values));
    if (key->nullable)
        printf(", or `null`");
    printf(" | ");
    put_cell(key->doc, strlen(key->doc));
    if (key->synonyms) {
        printf(" Also accepted: ");
        put_words(key->synonyms);
        printf(".");
    }
    puts(" |");
}

static void put_section(const char *section, const char *doc)
{
    if (*section)
        printf("\n## %s\n\n", section);
    else
        printf("\n## Top level\n\n");
    printf("%s\n\n| key | default | values | meaning |\n|---|---|---|---|\n", doc);
    for (size_t i = 0; i < train_config_nkeys(); i++) {
        struct train_config_key key;
        train_config_key(i, &key);
        if (train_config_is_in(key.name, section))
            put_key(&key);
    }
}

void keys_put_markdown(const struct tool *tool)
{
    (void)tool;
    puts("<!-- Made from src/train/config/config_table.c. Change it there; `ninja -C build config-md` writes this page "
         "anew. -->\n"
         "# The config of a run\n\n"
         "`fsdptrain run CONFIG.json` reads one JSON object:\n\n"
         "```json\n"
         "{\n"
         "  \"//\": \"members whose names begin with // are comments\",\n"
         "  \"model\": \"SmolLM2-135M-Instruct/\",\n"
         "  \"output_dir\": \"runs/first\",\n"
         "  \"data\": { \"train\": \"chat.jsonl\", \"seq_len\": 512 },\n"
         "  \"lora\": { \"r\": 16, \"lora_alpha\": 32 },\n"
         "  \"train\": { \"max_steps\": 200, \"learning_rate\": 2e-4 }\n"
         "}\n"
         "```\n\n"
         "`train.max_steps` below is the member `max_steps` of the object `train`.\n"
         "A key that is left out has its default.\n"
         "An unknown key, a wrong type or a value out of range ends the program with exit code 2; the message names "
         "the key.\n"
         "A key that has no effect beside the others is named when the run starts.\n\n"
         "`fsdptrain init MODEL DATA` writes a config that fits the machine, the model and the data.\n"
         "`--set KEY=VALUE` of `fsdptrain run` and `fsdptrain plan` sets a key for one call: `--set "
         "train.max_steps=10`.\n"
         "VALUE is JSON, or else a string.\n"
         "`man fsdptrain-config` shows this list too.");
    for (size_t i = 0; i < train_config_nsections(); i++) {
        const char *doc, *section = train_config_section(i, &doc);
        put_section(section, doc);
    }
}
