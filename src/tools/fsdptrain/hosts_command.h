/* SPDX-License-Identifier: Apache-2.0 */
/* The command lines of `fsdptrain run --hosts`: those of the launchers, and those that ask a host whether it answers.
 */
#ifndef TOOLS_HOSTS_COMMAND_H
#define TOOLS_HOSTS_COMMAND_H

#include <stdbool.h>
#include <stdint.h>

#include "common/options.h"
#include "hosts_list.h"

enum { HOSTS_MAX_ASK = 10 };

struct hosts_starter {
    const char *word;               /* of --launcher */
    const char *ask[HOSTS_MAX_ASK]; /* succeeds on a host that can run ranks */
    /* Adds the words that start a rank in each place of the hosts that answer. False: out of memory. */
    bool (*put)(struct strings *words, const struct hosts_list *hosts);
    bool same_ranks; /* if each host must have the same number of ranks */
};

const struct hosts_starter *hosts_starter_of(bool slurm);
/* Lets mpirun notice that all its hosts are lost, when no rank is left that could tell it. To be called in its process,
 * before it starts. It does not change what the caller's environment says. */
void hosts_limit_silence(double patience_seconds);
bool hosts_put(struct strings *words, const char *word);
bool hosts_put_number(struct strings *words, const char *option, uint32_t n);

#endif
