/* SPDX-License-Identifier: Apache-2.0 */
/* sample.prompts of a run on pictures: strings, or objects with the arguments of diffusers' pipelines. */
#ifndef TRAIN_PICTURE_PROMPTS_H
#define TRAIN_PICTURE_PROMPTS_H

#include <train/config.h>

#include "image/request.h"

struct picture_prompt {
    struct image_request request; /* complete, of one text and one picture; its texts are borrowed from the list */
    char *text, *negative;        /* owned */
    bool guided;
};

struct picture_prompts {
    struct pipeline pipeline;
    struct picture_prompt *items; /* (n) owned */
    const char **texts;           /* (2n) the prompts, then their negative ones; without guidance, these again. Owned */
    size_t n;
};

/* *out needs picture_prompts_free() also after a failure. */
int picture_prompts_read(const struct train_config *config, const struct fsdpck_options *opt,
                         struct picture_prompts *out, struct fsdpck_error *err);
void picture_prompts_free(struct picture_prompts *p);

#endif
