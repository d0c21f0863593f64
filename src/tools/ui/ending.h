/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out how a job ended: from its exit code if known, else from the files of its run. */
#ifndef UI_ENDING_H
#define UI_ENDING_H

#include "ui/ui.h"

struct ending {
    const char *state; /* finished, stopped, failed, interrupted; queued: it had not begun */
    int code;          /* -1: unknown */
    char reason[700];  /* "": it ended as requested */
};

/* status: of waitpid(); NULL: unknown. */
void ending_find(const struct ui *ui, const json_t *job, const int *status, struct ending *out);

#endif
