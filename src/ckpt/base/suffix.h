/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the ending of a file's name. */
#ifndef CKPT_SUFFIX_H
#define CKPT_SUFFIX_H

#include <stdbool.h>
#include <string.h>

/* Requires a name before the suffix: ".safetensors" is a hidden file, not a safetensors file. */
static inline bool ends_with(const char *s, const char *suffix)
{
    size_t n = strlen(s), k = strlen(suffix);
    return n > k && strcmp(s + n - k, suffix) == 0;
}

#endif
