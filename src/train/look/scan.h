/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a line of metrics.jsonl, as the trainer writes it, several times faster than a JSON parser. */
#ifndef TRAIN_SCAN_H
#define TRAIN_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SCAN_ALONE = -1 };

/* A number of a line. key: within the line, without a zero at its end. NaN: null. */
struct scanned {
    const char *key;
    size_t nkey;
    int32_t index; /* in the list that is the key's value; SCAN_ALONE: the value is no list */
    double value;
};

struct scan {
    struct scanned *at; /* (count) owned; released with free() */
    size_t count, capacity;
};

/* True: the line is an object whose values are numbers, null and lists of both, and its keys are plain. False: it may
 * be anything else, JSON too; *out then holds nothing of use. The line ends with a zero. */
bool scan_line(const char *line, struct scan *out);

#endif
