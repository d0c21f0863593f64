/* SPDX-License-Identifier: Apache-2.0 */
/* The settings behind the hashes that identify a run. Checkpoints store them, so that an error can name the key and
 * both values. */
#ifndef TRAIN_SETTINGS_H
#define TRAIN_SETTINGS_H

#include "rank/rank.h"

struct json_t;

struct settings_diff {
    char text[700];
    size_t ndiffering;
};

struct json_t *settings_of(const struct job *job); /* owned; NULL: out of memory */
/* Adds a config key whose value is one of a fixed set of words. */
void settings_put_word(struct json_t *o, const char *key, unsigned choice);
void settings_diff_add(struct settings_diff *list, const char *key, const struct json_t *was, const struct json_t *now);
/* Lists the keys that explain a different hash: "model", "data" or "lora…". then: the settings in the checkpoint; NULL
 * if an earlier version wrote it. */
void settings_diff_find(struct settings_diff *list, const char *hash, const struct json_t *then,
                        const struct json_t *now);

#endif
