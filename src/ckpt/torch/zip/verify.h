/* SPDX-License-Identifier: Apache-2.0 */
/* Reading whole torch.save zips to check them: structure and CRC-32 of every record. */
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
    uint64_t nunchecked; /* records without a CRC-32: torch can be told to write none */
    /* Which tensor a damaged record belongs to; NULL: the subject's name says. */
    void (*blame)(struct fsdpck_source *src, uint32_t file, uint64_t offset, uint64_t nbytes,
                  struct fsdpck_problem *problem);
};

/* A zip in a file, and what a problem in it belongs to. */
struct fsdpck_zip_subject {
    uint32_t file;
    uint64_t offset, nbytes;
    uint64_t unpacked_max; /* not 0: it is in a zstd stream, and may have so many bytes */
    const char *name;
    uint64_t row_begin, row_end;
};

/* Checks one zip that is about to be read: its first problem becomes the error. */
int fsdpck_zip_check_one(struct fsdpck_source *src, const struct fsdpck_zip_subject *s, struct fsdpck_error *err);
int fsdpck_zip_check_begin(struct fsdpck_zip_check *c); /* fsdpck_zip_check_end() in any case */
void fsdpck_zip_check_end(struct fsdpck_zip_check *c);
/* Reports every problem; fails only where the system does. */
int fsdpck_zip_check_run(struct fsdpck_zip_check *c, const struct fsdpck_zip_subject *s);
/* An error that is about the bytes becomes a problem, and 0; one of the system stays an error. */
int fsdpck_zip_check_report_error(struct fsdpck_zip_check *c, const struct fsdpck_zip_subject *s, int code,
                                  const struct fsdpck_error *e);

#endif
