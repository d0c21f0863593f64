/* SPDX-License-Identifier: Apache-2.0 */
/* image.aspect_ratio_buckets: "512,384;384,512", as diffusers' scripts take it. */
#ifndef TRAIN_CONFIG_BUCKETS_H
#define TRAIN_CONFIG_BUCKETS_H

#include <train/config.h>

/* name: of the config, for messages. */
int config_buckets_read(const char *name, const char *text, struct train_buckets *out, struct fsdpck_error *err);

#endif
