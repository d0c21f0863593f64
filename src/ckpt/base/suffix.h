/* SPDX-License-Identifier: Apache-2.0 */
/* How a file's name ends. */
#ifndef CKPT_SUFFIX_H
#define CKPT_SUFFIX_H

#include <stdbool.h>
#include <string.h>

/* With something before the suffix: ".safetensors" is a hidden file, not a safetensors file. */
static inline bool ends_with(const char *s, const char *suffix)
{
    size_t n = strlen(s), k = strlen(suffix);
    return n > k && strcmp(s + n - k, suffix) == 0;
}

#endif
