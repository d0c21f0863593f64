/* SPDX-License-Identifier: Apache-2.0 */
/* A shard file cut, in file order, into spans of payloads and of what lies between them, and these into windows: one
 * read each. Pure: no I/O. */
#ifndef CKPT_VERIFY_SPANS_H
#define CKPT_VERIFY_SPANS_H

#include "base/vec.h"
#include "format/table.h"

#define FSDPCK_VERIFY_WINDOW_NBYTES \
    (4u << 20) /* at most; what the disk likes to read at a time. Both are multiples of the hash block */
#define FSDPCK_VERIFY_CACHED_NBYTES (1u << 20) /* what stays in a processor's cache from its copy to its hash */
#define FSDPCK_NO_ENTRY             UINT64_MAX
#define FSDPCK_NO_TURN              UINT32_MAX

struct fsdpck_verify_span {
    uint64_t entry;      /* of the table, or FSDPCK_NO_ENTRY: bytes in no payload */
    uint64_t begin, end; /* of the decoded payload; of the file where there is none */
};

struct fsdpck_verify_window { /* stored spans that follow one another in the file, or one of a compressed payload, or
                                 one long gap */
    uint32_t rank;
    uint32_t turn; /* number among the file's windows that hold gaps; FSDPCK_NO_TURN: holds none */
    size_t first;  /* its spans: up to the next window's */
};

/* Appends those of a rank's file, whose table begins at byte `table`. The table's payloads do not overlap
 * (fsdpck_table_read() saw to that). Spans of a window come to at most `at_once` bytes, a multiple of the hash block; a
 * longer gap, which only a forger leaves, is one span, and costs no memory. *nturns: windows that hold gaps, at least
 * one. */
int fsdpck_verify_cut(uint32_t rank, const struct fsdpck_table *t, uint64_t table, uint64_t at_once,
                      struct fsdpck_vec *spans, struct fsdpck_vec *windows, uint32_t *nturns, struct fsdpck_error *err);

#endif
