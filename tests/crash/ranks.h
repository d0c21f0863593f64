/* SPDX-License-Identifier: Apache-2.0 */
/* A save by several ranks in one process: one thread per rank, and a barrier that fails when a rank is gone. */
#ifndef TESTS_RANKS_H
#define TESTS_RANKS_H

#include <fsdpck/base.h>

#include "verbs.h"

/* assets: a folder. base: the frozen base to name, or NULL. */
void ranks_save(const struct verb *v, const struct model *m, const char *out, const char *assets,
                const struct fsdpck_base *base, const struct fsdpck_options *opt, const struct verb_how *how,
                struct verb_result *result);
/* Glob of the one tensor that every rank holds whole. */
#define RANKS_REPLICATED "t0.*"

#endif
