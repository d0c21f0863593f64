/* SPDX-License-Identifier: Apache-2.0 */
/* One thread's workspace for compressing blocks on their way into a file. */
#ifndef CKPT_PACKER_H
#define CKPT_PACKER_H

#include "base/block_codec.h"
#include "base/hash.h"
#include "base/out_files.h"

#define FSDPCK_PACKER_OWN_NBYTES (8u * FSDPCK_BLOCK_NBYTES) /* of memory, beside what it gathers */

struct fsdpck_record;
struct fsdpck_turns;

/* Where a lane's blocks go: behind those of the lanes before it (turns), or where their elements would lie
 * uncompressed. The records' `begin` is their place in the file for now: where the chunk will begin is not known while
 * it is written. */
struct fsdpck_packing {
    struct fsdpck_out_files *out;
    uint32_t file;
    struct fsdpck_planes planes;
    uint64_t records; /* file offset of the record of the chunk's block 0 */
};

struct fsdpck_packer {
    struct fsdpck_encoder *encoder;
    uint8_t *packed; /* blocks, one after another */
    struct fsdpck_record *records;
    uint64_t max_blocks, fill, count;
    uint64_t first;             /* number of the first of them in its chunk */
    struct fsdpck_turns *turns; /* NULL: the lane has none */
    size_t lane;
    bool my_turn;
    uint64_t at; /* file offset for packed[0], in turn */
};

/* Gathers up to so many blocks. */
int fsdpck_packer_init(struct fsdpck_packer *p, uint64_t max_blocks, struct fsdpck_error *err);
void fsdpck_packer_free(struct fsdpck_packer *p);
/* A lane begins; turns NULL: it has none. */
void fsdpck_packer_begin(struct fsdpck_packer *p, struct fsdpck_turns *turns, size_t lane);
/* Whole blocks from number `first` of the chunk on, the last of a chunk may be short. With turns they may stay in
 * memory; without, they are written at `place`, and take no more room than their elements. */
int fsdpck_packer_write(struct fsdpck_packer *p, const struct fsdpck_packing *to, uint64_t first, uint64_t file_offset,
                        const uint8_t *data, uint64_t nbytes, struct fsdpck_error *err);
/* The lane has ended: writes what is in memory, and passes the turn on. */
int fsdpck_packer_end(struct fsdpck_packer *p, const struct fsdpck_packing *to, struct fsdpck_error *err);

#endif
