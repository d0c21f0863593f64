/* SPDX-License-Identifier: Apache-2.0 */
/* A directory on a simulated machine, for tests of what writers leave over in it. Shared by the tests of
 * fsdpck_leftovers() and of removal. */
#ifndef TESTS_LEFTOVER_CASE_H
#define TESTS_LEFTOVER_CASE_H

#include <fsdpck/check.h>

#include "commit/commit.h"
#include "faulty_io.h"

#define A "aaaaaaaa-aaaa-4aaa-9aaa-aaaaaaaaaaaa"
#define B "bbbbbbbb-bbbb-4bbb-9bbb-bbbbbbbbbbbb"

/* The simulated machine and boot. */
#define HERE       "here"
#define BOOT       "22222222-2222-4222-9222-222222222222"
#define OTHER_BOOT "55555555-5555-4555-9555-555555555555"

struct leftover_case {
    char *top, *root;
    struct faulty *f;
    char report[8192]; /* one line per left-over: "NAME dead removed: why\n" */
};

/* For cmocka_unit_test_setup_teardown(): *state is a struct leftover_case. */
int leftover_setup(void **state);
int leftover_teardown(void **state);
/* Makes a table of file operations that run on the simulated machine. */
struct faulty *leftover_machine(const struct leftover_case *x);
/* A fsdpck_leftover_fn; ctx: a struct leftover_case. */
void leftover_report(void *ctx, const struct fsdpck_leftover *l);
/* Calls fsdpck_leftovers() for a path below root; x->report gets the result. */
int leftover_list(struct leftover_case *x, const char *name, bool remove);
/* Begins a commit with force. */
int leftover_begin(struct leftover_case *x, const char *name, const char *uuid_text, struct fsdpck_commit **c);

#endif
