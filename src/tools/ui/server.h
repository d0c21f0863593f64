/* SPDX-License-Identifier: Apache-2.0 */
/* The server of `fsdptrain ui`. It runs until a signal arrives; the jobs continue. */
#ifndef UI_SERVER_H
#define UI_SERVER_H

#include <fsdpck/error.h>

#include "ui/ui_options.h"

int server_run(const struct ui_options *opt, struct fsdpck_error *err);

#endif
