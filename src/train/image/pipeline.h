/* SPDX-License-Identifier: Apache-2.0 */
/* The folder of a pipeline that diffusers wrote: which parts it has, and the JSON files of each. */
#ifndef TRAIN_PIPELINE_H
#define TRAIN_PIPELINE_H

#include <jansson.h>

#include "model/model_reader.h"

enum { PIPELINE_PATH = 4096 };

struct pipeline {
    char folder[PIPELINE_PATH];
    bool distilled; /* few steps, and no guidance */
};

/* FLUX.2 [klein]; another pipeline is refused by name. */
int pipeline_read(const char *folder, struct pipeline *out, struct fsdpck_error *err);
int pipeline_part(const struct pipeline *p, const char *part, char path[PIPELINE_PATH], struct fsdpck_error *err);
/* Opens a JSON file of a part for a reader, whose root the caller releases, and checks its _class_name; NULL: it has
 * none. */
int pipeline_json(const struct pipeline *p, const char *part, const char *name, const char *class_name,
                  struct model_reader *out, struct fsdpck_error *err);

#endif
