/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdptrain sample` of a pipeline that makes pictures. */
#ifndef TOOLS_SAMPLE_IMAGE_H
#define TOOLS_SAMPLE_IMAGE_H

#include <jansson.h>
#include <train/image.h>

#include "common/report.h"

/* The options that are for pictures; zeros, but guidance -1, mean that one was not given. */
struct sample_image_args {
    bool json, quiet;
    const char *out, *size, *negative;
    uint32_t steps, max_tokens, samples;
    double guidance, seed;
};

/* prompts: a list of strings. Writes PNG files, and prints what they are with json. Returns the exit code. */
int sample_image_run(const struct sample_image_args *args, const char *pipeline, const struct sampler_options *opt,
                     const json_t *prompts, struct report *report);

#endif
