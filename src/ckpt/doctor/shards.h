/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers in the names of a folder's files of weights: "model-00002-of-00003.safetensors". */
#ifndef CKPT_DOCTOR_SHARDS_H
#define CKPT_DOCTOR_SHARDS_H

#include <stddef.h>
#include <stdint.h>

struct doctor_shards {
    uint64_t nfiles;         /* files with such a name */
    uint64_t total;          /* of the first one; 0: there is none */
    const char *first, *odd; /* odd: a file whose name has another total, or NULL */
    uint64_t nmissing;       /* of `total` numbers */
    char missing[300];       /* "2, 5-7" */
};

/* Reads the names alone, of a folder that has no index: one that has needs no numbers. The names are borrowed. */
void fsdpck_doctor_shards_read(char *const *names, size_t nnames, struct doctor_shards *out);

#endif
