/* SPDX-License-Identifier: Apache-2.0 */
/* Usage errors: one line on stderr. */
#ifndef TOOLS_USAGE_H
#define TOOLS_USAGE_H

/* Prints "fsdpck: …" on stderr; returns EXIT_USAGE. */
int usage_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
