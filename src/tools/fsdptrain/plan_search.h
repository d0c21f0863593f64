/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdptrain plan --search`. */
#ifndef FSDPTRAIN_PLAN_SEARCH_H
#define FSDPTRAIN_PLAN_SEARCH_H

#include <train/search.h>

/* Prints the candidates. Returns an exit code; if err is set, the caller reports it instead. */
int plan_search(const struct train_config *config, const struct train_options *opt, bool json,
                struct fsdpck_error *err);

#endif
