/* SPDX-License-Identifier: Apache-2.0 */
/* Pre-tokenization: finds the ends of words. The common models' patterns have hand-written scanners; PCRE2 handles the
 * others. */
#ifndef TRAIN_TEXT_SPLIT_H
#define TRAIN_TEXT_SPLIT_H

#include <fsdpck/error.h>

#include "text/tokenizer/impl.h"

size_t split_scan_gpt2(const uint8_t *bits, const char *s, size_t n);
/* The scanner for a pattern. NULL: the pattern has none. */
split_scan_fn split_scan_of(const char *regex);

/* Any other pattern. PCRE2 must interpret it as the library does; otherwise it is rejected. */
struct split_regex;
int split_regex_new(const char *name, const char *regex, const uint8_t *bits, struct split_regex **out,
                    struct fsdpck_error *err);
void split_regex_free(struct split_regex *r);
/* The first match in s (n bytes of valid UTF-8) at or after `at`; *begin == n: no match. Each thread needs its own
 * work. */
struct split_work;
struct split_work *split_work_new(const struct split_regex *r);
void split_work_free(struct split_work *w);
/* Sets the text to search. */
int split_work_set(struct split_work *w, const struct split_regex *r, const char *s, size_t n,
                   struct fsdpck_error *err);
int split_work_next(struct split_work *w, const struct split_regex *r, size_t at, size_t *begin, size_t *end,
                    struct fsdpck_error *err);

#endif
