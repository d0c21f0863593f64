/* SPDX-License-Identifier: Apache-2.0 */
/* The files of `fsdptrain init --from`: what they say goes over what init chooses. */
#ifndef TOOLS_INIT_FROM_H
#define TOOLS_INIT_FROM_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include <fsdpck/error.h>

#include "common/values.h"

/* What the files and the command line say together. */
struct init_from {
    json_t *config, *files;   /* as in struct train_import; config is NULL without --from */
    const char *model, *data; /* of the command line, or else of the files; NULL: nobody names one */
    const char *output_dir;   /* the same */
    uint32_t ranks;           /* the same, or 1 */
    bool replaced;            /* the command line names what a file names too */
    bool full, lora_unknown;  /* all parameters are trained; no file says whether they are */
    uint64_t seq_len, batch;  /* of the files; 0: they say nothing */
    bool recompute_known;
    bool keeps_base; /* the files quantize the base, and it is quantized already */
};

/* Fills *out, whose model, data, output_dir, ranks and full are those of the command line (ranks 0: none). */
int init_from_read(const struct strings *paths, struct init_from *out, struct fsdpck_error *err);
void init_from_free(struct init_from *from);
/* For a model that is quantized: leaves out dtype.base, which quantizes others. */
void init_from_keep_base(struct init_from *from);
/* Puts the files' keys over those of a config. false: out of memory. */
bool init_from_apply(const struct init_from *from, json_t *config);
/* Prints what became of each key of each file. */
void init_from_say(const struct init_from *from);

#endif
