/* SPDX-License-Identifier: Apache-2.0 */
/* One way to commit, with the old and the new state in which it may end. Shared by the tests of the commit protocol and
 * of its left-overs. */
#ifndef TESTS_SAVE_CASE_H
#define TESTS_SAVE_CASE_H

#include "commit/commit.h"
#include "faulty_io.h"

struct save_case {
    const char *name;
    enum fsdpck_commit_kind kind;
    const char *out; /* below the root */
    bool old;        /* an output exists, and is replaced with force */
    bool empty;      /* OUT is an empty directory */
    bool mount;      /* OUT is a mount point: written in place */
    bool no_exchange, no_rename_new;
    int spare_fsync; /* number (from 1) of an fsync that no crash needs; it precedes the undo of a failed exchange */
};
extern const struct save_case save_cases[];
extern const size_t nsave_cases;

#define SAVE_UUID "11111111-1111-4111-9111-111111111111"

void save_case_setup(const struct save_case *c, const char *root); /* creates the old state */
void save_case_lies(const struct save_case *c, struct faulty *f, const char *root);
/* Begins, writes and finishes; abandons on failure. */
int save_case_run(const struct save_case *c, const struct fsdpck_io *io, const char *root, struct fsdpck_error *err);
/* Return true if the root is exactly as before, or exactly as after a save (in place or not). Empty parents do not
 * count. */
bool save_case_is_old(const struct save_case *c, const char *root);
bool save_case_is_new(const struct save_case *c, const char *root);
/* Returns true if OUT, apart from left-overs, is wholly old or wholly new. */
bool save_case_is_whole(const struct save_case *c, const char *root);

#endif
