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
/* Verifies everything. Returns the number of problems reported, after checking that the result counts as many. */
unsigned opened_problems(struct fsdpck_source *src, struct fsdpck_verify_result *result);

#endif
