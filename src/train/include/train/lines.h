/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a data file line by line: plain, gzip or Zstandard, detected from the first bytes. Not thread-safe. */
#ifndef TRAIN_LINES_H
#define TRAIN_LINES_H

#include <fsdpck/error.h>

#ifdef __cplusplus
extern "C" {
#endif

struct json_t;
struct train_lines;

/* path must outlive the reader. Memory holds one line and one window of the file. */
FSDPCK_API int train_lines_open(const char *path, struct train_lines **out, struct fsdpck_error *err);
FSDPCK_API void train_lines_close(struct train_lines *l); /* NULL does nothing */
/* The next line without its line end, borrowed until the next call; NULL after the last one. *number counts from 1. */
FSDPCK_API int train_lines_next(struct train_lines *l, const char **line, size_t *nbytes, uint64_t *number,
                                struct fsdpck_error *err);
/* The first line of a file, parsed; the caller owns it. NULL without an error if there is no line or it is not JSON. */
FSDPCK_API int train_lines_first(const char *path, struct json_t **out, struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif
#endif
