/* SPDX-License-Identifier: Apache-2.0 */
/* Orders lanes whose output offset depends on the compressed sizes before it: they write their file one after another.
 * While one lane writes, the others read and compress; a lane waits only for the sizes of the output before it. */
#ifndef CKPT_TURNS_H
#define CKPT_TURNS_H

#include "engine/lanes.h"

struct fsdpck_turns; /* opaque */

/* For a transfer that compresses. A lane has a turn if all chunks of its file, up to the lane's, are runs that are
 * written from their first byte to their last. From the first other lane on, a file's lanes write at their uncompressed
 * offsets. */
struct fsdpck_turns *fsdpck_turns_new(const struct fsdpck_transfer *t, const struct fsdpck_lanes *lanes,
                                      const volatile int *stop, struct fsdpck_error *err);
void fsdpck_turns_free(struct fsdpck_turns *t); /* does nothing for NULL */
bool fsdpck_turns_has(const struct fsdpck_turns *t, size_t lane);
/* Waits until the earlier lanes of its file have ended; *at: their end. Fails if one of them failed, or the transfer
 * was asked to stop. */
int fsdpck_turns_wait(struct fsdpck_turns *t, size_t lane, uint64_t *at, struct fsdpck_error *err);
void fsdpck_turns_end(struct fsdpck_turns *t, size_t lane, uint64_t at);
/* Reports that a lane failed: waiting lanes get this error. */
void fsdpck_turns_fail(struct fsdpck_turns *t, int code, const struct fsdpck_error *why);

#endif
