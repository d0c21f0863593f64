/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp.policy: values of keys of fsdp for some groups of parameters. */
#ifndef TRAIN_POLICY_KEYS_H
#define TRAIN_POLICY_KEYS_H

#include "config/config_keys.h"

/* Reads fsdp.policy into c->fsdp, which owns what this allocates, also after a failure. */
int config_policy_put(const char *path, json_t *value, struct train_config *c, struct fsdpck_error *err);
/* The row of a key that objects of fsdp.policy may have. */
const struct config_key *config_policy_key(enum train_policy_key which);
/* Its name in an object. */
const char *config_policy_name(enum train_policy_key which);
/* c with the values of an object of its policy in the place of those of fsdp. */
struct train_config config_policy_over(const struct train_config *c, const struct train_policy *policy);
/* Whether some object has a strategy or a mesh of its own. */
bool config_policy_strategies(const struct train_config *c);

#endif
