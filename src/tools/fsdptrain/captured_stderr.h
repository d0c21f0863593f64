/* SPDX-License-Identifier: Apache-2.0 */
/* All ranks of a launcher find the same mistake in their command line, and only one should report it. So each captures
 * its stderr until it knows which one does. */
#ifndef TOOLS_CAPTURED_STDERR_H
#define TOOLS_CAPTURED_STDERR_H

#include "launcher.h"

struct captured_stderr {
    int out, words; /* the real stderr, and the file that replaces it; -1: not captured */
};

/* Does nothing unless the ranks of the launch can join. */
struct captured_stderr capture_stderr(const struct launch *launch);
/* Restores stderr, and prints the words unless they are a mistake (status) that another rank reports. */
void print_captured(const struct captured_stderr *h, const struct launch *launch, int status);

#endif
