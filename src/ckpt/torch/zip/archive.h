/* SPDX-License-Identifier: Apache-2.0 */
/* A torch.save zip, opened: its records, the pickle in it, its byte order. What the pickle means is the caller's. */
#ifndef CKPT_ARCHIVE_H
#define CKPT_ARCHIVE_H

#include "engine/source_impl.h"
#include "torch/zip/packed.h"
#include "torch/pickle/pickle.h"
#include "torch/zip/zip.h"

struct fsdpck_archive {
    struct fsdpck_zip zip;
    struct fsdpck_pickle *pickle;
    bool swap; /* big-endian */
};

struct fsdpck_archive_terms {
    const char *const *allowed; /* names that the pickle may hold */
    uint64_t max_nbytes;        /* of data.pkl */
    bool check_crc;             /* of data.pkl and byteorder, where the zip has one (torch can be told to write none) */
};

/* The zip is bytes [offset, offset + nbytes) of a file of src. On failure nothing is left to free. */
int fsdpck_archive_open(struct fsdpck_source *src, uint32_t file, uint64_t offset, uint64_t nbytes,
                        const struct fsdpck_archive_terms *terms, struct fsdpck_archive *out, struct fsdpck_error *err);
/* The same of one that is packed. Offsets are those in what it decodes to. */
int fsdpck_archive_open_packed(const struct fsdpck_packed *packed, const char *file,
                               const struct fsdpck_archive_terms *terms, struct fsdpck_archive *out,
                               struct fsdpck_error *err);
void fsdpck_archive_free(struct fsdpck_archive *a);

#endif
