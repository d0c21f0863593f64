/* SPDX-License-Identifier: Apache-2.0 */
/* Reads whole torch.save zips to check the structure and the CRC-32 of every record. */
#ifndef CKPT_ZIP_VERIFY_H
#define CKPT_ZIP_VERIFY_H

#include "engine/source_impl.h"

struct fsdpck_zip_check {
    struct fsdpck_source *src;
    fsdpck_problem_fn report;
    void *ctx;
    struct fsdpck_verify_result *result;
    struct fsdpck_error *err;
    uint8_t *piece;
    uint64_t done_nbytes, total_nbytes;
    uint64_t nunchecked; /* number of records without a CRC-32 (torch can omit it) */
    /* Finds the tensor of a damaged record; NULL: the subject's name is used. */
    void (*find_tensor)(struct fsdpck_source *src, uint32_t file, uint64_t offset, uint64_t nbytes,
                        struct fsdpck_problem *problem);
};

/* A zip in a file, and the name for problems in it. */
struct fsdpck_zip_subject {
    uint32_t file;
    uint64_t offset, nbytes;
    uint64_t unpacked_max; /* not 0: it is a zstd stream, which may decode to this many bytes */
    const char *name;
    uint64_t row_begin, row_end;
};

/* Checks one zip before it is read: its first problem becomes the error. */
int fsdpck_zip_check_one(struct fsdpck_source *src, const struct fsdpck_zip_subject *s, struct fsdpck_error *err);
int fsdpck_zip_check_begin(struct fsdpck_zip_check *c); /* call fsdpck_zip_check_end() even after failure */
void fsdpck_zip_check_end(struct fsdpck_zip_check *c);
/* Reports every problem; fails only on a system error. */
int fsdpck_zip_check_run(struct fsdpck_zip_check *c, const struct fsdpck_zip_subject *s);
/* Turns an error in the data into a problem and returns 0; a system error remains an error. */
int fsdpck_zip_check_report_error(struct fsdpck_zip_check *c, const struct fsdpck_zip_subject *s, int code,
                                  const struct fsdpck_error *e);

#endif
