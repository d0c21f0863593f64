/* Compresses blocks and writes them, a few at a time, with their records. Knows nothing of chunks or shards. */
#include "engine/packer.h"

#include <stdlib.h>

#include "engine/decode.h"

int fsdpck_packer_init(struct fsdpck_packer *p, struct fsdpck_error *err)
{
    p->encoder = fsdpck_encoder_new();
    p->packed = malloc(FSDPCK_PACKER_BLOCKS * FSDPCK_BLOCK_NBYTES);
    return p->encoder && p->packed ? 0 : fsdpck_error_nomem(err, FSDPCK_PACKER_NBYTES);
}

void fsdpck_packer_free(struct fsdpck_packer *p)
{
    fsdpck_encoder_free(p->encoder);
    free(p->packed);
    *p = (struct fsdpck_packer){ 0 };
}

/* At most FSDPCK_PACKER_BLOCKS; at: bytes before them. */
static int write_some(struct fsdpck_packer *p, const struct fsdpck_packing *to, const uint8_t *data, uint64_t nbytes, uint64_t at,
                      struct fsdpck_error *err)
{
    uint8_t records[FSDPCK_PACKER_BLOCKS * FSDPCK_RECORD_NBYTES];
    uint64_t fill = 0, count = 0;
    for (uint64_t done = 0; done < nbytes; done += FSDPCK_BLOCK_NBYTES, count++) {
        uint64_t left = nbytes - done, n = left < FSDPCK_BLOCK_NBYTES ? left : FSDPCK_BLOCK_NBYTES;
        struct fsdpck_record r = { .begin = to->payload + at + fill };
        r.nbytes = fsdpck_block_encode(p->encoder, &to->planes, data + done, (uint32_t)n, p->packed + fill);
        fsdpck_hash(p->packed + fill, r.nbytes, &r.hash);
        fsdpck_record_store(&r, records + count * FSDPCK_RECORD_NBYTES);
        fill += r.nbytes;
    }
    int r = fsdpck_out_files_write(to->out, to->file, p->packed, fill, to->payload + at, err);
    uint64_t place = to->records + at / FSDPCK_BLOCK_NBYTES * FSDPCK_RECORD_NBYTES;
    return r == 0 ? fsdpck_out_files_write(to->out, to->file, records, count * FSDPCK_RECORD_NBYTES, place, err) : r;
}

int fsdpck_packer_write(struct fsdpck_packer *p, const struct fsdpck_packing *to, const uint8_t *data, uint64_t nbytes, struct fsdpck_error *err)
{
    const uint64_t most = FSDPCK_PACKER_BLOCKS * FSDPCK_BLOCK_NBYTES;
    int r = 0;
    for (uint64_t at = 0; r == 0 && at < nbytes; at += most)
        r = write_some(p, to, data + at, nbytes - at < most ? nbytes - at : most, at, err);
    return r;
}
