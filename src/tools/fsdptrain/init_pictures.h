/* SPDX-License-Identifier: Apache-2.0 */
/* What `fsdptrain init` writes for a pipeline that makes pictures. */
#ifndef TOOLS_INIT_PICTURES_H
#define TOOLS_INIT_PICTURES_H

#include <jansson.h>
#include <train/train.h>

struct init_pictures {
    const char *comment, *model, *data, *output_dir;
    char *prompt;   /* is drawn while training; NULL: no picture has a caption. Owned by the caller */
    uint64_t batch; /* pictures a step */
    bool recompute; /* blocks are computed anew in the backward pass */
};

/* The config; NULL: out of memory. */
json_t *init_pictures_config(const struct init_pictures *p);
/* The first caption of the pictures, or NULL. Owned by the caller. */
char *init_pictures_caption(const char *pipeline, const char *data);
/* Says what it came to. */
void init_pictures_say(const struct init_pictures *p, const struct train_plan *plan);

#endif
