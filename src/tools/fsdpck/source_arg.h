/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the SOURCE of a verb. */
#ifndef TOOLS_SOURCE_ARG_H
#define TOOLS_SOURCE_ARG_H

#include <fsdpck/source.h>

#include "common/options.h"

struct source_args {
    const char *from;   /* required kind, or NULL */
    const char *names;  /* naming scheme for the weights of a Llama, or NULL */
    bool no_verify;     /* read payload without checking hashes */
    const char *config; /* folder of the config.json that `names` needs; NULL: the source's */
};

#define SOURCE_NOPTIONS 1
extern const struct option source_options[SOURCE_NOPTIONS];
#define NAMES_NOPTIONS 1
extern const struct option names_options[NAMES_NOPTIONS];
#define NAMES_GROUP(args) \
    { \
        "Names", names_options, NAMES_NOPTIONS, (args) \
    }
#define READ_NOPTIONS 2
extern const struct option read_options[READ_NOPTIONS];
/* Instead of SOURCE_GROUP, for verbs that read payload. */
#define READ_GROUP(args) \
    { \
        "Input", read_options, READ_NOPTIONS, (args) \
    }
#define SOURCE_GROUP(args) \
    { \
        "Input", source_options, SOURCE_NOPTIONS, (args) \
    }

/* typed: a path, or org/name of a model in the local Hugging Face cache. */
int source_arg_open(const char *typed, const struct source_args *args, const struct fsdpck_options *opt,
                    struct fsdpck_source **out, struct fsdpck_error *err);
/* After a failed open: adds the hint that --from may be wrong, unless err has a hint already. */
void source_arg_blame(const struct source_args *args, struct fsdpck_error *err);

#endif
