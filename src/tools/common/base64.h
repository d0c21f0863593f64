/* SPDX-License-Identifier: Apache-2.0 */
/* Base64 (RFC 4648), for files inside a page. */
#ifndef TOOLS_BASE64_H
#define TOOLS_BASE64_H

#include <stddef.h>

/* Owned, ends with a NUL; NULL: out of memory. */
char *base64_of(const void *bytes, size_t nbytes);

#endif
