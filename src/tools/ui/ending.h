/* SPDX-License-Identifier: Apache-2.0 */
/* How a job ended: by its exit code where it is known, else by the files that it left. */
#ifndef UI_ENDING_H
#define UI_ENDING_H

#include "ui/ui.h"

struct ending {
    const char *state; /* finished, stopped, failed, interrupted; queued: it had not begun */
    int code;          /* -1: unknown */
    char reason[700];  /* "": as asked */
};

/* status: of waitpid(); NULL: unknown. */
void ending_find(const struct ui *ui, const json_t *job, const int *status, struct ending *out);

#endif
