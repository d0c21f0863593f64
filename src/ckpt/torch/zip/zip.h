/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the directory of a STORED zip that is a byte range of a file, as torch.save writes one. Nothing is extracted.
 *
 * Refused: compression, encryption, records outside the range or on top of each other, a name twice, central and local
 * names or sizes that disagree (sizes of 0 in a local header with a data descriptor are torch's habit), several disks,
 * counts that lie, bytes between the directory and its end record. zip64 is read. */
#ifndef CKPT_ZIP_H
#define CKPT_ZIP_H

#include <fsdpck/io.h>

struct fsdpck_zip_record {
    const char *name;
    uint64_t offset; /* of the data, in the file */
    uint64_t nbytes;
    uint32_t crc32; /* what the directory says; not checked here */
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
/* The record whose name is ROOT/rest, where ROOT is the folder of `data.pkl`; NULL where there is none. */
const struct fsdpck_zip_record *fsdpck_zip_find(const struct fsdpck_zip *z, const char *rest);

#endif
