/* SPDX-License-Identifier: Apache-2.0 */
/* Files whose path a user typed. Opening never blocks; only regular files are accepted. */
#ifndef TRAIN_TEXT_FILE_H
#define TRAIN_TEXT_FILE_H

#include <fsdpck/error.h>

struct json_t;

/* Opens a regular file for reading. A FIFO, device, socket or folder is an error that names its kind; nothing blocks.
 * On failure *fd is -1. */
int text_file_open(const char *path, int *fd, uint64_t *nbytes, struct fsdpck_error *err);
/* Reads a file of at most max_nbytes and appends a NUL. The caller frees *out with free(). On failure *out is NULL. */
int text_file_read(const char *path, size_t max_nbytes, char **out, size_t *nbytes, struct fsdpck_error *err);
/* Parses a JSON file without duplicate keys; the caller owns *out. FSDPCK_ERR_MISSING: no such file; FSDPCK_ERR_FORMAT:
 * "line 3: …". On failure *out is NULL. */
int text_file_json(const char *path, struct json_t **out, struct fsdpck_error *err);
/* Checks that path is a folder, as a model must be. */
int text_model_folder(const char *path, struct fsdpck_error *err);

#endif
