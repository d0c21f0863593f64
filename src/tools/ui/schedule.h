/* SPDX-License-Identifier: Apache-2.0 */
/* Starts waiting jobs when their devices are free, in queue order, and detects jobs that have ended. */
#ifndef UI_SCHEDULE_H
#define UI_SCHEDULE_H

#include "ui/ui.h"

/* Call once at start: jobs that an earlier server was about to start wait again. */
int schedule_recover(struct ui *ui, struct fsdpck_error *err);
/* One round. One thread calls it about twice a second. */
void schedule_look(struct ui *ui);

#endif
