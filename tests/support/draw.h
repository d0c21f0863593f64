/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers that look random and are the same in every run of a test (xorshift64, Marsaglia 2003). */
#ifndef TESTS_DRAW_H
#define TESTS_DRAW_H

#include <stdint.h>

/* Returns 64 bits, which are never all zero. */
uint64_t draw_bits(void);
/* Returns a number from 0 to below - 1. */
uint64_t draw(uint64_t below);

#endif
