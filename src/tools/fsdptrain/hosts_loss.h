/* SPDX-License-Identifier: Apache-2.0 */
/* The file by which a rank tells of a loss (--loss-file). Each start of the ranks has its own: a rank of a lost host
 * may tell of it only when that host is back, and must not end the ranks that run then. */
#ifndef TOOLS_HOSTS_LOSS_H
#define TOOLS_HOSTS_LOSS_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

struct hosts_loss {
    char path[PATH_MAX]; /* of this start */
    size_t end;          /* where its number begins in the path */
    uint32_t nstarts;
    double told_at; /* time when a rank of this start told; 0: none has */
};

void hosts_loss_in(const char *folder, struct hosts_loss *out);
/* Call before each start. */
void hosts_loss_next(struct hosts_loss *loss);
/* Removes the files of all starts. */
void hosts_loss_forget(struct hosts_loss *loss);

#endif
