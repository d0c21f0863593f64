/* SPDX-License-Identifier: Apache-2.0 */
/* The groups of parameters of `fsdptrain plan`, as a table and as JSON. */
#ifndef TOOLS_PLAN_TABLE_H
#define TOOLS_PLAN_TABLE_H

#include <jansson.h>
#include <train/train.h>

void plan_table_print(const struct train_plan *plan);
json_t *plan_table_json(const struct train_plan *plan); /* a list; NULL: out of memory */

#endif
