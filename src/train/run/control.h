/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of the user during a run: signals, which the supervisor passes on, and output_dir/control, a file with one
 * word. */
#ifndef TRAIN_CONTROL_H
#define TRAIN_CONTROL_H

#include "run/optimize.h"

struct control {
    const struct job *job;
    struct job_status *job_status;
    uint64_t nsaves; /* asked for by signal, and taken */
    bool blind;      /* the file is rank 0's; or it cannot be removed: it is not obeyed any more */
};

/* Of the first rank of each supervisor. A file that was there before the run is removed, and said. */
void control_open(struct control *c, const struct rank *r);
/* At the boundary of a step: adds what was asked for since the last look to *asked, and answers what cannot be done. */
void control_look(struct control *c, struct asked *asked);

#endif
