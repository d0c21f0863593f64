/* SPDX-License-Identifier: Apache-2.0 */
/* The settings behind the hashes that tell runs apart. Checkpoints keep them, so that a refusal can name the key and both values. */
#ifndef TRAIN_TOLD_H
#define TRAIN_TOLD_H

#include "rank/rank.h"

struct json_t;

struct told_list {
    char text[700];
    size_t ndiffering;
};

struct json_t *told_of(const struct job *job); /* owned; NULL: no memory */
/* Adds a key of the config whose value is one of some words. */
void told_word(struct json_t *o, const char *key, unsigned choice);
void told_add(struct told_list *list, const char *key, const struct json_t *was, const struct json_t *now);
/* The keys behind a hash that differs: "model", "data" or "lora…". then: told by the checkpoint, or NULL where an earlier version wrote it. */
void told_differences(struct told_list *list, const char *hash, const struct json_t *then, const struct json_t *now);

#endif
