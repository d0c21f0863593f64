/* SPDX-License-Identifier: Apache-2.0 */
/* The regular expressions of adapter_config.json (keys of rank_pattern and alpha_pattern, a target_modules string), as
 * PEFT matches them. */
#ifndef CKPT_LORA_PATTERN_H
#define CKPT_LORA_PATTERN_H

#include <stdbool.h>

enum fsdpck_pattern_result {
    PATTERN_NO,
    PATTERN_YES,
    PATTERN_UNKNOWN /* uses unsupported syntax: the caller must refuse it */
};

/* PEFT's get_pattern_key: the expression matches the module's path, or its end after a dot. */
enum fsdpck_pattern_result fsdpck_pattern_ends(const char *expression, const char *module);
/* The expression matches the whole path. */
enum fsdpck_pattern_result fsdpck_pattern_whole(const char *expression, const char *module);

#endif
