/* SPDX-License-Identifier: Apache-2.0 */
/* Says which sanitizer the tests are built with. Under one a test takes ten times as long, and it looks for races and
 * for what lies outside, not for numbers: tests that draw many cases take fewer. */
#ifndef TESTS_SANITIZED_H
#define TESTS_SANITIZED_H

#if defined(__has_feature) /* clang */
#define SANITIZED_BY(name) __has_feature(name)
#else
#define SANITIZED_BY(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || SANITIZED_BY(address_sanitizer)
#define UNDER_ASAN 1
#else
#define UNDER_ASAN 0
#endif
#if defined(__SANITIZE_THREAD__) || SANITIZED_BY(thread_sanitizer)
#define UNDER_TSAN 1
#else
#define UNDER_TSAN 0
#endif
enum { SANITIZED = UNDER_ASAN || UNDER_TSAN };

#endif
