/* SPDX-License-Identifier: Apache-2.0 */
/* One thread's workspace for compressing blocks on their way into a file. */
#ifndef CKPT_PACKER_H
#define CKPT_PACKER_H

#include "base/block_codec.h"
#include "base/hash.h"
#include "base/out_files.h"

#define FSDPCK_PACKER_OWN_NBYTES (8u * FSDPCK_BLOCK_NBYTES) /* memory besides the gathered blocks */

struct fsdpck_record;
struct fsdpck_turns;

/* The destination of a lane's blocks: after those of the earlier lanes (turns), or at their elements' uncompressed
 * offset. A record's `begin` is an offset in the file until format/shard_compact.c moves the chunk together: then it is
 * an offset in the chunk's payload. */
struct fsdpck_packing {
    struct fsdpck_out_files *out;
    uint32_t file;
    struct fsdpck_planes planes;
    uint64_t records; /* file offset of the record of the chunk's block 0 */
};

struct fsdpck_packer {
    struct fsdpck_encoder *encoder;
    uint8_t *packed; /* blocks, contiguous */
    struct fsdpck_record *records;
    uint64_t max_blocks, fill, count;
    uint64_t first;             /* number of the first block in its chunk */
    struct fsdpck_turns *turns; /* NULL: none for this lane */
    size_t lane;
    bool my_turn;
    uint64_t at; /* file offset of packed[0], in turn */
};

/* Gathers at most max_blocks blocks. */
int fsdpck_packer_init(struct fsdpck_packer *p, uint64_t max_blocks, struct fsdpck_error *err);
void fsdpck_packer_free(struct fsdpck_packer *p);
/* Begins a lane; turns NULL: none. */
void fsdpck_packer_begin(struct fsdpck_packer *p, struct fsdpck_turns *turns, size_t lane);
/* Takes whole blocks from number `first` of the chunk on; the chunk's last block may be short. With turns they may stay
 * in memory; without, they are written at file_offset and take no more space than their elements. */
int fsdpck_packer_write(struct fsdpck_packer *p, const struct fsdpck_packing *to, uint64_t first, uint64_t file_offset,
                        const uint8_t *data, uint64_t nbytes, struct fsdpck_error *err);
/* Ends the lane: writes the blocks in memory, and passes the turn on. */
int fsdpck_packer_end(struct fsdpck_packer *p, const struct fsdpck_packing *to, struct fsdpck_error *err);

#endif
