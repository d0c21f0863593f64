/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of the user during a run: signals, which the supervisor forwards, and output_dir/control, a file with one
 * word. */
#ifndef TRAIN_CONTROL_H
#define TRAIN_CONTROL_H

#include "run/optimize.h"

struct control {
    const struct job *job;
    struct job_status *job_status;
    uint64_t nsaves;  /* number of saves requested by signal that have been handled */
    bool ignore_file; /* the file belongs to rank 0, or it cannot be removed */
};

/* For the first rank of each supervisor. Removes a file that is older than the run, and prints a note. */
void control_open(struct control *c, const struct rank *r);
/* Call between steps. Adds the requests since the last call to *asked; prints a note for those that cannot be done. */
void control_poll(struct control *c, struct requests *requests);

#endif
