/* SPDX-License-Identifier: Apache-2.0 */
/* Runs plan, tokenize and sample to answer a request. A child never outlives its request. */
#ifndef UI_CHILD_H
#define UI_CHILD_H

#include <stddef.h>

#include <fsdpck/error.h>
#include <sys/types.h>

struct child {
    pid_t pid;
    int out, errors; /* its outputs; -1: closed */
};

/* argv ends with NULL; argv[0] is a path. input: text for its standard input, at most 60,000 bytes. */
int child_start(const char *const *argv, const char *cwd, const char *input, struct child *out,
                struct fsdpck_error *err);
/* Kills the child if it still runs. Returns its wait status. */
int child_end(struct child *c);

/* Runs a program for at most `seconds`. *out: its standard output, *said: the last line of its standard error; the
 * caller frees both. Returns its exit code; -1: timeout, killed, or more output than nbytes. */
int child_ask(const char *const *argv, const char *cwd, size_t nbytes, int seconds, char **out, char **said,
              struct fsdpck_error *err);

#endif
