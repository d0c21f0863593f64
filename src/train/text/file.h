/* SPDX-License-Identifier: Apache-2.0 */
/* Files whose path a user typed: opened without blocking; anything but a file is refused. */
#ifndef TRAIN_TEXT_FILE_H
#define TRAIN_TEXT_FILE_H

#include <fsdpck/error.h>

struct json_t;

/* For reading. A FIFO, device, socket or folder is refused by its kind; nothing blocks. On failure *fd is -1. */
int text_file_open(const char *path, int *fd, uint64_t *nbytes, struct fsdpck_error *err);
/* The bytes of a file of at most max_nbytes, with a NUL behind them; free(). On failure *out is NULL. */
int text_file_read(const char *path, size_t max_nbytes, char **out, size_t *nbytes, struct fsdpck_error *err);
/* A file of JSON without duplicate keys; owned. FSDPCK_ERR_MISSING: there is none; FSDPCK_ERR_FORMAT: "line 3: …". On
 * failure *out is NULL. */
int text_file_json(const char *path, struct json_t **out, struct fsdpck_error *err);
/* Whether a model can lie there: it is a folder. */
int text_model_folder(const char *path, struct fsdpck_error *err);

#endif
