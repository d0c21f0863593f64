/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a source for a test. A failure ends the test with the error's message. */
#ifndef TESTS_OPENED_H
#define TESTS_OPENED_H

#include <fsdpck/check.h>
#include <fsdpck/source.h>

/* The caller closes it. */
struct fsdpck_source *opened(const char *path, const char *kind);
/* Reads all values of a tensor; the caller frees them. */
void *opened_read(struct fsdpck_source *src, const struct fsdpck_tensor *t);
/* Fails unless both have tensors of the same names, dtypes, shapes and values. */
void opened_check_same(struct fsdpck_source *want, struct fsdpck_source *got);
/* Reads a random box of a tensor of up to three dimensions, dense or not, and compares it with all values in `whole`.
 */
void opened_check_box(struct fsdpck_source *src, const struct fsdpck_tensor *t, const uint8_t *whole, uint64_t *seed);
/* Verifies everything. Returns the number of problems reported, after checking that the result counts as many. */
unsigned opened_problems(struct fsdpck_source *src, struct fsdpck_verify_result *result);

#endif
