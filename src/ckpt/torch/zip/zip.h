/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the directory of a STORED zip that is a byte range of a file, as torch.save writes one. Extracts nothing.
 *
 * Refused: compression, encryption, records that overlap or exceed the range, duplicate names, different names or sizes
 * in central and local headers (torch writes sizes of 0 in a local header with a data descriptor), several disks, wrong
 * counts, bytes between the directory and its end record. zip64 is supported. */
#ifndef CKPT_ZIP_H
#define CKPT_ZIP_H

#include <fsdpck/io.h>

struct fsdpck_zip_record {
    const char *name;
    uint64_t offset; /* of the data, in the file */
    uint64_t nbytes;
    uint32_t crc32; /* as the directory states it; not checked here */
};

struct fsdpck_zip {
    struct fsdpck_zip_record *records;
    size_t nrecords;
    char *text; /* owns the names */
};

/* The zip is bytes [offset, offset + nbytes) of fd. file is for messages. */
int fsdpck_zip_open(const struct fsdpck_io *io, int fd, const char *file, uint64_t offset, uint64_t nbytes,
                    struct fsdpck_zip *out, struct fsdpck_error *err);
void fsdpck_zip_free(struct fsdpck_zip *z);
/* Returns the record ROOT/rest, where ROOT is the folder of `data.pkl`, or NULL. */
const struct fsdpck_zip_record *fsdpck_zip_find(const struct fsdpck_zip *z, const char *rest);

#endif
