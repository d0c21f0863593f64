/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the SOURCE of a verb. */
#ifndef TOOLS_SOURCE_ARG_H
#define TOOLS_SOURCE_ARG_H

#include <fsdpck/source.h>

#include "common/options.h"

struct source_args {
    const char *from;       /* required kind, or NULL */
    const char *names;      /* naming scheme and layout for the weights, or NULL */
    const char *dequantize; /* dtype of the weights that are stored quantized, or NULL: they stay */
    const char *quantize;   /* form to write weights in, or NULL */
    struct strings keep;    /* globs of weights that `quantize` leaves as they are */
    const char *complete;   /* source of tensors that are missing, or NULL */
    bool no_verify;         /* read payload without checking hashes */
    const char *config;     /* folder of the config.json that `names` and `dequantize` need; NULL: the source's */
};

#define SOURCE_NOPTIONS 1
extern const struct option source_options[SOURCE_NOPTIONS];
#define NAMES_NOPTIONS 1
extern const struct option names_options[NAMES_NOPTIONS + 1];
#define NAMES_GROUP(args) \
    { \
        "Names", names_options, NAMES_NOPTIONS, (args) \
    }
/* Instead of NAMES_GROUP, for verbs without an output, which --assets would go to. */
#define SHOWN_NAMES_GROUP(args) \
    { \
        "Names", names_options, NAMES_NOPTIONS + 1, (args) \
    }
#define VALUES_NOPTIONS   1
#define QUANTIZE_NOPTIONS 2
extern const struct option values_options[VALUES_NOPTIONS + QUANTIZE_NOPTIONS];
#define VALUES_GROUP(args) \
    { \
        "Values", values_options, VALUES_NOPTIONS, (args) \
    }
/* Instead of VALUES_GROUP, for verbs that write the values of one source. */
#define QUANTIZE_GROUP(args) \
    { \
        "Values", values_options, VALUES_NOPTIONS + QUANTIZE_NOPTIONS, (args) \
    }
#define COMPLETE_NOPTIONS 1
extern const struct option complete_options[COMPLETE_NOPTIONS];
#define COMPLETE_GROUP(args) \
    { \
        "Missing tensors", complete_options, COMPLETE_NOPTIONS, (args) \
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
/* Makes an open source present the names, values and missing tensors that args ask for. */
int source_arg_present(struct fsdpck_source *src, const struct source_args *args, const struct fsdpck_options *opt,
                       struct fsdpck_error *err);
/* After a failed open: adds the hint that --from may be wrong, unless err has a hint already. */
void source_arg_blame(const struct source_args *args, struct fsdpck_error *err);

#endif
