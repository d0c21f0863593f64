/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of a save, for cmocka tests of the commit protocol that take them one at a time. */
#ifndef TESTS_SAVE_STEPS_H
#define TESTS_SAVE_STEPS_H

#include "commit/commit.h"

/* Contents of index.json after save_directory(). */
#define SAVE_NEW "{\"format\":\"fsdpck\",\"who\":\"new\"}"

/* Begins a commit with the record "index.json" (none for a file). */
int save_begin(const struct fsdpck_io *io, const char *out, enum fsdpck_commit_kind kind, const char *uuid_text,
               bool force, struct fsdpck_commit **c, struct fsdpck_error *err);
/* Saves a directory with one file; returns the error code. in_place may be NULL. */
int save_directory(const struct fsdpck_io *io, const char *out, bool force, bool *in_place, struct fsdpck_error *err);

#endif
