/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the operations that a sweep visits: all of the first 200, then every 7th. Sanitizers slow each run down many
 * times, so under them a sweep visits a fifth. */
#ifndef TESTS_SWEEP_H
#define TESTS_SWEEP_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SWEEP_STEP = 5 };
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
enum { SWEEP_STEP = 5 };
#else
enum { SWEEP_STEP = 1 };
#endif
#else
enum { SWEEP_STEP = 1 };
#endif

static inline unsigned sweep_next(unsigned n)
{
    return n + (n < 200 ? SWEEP_STEP : 7 * SWEEP_STEP);
}

#endif
