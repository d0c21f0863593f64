/* SPDX-License-Identifier: Apache-2.0 */
/* Turns the options about OUT into values for the library. */
#include "output_arg.h"

#include <string.h>

static bool is_one_file(const char *out)
{
    static const char end[] = ".safetensors";
    size_t n = strlen(out), k = sizeof end - 1;
    return n >= k && strcmp(out + n - k, end) == 0;
}

uint64_t output_arg_max_shard(const struct output_args *args, const char *out)
{
    return args->max_shard_given || !is_one_file(out) ? args->max_shard_nbytes : 0;
}

static enum fsdpck_dcp_mode dcp_mode(const char *text)
{
    if (strcmp(text, "auto") == 0)
        return FSDPCK_DCP_AUTO;
    return strcmp(text, "always") == 0 ? FSDPCK_DCP_ALWAYS : FSDPCK_DCP_NEVER;
}

void output_arg_fill(const struct output_args *args, struct fsdpck_convert_request *req)
{
    req->dcp = dcp_mode(args->dcp);
    req->compress = args->compress;
}
