/* SPDX-License-Identifier: Apache-2.0 */
/* Folders and programs of the server. */
#ifndef UI_PLACES_H
#define UI_PLACES_H

#include "ui/ui.h"
#include "ui/ui_options.h"

/* Fills ui->program, fsdpck, cwd, dir and state, and makes the two folders. Locks the state folder until the process
 * ends; FSDPCK_ERR_EXISTS: another server has it. */
int places_find(const struct ui_options *opt, struct ui *ui, struct fsdpck_error *err);

#endif
