/* SPDX-License-Identifier: Apache-2.0 */
/* Devices that jobs may use: GPUs by their numbers ("cuda:0") and slots of the processors ("cpu:0"). */
#ifndef UI_DEVICES_H
#define UI_DEVICES_H

#include "ui/ui.h"
#include "ui/ui_options.h"

/* Fills ui->devices and ui->nprocessors. FSDPCK_ERR_USAGE: --gpus has a value that is not a number. */
int devices_find(const struct ui_options *opt, struct ui *ui, struct fsdpck_error *err);

#endif
