/* One thread's workspace for compressing blocks on their way into a file. */
#ifndef CKPT_PACKER_H
#define CKPT_PACKER_H

#include "base/block_codec.h"
#include "base/hash.h"
#include "base/out_files.h"

#define FSDPCK_PACKER_BLOCKS 8u
#define FSDPCK_PACKER_NBYTES ((FSDPCK_PACKER_BLOCKS + 8) * FSDPCK_BLOCK_NBYTES) /* of memory, at most */

struct fsdpck_packer {
    struct fsdpck_encoder *encoder;
    uint8_t *packed; /* blocks, one after another */
};

int fsdpck_packer_init(struct fsdpck_packer *p, struct fsdpck_error *err);
void fsdpck_packer_free(struct fsdpck_packer *p);

/* Where blocks go. The records' `begin` is their place in the file for now: where the chunk will begin is not known while it is written. */
struct fsdpck_packing {
    struct fsdpck_out_files *out;
    uint32_t file;
    struct fsdpck_planes planes;
    uint64_t payload; /* file offset for the first of these blocks; no more room is taken than by their elements */
    uint64_t records; /* file offset of its record */
};
/* Whole blocks, but for the last of a chunk. */
int fsdpck_packer_write(struct fsdpck_packer *p, const struct fsdpck_packing *to, const uint8_t *data, uint64_t nbytes, struct fsdpck_error *err);

#endif
