/* SPDX-License-Identifier: Apache-2.0 */
/* --force, --assets, --max-shard-size, --dcp and --compress: how a verb writes OUT. A verb's table lists the rows that
 * it takes. */
#ifndef TOOLS_OUTPUT_ARG_H
#define TOOLS_OUTPUT_ARG_H

#include <fsdpck/convert.h>

#include "common/options.h"

struct output_args {
    bool force, max_shard_given, compress;
    const char *assets, *dcp;
    uint64_t max_shard_nbytes;
};

/* Rows of a table whose values are of the type `values`, with a member `output`. of: what the assets are taken from
 * otherwise. */
#define OUTPUT_FORCE(values) \
    { \
        .name = "force", .type = OPTION_FLAG, .offset = offsetof(values, output.force), \
        .help = "replace OUT where it exists, after the new one is complete" \
    }
#define OUTPUT_ASSETS(values, of) \
    { \
        .name = "assets", .type = OPTION_STRING, .offset = offsetof(values, output.assets), .value = "FOLDER", \
        .help = "take config.json, tokenizer and the like from FOLDER, not from the " of \
    }
#define OUTPUT_MAX_SHARD_SIZE(values) \
    { \
        .name = "max-shard-size", .type = OPTION_SIZE, .offset = offsetof(values, output.max_shard_nbytes), \
        .value = "SIZE", .help = "size limit of each file in a folder; tensors are never split", .usual = "5GB", \
        .given = offsetof(values, output.max_shard_given) \
    }
/* Of a sharded OUT. The last argument: further fields of the row. */
#define OUTPUT_DCP(values, ...) \
    { \
        .name = "dcp", .type = OPTION_CHOICE, .offset = offsetof(values, output.dcp), .value = "auto|always|never", \
        .help = "write .metadata for PyTorch; auto writes it for up to 2 million chunks", .usual = "auto", __VA_ARGS__ \
    }
#define OUTPUT_COMPRESS(values, ...) \
    { \
        .name = "compress", .type = OPTION_FLAG, .offset = offsetof(values, output.compress), \
        .help = "compress without loss; only fsdpck can read the result (and convert it back)", __VA_ARGS__ \
    }

/* Copies dcp and compress into a request. */
void output_arg_fill(const struct output_args *args, struct fsdpck_convert_request *req);
/* The limit for the library. If OUT is one file, the default is not passed on: a file has no limit, and the library
 * refuses one that the user gave. */
uint64_t output_arg_max_shard(const struct output_args *args, const char *out);

#endif
