/* SPDX-License-Identifier: Apache-2.0 */
/* The socket that the server listens at. */
#ifndef UI_LISTEN_H
#define UI_LISTEN_H

#include <stdint.h>

#include <fsdpck/error.h>

/* address: numeric IPv4 or IPv6. Port 0 becomes a free port. */
int listen_address(const char *address, uint32_t *port, int *fd, struct fsdpck_error *err);
/* A Unix socket with mode 0600. A stale socket is replaced. */
int listen_path(const char *path, int *fd, struct fsdpck_error *err);

#endif
