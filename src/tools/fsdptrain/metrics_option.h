/* SPDX-License-Identifier: Apache-2.0 */
/* The option of verbs that read the metrics of a run's folder. */
#ifndef FSDPTRAIN_METRICS_OPTION_H
#define FSDPTRAIN_METRICS_OPTION_H

#include "common/options.h"

/* at: offset of a const char * in the verb's arguments. */
#define METRICS_OPTION(at) \
    { \
        .name = "jsonl", .type = OPTION_STRING, .offset = (at), .value = "NAME", \
        .help = "file of the metrics in RUN, if log.jsonl of the config names another one", .usual = "metrics.jsonl" \
    }

#endif
