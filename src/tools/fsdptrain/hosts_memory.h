/* SPDX-License-Identifier: Apache-2.0 */
/* A `fsdptrain keep` on each host, which keeps copies of the ranks' state in memory while they start again. */
#ifndef TOOLS_HOSTS_MEMORY_H
#define TOOLS_HOSTS_MEMORY_H

#include <fsdpck/error.h>

#include "common/report.h"
#include "hosts_list.h"

struct hosts_memory;

/* For so many hosts; starts nothing yet. */
int hosts_memory_new(size_t nhosts, struct hosts_memory **out, struct fsdpck_error *err);
/* Starts one on each host that answers and has none, and waits until they are ready. Ends those of other hosts. Notes a
 * failure: the ranks then make no copies. ask: as in hosts_ask(); its last word is replaced by the command. Does
 * nothing without `m`, as the functions below. */
void hosts_memory_start(struct hosts_memory *m, const struct hosts_list *hosts, const char *const *ask,
                        const char *program, struct report *report);
/* To be called every few seconds: without it, they end. */
void hosts_memory_beat(struct hosts_memory *m);
/* For --keeper. */
const char *hosts_memory_name(const struct hosts_memory *m);
void hosts_memory_free(struct hosts_memory *m); /* ends all */

#endif
