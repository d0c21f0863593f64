/* SPDX-License-Identifier: Apache-2.0 */
/* Writes fsdptrain-config(5): every key of CONFIG.json. */
#include <stdio.h>
#include <string.h>
#include <train/config.h>

#include "describe/keys.h"
#include "describe/roff.h"

static void put(const char *text)
{
    roff_text(text, strlen(text));
}

static void put_words(const char *words)
{
    for (const char *at = words; *at; at += *at == '|') {
        const size_t n = strcspn(at, "|");
        fputs(at == words ? "\\fB" : ", \\fB", stdout);
        roff_text(at, n);
        fputs("\\fR", stdout);
        at += n;
    }
}

static void put_key(const struct train_config_key *key)
{
    printf(".TP\n.B ");
    put(key->name);
    putchar('\n');
    if (key->choices)
        put_words(key->choices);
    else
        put(key->values);
    if (key->nullable)
        printf(", or \\fBnull\\fR");
    if (key->required)
        printf("; required");
    if (key->default_value[0]) {
        printf("; default \\fB");
        put(key->default_value);
        printf("\\fR");
    }
    if (key->synonyms) {
        printf("; also accepted: ");
        put_words(key->synonyms);
    }
    puts(".\n.br");
    roff_sentences(key->doc, strlen(key->doc));
}

static void put_section(const char *section, const char *doc)
{
    printf(".SS ");
    put(*section ? section : "Top level");
    putchar('\n');
    roff_sentences(doc, strlen(doc));
    for (size_t i = 0; i < train_config_nkeys(); i++) {
        struct train_config_key key;
        train_config_key(i, &key);
        if (train_config_is_in(key.name, section))
            put_key(&key);
    }
}

void keys_put_man(const struct tool *tool)
{
    (void)tool;
    roff_title("fsdptrain-config", 5, "fsdptrain manual");
    puts(".SH NAME\nfsdptrain\\-config \\- keys of the file that configures a run of fsdptrain\n.SH DESCRIPTION");
    roff_paragraphs(
        "A config is a JSON object. The part of a name before the dot is a section: train.max_steps is the member "
        "max_steps of the object "
        "train. A key that is left out has its default. An unknown key, a wrong type and a value out of range end the "
        "program; the message names the key. Members whose names begin with // are comments.\n"
        "--set KEY=VALUE of fsdptrain-run(1) and fsdptrain-plan(1) sets a key for one call. VALUE is JSON, or else a "
        "string.");
    puts(".SH KEYS");
    for (size_t i = 0; i < train_config_nsections(); i++) {
        const char *doc, *section = train_config_section(i, &doc);
        put_section(section, doc);
    }
    puts(".SH SEE ALSO");
    roff_see("fsdptrain-run(1)", ",");
    roff_see("fsdptrain-plan(1)", ",");
    roff_see("fsdptrain-init(1)", "");
}
