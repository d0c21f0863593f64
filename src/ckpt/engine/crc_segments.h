/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a record that were read so far, in any order, and their CRC-32s: a sorted list of disjoint, non-adjacent
 * segments. Neighbours are joined into one segment, so sequential reads need only one. Pure: reads nothing. */
#ifndef CKPT_CRC_SEGMENTS_H
#define CKPT_CRC_SEGMENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/vec.h"

/* Bytes [begin, end) of the record. */
struct crc_segment {
    uint64_t begin, end;
    uint32_t crc32;
};

/* Initialise with CRC_SEGMENTS_NONE. */
struct crc_segments {
    struct fsdpck_vec list; /* of struct crc_segment */
    bool dropped;           /* there were too many: none is kept until the owner reads the record in order and clears
                               this */
};
#define CRC_SEGMENTS_NONE \
    { \
        .list = FSDPCK_VEC(struct crc_segment) \
    }

/* Finds a missing part of [*begin, *end): moves *begin to the first missing byte from there on, and *end to the start
 * of the next segment if that is earlier. *begin >= *end: nothing is missing. */
void fsdpck_crc_segments_gap(const struct crc_segments *s, uint64_t *begin, uint64_t *end);
/* Adds a segment; ignores it if a part of it is in the list already. Returns 0 or FSDPCK_ERR_NOMEM. */
int fsdpck_crc_segments_add(struct crc_segments *s, const struct crc_segment *more, struct fsdpck_error *err);
/* Returns whether all nbytes of the record are in the list; *crc32 is then that of the record. */
bool fsdpck_crc_segments_all(const struct crc_segments *s, uint64_t nbytes, uint32_t *crc32);
void fsdpck_crc_segments_free(struct crc_segments *s);

#endif
