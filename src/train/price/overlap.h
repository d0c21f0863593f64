/* SPDX-License-Identifier: Apache-2.0 */
/* How much of the communication of a micro-batch its computation hides. Gathers follow the schedule of
 * comm/schedule.h; each exchange of gradients begins when its group's are complete. Both share one link, which serves
 * them in the order in which they are asked for. Pure. */
#ifndef TRAIN_OVERLAP_H
#define TRAIN_OVERLAP_H

#include <stdint.h>

/* A use of a group, in order. Times are seconds. */
struct overlap_use {
    double compute;
    double gather;         /* 0: nothing is gathered for it */
    double exchange;       /* 0: no gradients are complete after it */
    uint32_t after, ahead; /* as in struct schedule_entry */
};

struct overlap {
    double seconds; /* from the beginning of the first use until everything is done */
    double exposed; /* of them: nothing was computed */
};

struct overlap overlap_run(const struct overlap_use *uses, uint32_t nuses);

#endif
