/* SPDX-License-Identifier: Apache-2.0 */
/* The engine: moves the bytes of a selection from a source into chunks of output files, each byte read and written
 * once, within a memory budget. A sink is a list of files and chunks; the sink itself writes the bytes around the
 * payloads. */
#ifndef CKPT_TRANSFER_H
#define CKPT_TRANSFER_H

#include "engine/transfer_plan.h"

/* Creates the files and moves every payload. Bytes outside payloads stay zero. No fsync. */
int fsdpck_transfer_run(struct fsdpck_transfer *t, struct fsdpck_transfer_result *result, struct fsdpck_error *err);
/* Returns the smallest memory budget with which the source can be transferred. */
uint64_t fsdpck_transfer_least_memory(const struct fsdpck_source *src);

#endif
