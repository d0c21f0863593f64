/* SPDX-License-Identifier: Apache-2.0 */
/* The paths of groups, and which object of fsdp.policy matches them. Must not know what the object says. */
#ifndef TRAIN_POLICY_MATCH_H
#define TRAIN_POLICY_MATCH_H

#include "model/layout.h"

enum { POLICY_NONE = -1, POLICY_PATH = 96 };

/* How much of a block the path stands for by which an object matches. */
enum match_level { MATCH_BLOCK, MATCH_HALF, MATCH_PART };

struct policy_match {
    int32_t object; /* POLICY_NONE: none matches */
    enum match_level level;
};

/* The path of the module of an end's group. */
void policy_end_path(const struct layout *l, uint32_t group, char path[POLICY_PATH]);
void policy_block_path(const struct layout *l, uint32_t block, char path[POLICY_PATH]);
/* The name of consecutive parts within a block, as "self_attn". Static, or in `name`. */
const char *policy_parts_name(const struct layout *l, enum layout_part first, enum layout_part last, char name[64]);

/* The first object that matches: the group of an end; a block as a whole; a part of a block, by the path of the block,
 * of the half, or of a linear layer. */
int policy_match_end(const struct train_config *config, const struct layout *l, uint32_t group, int32_t *object,
                     struct fsdpck_error *err);
int policy_match_block(const struct train_config *config, const struct layout *l, uint32_t block, int32_t *object,
                       struct fsdpck_error *err);
int policy_match_part(const struct train_config *config, const struct layout *l, uint32_t block, enum layout_part part,
                      struct policy_match *out, struct fsdpck_error *err);
/* Returns 1 if the object matches some group, 0 if not. */
int policy_matches_some(const struct train_config *config, size_t object, const struct layout *l,
                        struct fsdpck_error *err);

#endif
