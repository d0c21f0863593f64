/* SPDX-License-Identifier: Apache-2.0 */
/* Divides a shard file, in file order, into spans of payloads and of the bytes between them, and these into windows:
 * one read each. Pure: no I/O. */
#ifndef CKPT_VERIFY_SPANS_H
#define CKPT_VERIFY_SPANS_H

#include "base/vec.h"
#include "format/table.h"

#define FSDPCK_VERIFY_WINDOW_NBYTES \
    (4u << 20) /* maximum, a good read size for disks. Both are multiples of the hash block */
#define FSDPCK_VERIFY_CACHED_NBYTES (1u << 20) /* small enough to stay in the processor's cache until hashed */
#define FSDPCK_NO_ENTRY             UINT64_MAX
#define FSDPCK_NO_TURN              UINT32_MAX

struct fsdpck_verify_span {
    uint64_t entry;      /* of the table, or FSDPCK_NO_ENTRY: bytes outside payloads */
    uint64_t begin, end; /* of the decoded payload; of the file if there is none */
};

struct fsdpck_verify_window { /* stored spans that are contiguous in the file, or one of a compressed payload, or one
                                 long gap */
    uint32_t rank;
    uint32_t turn; /* number among the file's windows with gaps; FSDPCK_NO_TURN: none */
    size_t first;  /* its first span; they end at the next window's */
};

/* Appends the spans of a rank's file, whose table begins at byte `table`. The table's payloads do not overlap
 * (fsdpck_table_read() checked this). The spans of a window have at most `at_once` bytes together, a multiple of the
 * hash block. A longer gap, which only a forged file has, is one span, and needs no memory. *nturns: windows with gaps,
 * at least one. */
int fsdpck_verify_cut(uint32_t rank, const struct fsdpck_table *t, uint64_t table, uint64_t at_once,
                      struct fsdpck_vec *spans, struct fsdpck_vec *windows, uint32_t *nturns, struct fsdpck_error *err);

#endif
