/* SPDX-License-Identifier: Apache-2.0 */
/* Splits one JSON array of examples into lines, one for each element, while its bytes stream through. Knows where
 * elements end; the reader of the lines validates them. */
#ifndef TRAIN_DATA_ARRAY_H
#define TRAIN_DATA_ARRAY_H

#include <fsdpck/error.h>

/* Zero-initialise. */
struct data_array {
    uint64_t at;    /* bytes taken in */
    uint32_t depth; /* brackets and braces that are open */
    bool in_string, escaped;
    bool in_element, after_comma, ended;
};

/* Whether text begins as an array does: white space, then '['. */
bool data_array_begins(const char *text, size_t nbytes);
/* Makes lines of the bytes that come next, in their place: returns how many there are now, which may be none. An
 * element that is missing or a second value is FSDPCK_ERR_FORMAT, with the byte's offset. */
int data_array_filter(struct data_array *a, const char *path, char *bytes, size_t *nbytes, struct fsdpck_error *err);
/* No more bytes come. */
int data_array_end(const struct data_array *a, const char *path, struct fsdpck_error *err);

#endif
