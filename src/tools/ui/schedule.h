/* SPDX-License-Identifier: Apache-2.0 */
/* Starts jobs whose devices are free, in the order of the queue, and notices those that have ended. */
#ifndef UI_SCHEDULE_H
#define UI_SCHEDULE_H

#include "ui/ui.h"

/* After the server began: a job that was starting when its server was killed has not begun, and waits again. */
int schedule_recover(struct ui *ui, struct fsdpck_error *err);
/* Looks once; to be called about twice a second, by one thread. */
void schedule_look(struct ui *ui);

#endif
