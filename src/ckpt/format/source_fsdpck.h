/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the fsdpck reader: loading chunk tables, and the functions for verify. */
#ifndef CKPT_SOURCE_FSDPCK_H
#define CKPT_SOURCE_FSDPCK_H

#include "format/index.h"

/* Gets the chunk table of files[rank], read and checked against the index on first use; thread-safe. Borrowed. */
int fsdpck_index_table(struct fsdpck_source *src, uint32_t rank, const struct fsdpck_table **table,
                       struct fsdpck_error *err);

/* fsdpck_source_ops.verify. */
int fsdpck_verify_fsdpck(struct fsdpck_source *src, bool quick, fsdpck_problem_fn report, void *report_ctx,
                         struct fsdpck_verify_result *result, struct fsdpck_error *err);

#endif
