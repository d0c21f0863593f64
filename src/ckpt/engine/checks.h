/* SPDX-License-Identifier: Apache-2.0 */
/* Checks CRC-32s of stored records (the zip entries of torch.save files and DCP items) while their bytes are read.
 * Several threads may read the parts of a record in any order: the CRCs of the parts are joined, and the last part
 * completes the check. fsdpck_checks_finish() reads the missing parts. */
#ifndef CKPT_CHECKS_H
#define CKPT_CHECKS_H

#include <stdatomic.h>

#include "engine/source_impl.h"

/* A record with a CRC-32. It lives as long as the source. */
struct fsdpck_crc_record {
    uint64_t offset, nbytes; /* in the file, or in the decoded bytes of the zstd stream */
    uint32_t crc32;
    _Atomic uint32_t state; /* private to checks.c; 0: not begun */
    struct open_record *open;
};

/* Fills *record with the position and CRC-32 that its zip states, and returns it. Returns NULL if there is nothing to
 * check: the record is empty, or has no CRC-32 (torch can omit it) and is counted as unchecked. */
struct fsdpck_crc_record *fsdpck_checks_expect(struct fsdpck_source *src, struct fsdpck_crc_record *record,
                                               uint64_t offset, uint64_t nbytes, uint32_t crc32);

/* Counts records without a CRC-32; fsdpck_source_check() reports them in one note. */
void fsdpck_checks_unchecked(struct fsdpck_source *src, uint64_t nrecords);
void fsdpck_checks_note(const struct fsdpck_options *opt, uint64_t nrecords); /* gives that note; none for 0 records */

/* Adds the stored bytes [begin, begin + nbytes) of the extent's payload, after a read. FSDPCK_ERR_DAMAGED names file
 * and tensor if they complete a record with another CRC-32. */
int fsdpck_checks_bytes(struct fsdpck_source *src, size_t ordinal, const struct fsdpck_extent *e, uint64_t begin,
                        const void *data, uint64_t nbytes, struct fsdpck_error *err);
/* Reads the rest of the record that contains the extent. ordinal: of its tensor; FSDPCK_CHECKS_NO_TENSOR while the
 * source has none. */
#define FSDPCK_CHECKS_NO_TENSOR SIZE_MAX
int fsdpck_checks_extent(struct fsdpck_source *src, size_t ordinal, const struct fsdpck_extent *e,
                         struct fsdpck_error *err);
/* Reads the rest of every record that was read in part; adds to *read_nbytes. */
int fsdpck_checks_finish(struct fsdpck_source *src, uint64_t *read_nbytes, struct fsdpck_error *err);

struct fsdpck_checks *fsdpck_checks_new(struct fsdpck_error *err);
void fsdpck_checks_free(struct fsdpck_checks *c);

#endif
