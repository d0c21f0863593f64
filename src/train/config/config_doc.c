/* SPDX-License-Identifier: Apache-2.0 */
/* The key table as text, for manual pages and completions. Must not know the layout of a page. */
#include <stdio.h>
#include <string.h>
#include <train/config.h>

#include "config/config_keys.h"

static void show_range(const struct config_key *key, const char *kind, char *out, size_t nbytes)
{
    char min[CONFIG_NUMBER], max[CONFIG_NUMBER];
    snprintf(out, nbytes, "%s from %s to %s", kind, config_show_number(key->min, min),
             config_show_number(key->max, max));
}

static void show_columns(char *out, size_t nbytes)
{
    size_t n = (size_t)snprintf(out, nbytes, "object of column names with the keys ");
    for (size_t i = 0; i < config_ncolumns && n < nbytes; i++)
        n += (size_t)snprintf(out + n, nbytes - n, "%s%s", i ? ", " : "", config_columns[i]);
}

static void show_values(const struct config_key *key, char *out, size_t nbytes)
{
    switch (key->type) {
    case KEY_STRING: snprintf(out, nbytes, key->automatic ? "\"auto\", or string" : "string"); break;
    case KEY_CHOICE:
    case KEY_BOOL: /* the list of words suffices */ *out = '\0'; break;
    case KEY_CHOICES: snprintf(out, nbytes, "list of words, or one"); break;
    case KEY_U64: show_range(key, key->automatic ? "\"auto\", or whole number" : "whole number", out, nbytes); break;
    case KEY_U64S: show_range(key, "whole number, or list of them,", out, nbytes); break;
    case KEY_SWITCH: show_range(key, "true, false, or whole number", out, nbytes); break;
    case KEY_NUMBER: show_range(key, "number", out, nbytes); break;
    case KEY_TARGETS: snprintf(out, nbytes, "list of names, regular expression, or \"all-linear\""); break;
    case KEY_NAMES: snprintf(out, nbytes, "list of names"); break;
    case KEY_PATTERNS:
        show_range(key,
                   key->integer ? "object of regular expressions, each with a whole number"
                                : "object of regular expressions, each with a number",
                   out, nbytes);
        break;
    case KEY_FILES: snprintf(out, nbytes, "path, or list of paths and of {\"path\": …, \"weight\": …}"); break;
    case KEY_COLUMNS: show_columns(out, nbytes); break;
    case KEY_POLICY: snprintf(out, nbytes, "list of {\"modules\": …} with other keys of fsdp"); break;
    case KEY_TENANTS: snprintf(out, nbytes, "list of objects with a name, or path of a folder of such files"); break;
    case KEY_PROMPTS:
        snprintf(
            out, nbytes,
            "list of strings, of lists of messages, and of {\"text\": …}, {\"input_ids\": […]} or {\"prompt\": …}");
        break;
    }
}

/* Formats the default as JSON. */
static void show_default(const struct config_key *key, char *out, size_t nbytes)
{
    char number[CONFIG_NUMBER];
    const bool is_text = key->type == KEY_STRING || key->type == KEY_CHOICE || key->type == KEY_TARGETS;
    const bool is_number = key->type == KEY_U64 || key->type == KEY_U64S || key->type == KEY_NUMBER;
    const char *empty = key->nullable ? "null" : key->type == KEY_PATTERNS ? "{}" : "[]";
    if (key->required || key->optional)
        *out = '\0';
    else if (key->type == KEY_BOOL || key->type == KEY_SWITCH)
        snprintf(out, nbytes, "%s", key->default_value.yes ? "true" : "false");
    else if (is_text && key->default_value.text)
        snprintf(out, nbytes, "\"%s\"", key->default_value.text);
    else if (is_number && !(key->nullable && key->default_value.number == 0))
        snprintf(out, nbytes, "%s", config_show_number(key->default_value.number, number));
    else
        snprintf(out, nbytes, "%s", empty);
}

size_t train_config_nkeys(void)
{
    return config_nkeys;
}

void train_config_key(size_t i, struct train_config_key *out)
{
    const struct config_key *key = &config_keys[i];
    *out = (struct train_config_key){ .name = key->name,
                                      .doc = key->doc,
                                      .synonyms = key->synonyms,
                                      .required = key->required,
                                      .nullable = key->nullable };
    out->choices = key->type == KEY_BOOL ? "true|false" : key->choices;
    show_values(key, out->values, sizeof out->values);
    show_default(key, out->default_value, sizeof out->default_value);
}

size_t train_config_nsections(void)
{
    return config_nsections;
}

const char *train_config_section(size_t i, const char **doc)
{
    *doc = config_sections[i].doc;
    return config_sections[i].name;
}

bool train_config_is_in(const char *key, const char *section)
{
    const char *dot = strchr(key, '.');
    const size_t n = dot ? (size_t)(dot - key) : 0;
    return strlen(section) == n && memcmp(key, section, n) == 0;
}

bool train_config_find(const char *name, struct train_config_key *out)
{
    const struct config_key *key = config_key_find(name);
    if (key)
        train_config_key((size_t)(key - config_keys), out);
    return key != NULL;
}
