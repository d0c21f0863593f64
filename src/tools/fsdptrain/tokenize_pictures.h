/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdptrain tokenize` of a pipeline that makes pictures: buckets, captions and their tokens. */
#ifndef TOOLS_TOKENIZE_PICTURES_H
#define TOOLS_TOKENIZE_PICTURES_H

#include <fsdpck/error.h>
#include <stdbool.h>
#include <stdint.h>

/* The options that are for pictures; zeros mean that one was not given. */
struct tokenize_pictures_args {
    bool json, use_aspect_ratio_buckets;
    uint32_t resolution, max_tokens;
    const char *trigger_word, *aspect_ratio_buckets;
};

/* from: a folder, or JSONL. Prints all, and sets *status to the exit code. */
int tokenize_pictures_run(const struct tokenize_pictures_args *args, const char *pipeline, const char *from,
                          int *status, struct fsdpck_error *err);

#endif
