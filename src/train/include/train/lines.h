/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of a file of data, one after the other: plain, gzip or Zstandard, told by its first bytes. One thread at a time. */
#ifndef TRAIN_LINES_H
#define TRAIN_LINES_H

#include <fsdpck/error.h>

#ifdef __cplusplus
extern "C" {
#endif

struct json_t;
struct train_lines;

/* path must outlive it. A line and a window of the file are in memory. */
FSDPCK_API int train_lines_open(const char *path, struct train_lines **out, struct fsdpck_error *err);
FSDPCK_API void train_lines_close(struct train_lines *l); /* NULL does nothing */
/* The next line without its end, borrowed until the next call; NULL behind the last. *number counts from 1. */
FSDPCK_API int train_lines_next(struct train_lines *l, const char **line, size_t *nbytes, uint64_t *number, struct fsdpck_error *err);
/* The first line of a file, parsed; the caller owns it. NULL without an error if there is no line or it is not JSON. */
FSDPCK_API int train_lines_first(const char *path, struct json_t **out, struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif
#endif
