/* SPDX-License-Identifier: Apache-2.0 */
/* Memory shared by the ranks of a host that another program has started. */
#ifndef TRAIN_ONE_HOST_H
#define TRAIN_ONE_HOST_H

#include "comm/hosts.h"

/* Collective, and for use once ranks can communicate: zeroed memory of nbytes, which the ranks of a host share.
 * Fails on every rank if the ranks of any host cannot share memory. */
int one_host_map(struct comm *c, const struct hosts *hosts, size_t nbytes, unsigned char **out,
                 struct fsdpck_error *err);
enum { ONE_HOST_PATH = 64 };
/* Collective. path: by which the other ranks of a host open the file `fd` of its first rank, for which fd counts; empty
 * if that is -1, or if the rank is alone. For ranks that share memory. */
int one_host_path(struct comm *c, const struct hosts *hosts, int fd, char path[ONE_HOST_PATH],
                  struct fsdpck_error *err);
void one_host_unmap(unsigned char *memory, size_t nbytes); /* NULL does nothing */

#endif
