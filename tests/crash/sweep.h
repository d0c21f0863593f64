/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the operations that a sweep visits: all of the first 200, then every 7th; fewer of both under a
 * sanitizer. */
#ifndef TESTS_SWEEP_H
#define TESTS_SWEEP_H

#include "../support/sanitized.h"

enum { SWEEP_STEP = SANITIZED ? 5 : 1 };

static inline unsigned sweep_next(unsigned n)
{
    return n + (n < 200 ? SWEEP_STEP : 7 * SWEEP_STEP);
}

#endif
