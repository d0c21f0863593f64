/* SPDX-License-Identifier: Apache-2.0 */
/* Words to a run that is under way, through the control file in its folder or in that of one of its tenants. */
#ifndef UI_CONTROL_H
#define UI_CONTROL_H

#include <fsdpck/error.h>

/* Creates the control file in one step. FSDPCK_ERR_EXISTS: the run has not read the last word yet. */
int control_write(const char *folder, const char *word, struct fsdpck_error *err);
/* The same error, and nothing is written: for what must not change unless the word can follow. */
int control_check(const char *folder, struct fsdpck_error *err);

#endif
