/* SPDX-License-Identifier: Apache-2.0 */
/* Orders lanes whose output has no file offset before it is compressed: they write their file one after another. While
 * one lane writes, the others read and compress; a lane waits only for the sizes of the output before it. */
#ifndef CKPT_TURNS_H
#define CKPT_TURNS_H

#include "engine/lanes.h"

struct fsdpck_turns; /* opaque */

/* Of a transfer that compresses. A lane has a turn where all chunks of its file, up to it, are runs that are written
 * from their first byte to their last; from the first other lane on, a file's lanes write where their bytes would be
 * uncompressed. */
struct fsdpck_turns *fsdpck_turns_new(const struct fsdpck_transfer *t, const struct fsdpck_lanes *lanes,
                                      const volatile int *stop, struct fsdpck_error *err);
void fsdpck_turns_free(struct fsdpck_turns *t); /* NULL does nothing */
bool fsdpck_turns_has(const struct fsdpck_turns *t, size_t lane);
/* Waits until the lanes before it in its file have ended; *at: where they did. An error where one of them failed, or
 * all is to stop. */
int fsdpck_turns_wait(struct fsdpck_turns *t, size_t lane, uint64_t *at, struct fsdpck_error *err);
void fsdpck_turns_end(struct fsdpck_turns *t, size_t lane, uint64_t at);
/* A lane failed: whoever waits gets this error. */
void fsdpck_turns_fail(struct fsdpck_turns *t, int code, const struct fsdpck_error *why);

#endif
