/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the result of `fsdpck plan`. */
#ifndef TOOLS_PLAN_OUT_H
#define TOOLS_PLAN_OUT_H

#include <fsdpck/source.h>

/* plans: (nranks). Both return the exit code. */
int plan_out_text(const struct fsdpck_plan *plans, uint64_t nranks);
int plan_out_json(const char *source, const struct fsdpck_mesh *mesh, const struct fsdpck_plan *plans, uint64_t nranks);

#endif
