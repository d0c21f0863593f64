/* SPDX-License-Identifier: Apache-2.0 */
/* Key 'tenants' of CONFIG.json. */
#ifndef TRAIN_CONFIG_TENANTS_H
#define TRAIN_CONFIG_TENANTS_H

#include <train/config.h>

/* Replaces the path of a folder in the tree by what its files have, and checks the names. path: of the config, for
 * errors. */
int tenants_expand(const char *path, struct train_config *c, struct fsdpck_error *err);
/* Reads the config of each tenant, to know that it can be read. */
int tenants_check(const struct train_config *c, struct fsdpck_error *err);

#endif
