/* SPDX-License-Identifier: Apache-2.0 */
#include "hosts_loss.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { NUMBER_NBYTES = 12 };

void hosts_loss_in(const char *folder, struct hosts_loss *out)
{
    *out = (struct hosts_loss){ .nstarts = 0 };
    snprintf(out->path, sizeof out->path - NUMBER_NBYTES, "%s/.fsdptrain-loss-", folder);
    out->end = strlen(out->path);
}

void hosts_loss_next(struct hosts_loss *loss)
{
    loss->nstarts++;
    loss->told_at = 0;
    hosts_loss_forget(loss);
}

void hosts_loss_forget(struct hosts_loss *loss)
{
    for (uint32_t i = 1; i <= loss->nstarts; i++) {
        snprintf(loss->path + loss->end, NUMBER_NBYTES, "%u", i);
        unlink(loss->path);
    }
}
