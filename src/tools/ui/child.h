/* SPDX-License-Identifier: Apache-2.0 */
/* Short programs whose output is an answer: plan, tokenize, sample. They end with the request. */
#ifndef UI_CHILD_H
#define UI_CHILD_H

#include <stddef.h>

#include <fsdpck/error.h>
#include <sys/types.h>

struct child {
    pid_t pid;
    int out, errors; /* its outputs; -1: closed */
};

/* argv: up to NULL; argv[0] is a path. input: what its standard input says, at most 60,000 bytes. */
int child_start(const char *const *argv, const char *cwd, const char *input, struct child *out,
                struct fsdpck_error *err);
/* Kills it if it runs, and returns its status of waitpid(). */
int child_end(struct child *c);

/* Runs one to its end, for so many seconds at most. *out: its standard output (owned), *said: the last line of its
 * other output (owned). Returns its exit code; -1: it took too long, was killed or wrote more than nbytes. */
int child_ask(const char *const *argv, const char *cwd, size_t nbytes, int seconds, char **out, char **said,
              struct fsdpck_error *err);

#endif
