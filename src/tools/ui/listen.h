/* SPDX-License-Identifier: Apache-2.0 */
/* The socket that the server listens at. */
#ifndef UI_LISTEN_H
#define UI_LISTEN_H

#include <stdint.h>

#include <fsdpck/error.h>

/* An address of numbers. A port of 0 becomes a free one. */
int listen_address(const char *address, uint32_t *port, int *fd, struct fsdpck_error *err);
/* A socket of the file system, for this user only; one that nobody listens at is replaced. */
int listen_path(const char *path, int *fd, struct fsdpck_error *err);

#endif
