/* SPDX-License-Identifier: Apache-2.0 */
/* Splits a JSON array of examples into lines, one per element, while its bytes stream through. Finds the ends of
 * elements only; the reader of the lines validates them. */
#ifndef TRAIN_DATA_ARRAY_H
#define TRAIN_DATA_ARRAY_H

#include <fsdpck/error.h>

/* Zero-initialise. */
struct data_array {
    uint64_t at;    /* number of bytes consumed */
    uint32_t depth; /* number of open brackets and braces */
    bool in_string, escaped;
    bool in_element, after_comma, ended;
};

/* True if text begins like an array: white space, then '['. */
bool data_array_begins(const char *text, size_t nbytes);
/* Converts the next bytes to lines, in place. Sets *nbytes to the new length, which may be 0. A missing element or a
 * second value is FSDPCK_ERR_FORMAT, with the offset of the byte. */
int data_array_filter(struct data_array *a, const char *path, char *bytes, size_t *nbytes, struct fsdpck_error *err);
/* Call at the end of the input. */
int data_array_end(const struct data_array *a, const char *path, struct fsdpck_error *err);

#endif
