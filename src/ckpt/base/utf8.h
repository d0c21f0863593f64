/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8 as Unicode defines it: no overlong forms, no surrogates, at most U+10FFFF. */
#ifndef CKPT_UTF8_H
#define CKPT_UTF8_H

#include <stdbool.h>
#include <stddef.h>

bool fsdpck_utf8_valid(const char *s, size_t nbytes);

#endif
