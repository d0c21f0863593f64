/* SPDX-License-Identifier: Apache-2.0 */
/* Splits data files into parts of whole lines, numbered across all files. The content of a part depends on the files
 * only. A part begins with the first line that begins at or behind a multiple of the part size, and ends where the next
 * part begins. */
#ifndef TRAIN_DATA_PARTS_H
#define TRAIN_DATA_PARTS_H

#include <train/config.h>

enum { DATA_MAX_LINE = 1 << 28 };

/* Zero-initialise; free text with free(). */
struct data_part {
    size_t number;
    uint32_t file;
    char *text; /* (nbytes) */
    size_t nbytes, capacity;
    uint64_t begin,
        line; /* of the first line: byte offset in the unpacked file; number from 1, or 0: call data_count_lines() */
};

struct data_parts;

int data_parts_open(const struct train_config *config, struct data_parts **out, struct fsdpck_error *err);
void data_parts_close(struct data_parts *p); /* NULL does nothing */
/* Advances to the next part (first call: to the first part). Sets its number, or *end. Cheap if the file is not
 * packed. */
int data_parts_step(struct data_parts *p, size_t *number, bool *end, struct fsdpck_error *err);
/* Reads the lines of the current part; at most once per part. A line longer than DATA_MAX_LINE is truncated, but
 * remains longer than that. */
int data_parts_take(struct data_parts *p, struct data_part *out, struct fsdpck_error *err);

/* Progress of the reader, in bytes of the files on disk. */
void data_parts_progress(const struct data_parts *p, uint64_t *done_nbytes, uint64_t *total_nbytes);

/* Number of lines that begin before byte `until` of the unpacked file. */
int data_count_lines(const char *path, uint64_t until, uint64_t *out, struct fsdpck_error *err);

#endif
