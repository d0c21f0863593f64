/* SPDX-License-Identifier: Apache-2.0 */
/* An open torch.save zip: its records, its pickle, its byte order. The caller interprets the pickle. */
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
    const char *const *allowed; /* names that the pickle may contain */
    uint64_t max_nbytes;        /* of data.pkl */
    bool check_crc;             /* of data.pkl and byteorder, if the zip has one (torch can omit it) */
};

/* The zip is bytes [offset, offset + nbytes) of a file of src. On failure there is nothing to free. */
int fsdpck_archive_open(struct fsdpck_source *src, uint32_t file, uint64_t offset, uint64_t nbytes,
                        const struct fsdpck_archive_terms *terms, struct fsdpck_archive *out, struct fsdpck_error *err);
/* The same for a packed zip. Offsets refer to its decoded bytes. */
int fsdpck_archive_open_packed(const struct fsdpck_packed *packed, const char *file,
                               const struct fsdpck_archive_terms *terms, struct fsdpck_archive *out,
                               struct fsdpck_error *err);
void fsdpck_archive_free(struct fsdpck_archive *a);

#endif
