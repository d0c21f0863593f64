/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the configuration of another trainer and gives the same in the keys of CONFIG.json. */
#ifndef TRAIN_IMPORT_H
#define TRAIN_IMPORT_H

#include <fsdpck/error.h>

#ifdef __cplusplus
extern "C" {
#endif

struct json_t;

/* What the files of others ask for. Zero-initialise; train_import_free() releases it. */
struct train_import {
    struct json_t *config; /* the keys that were taken over, as CONFIG.json has them; "lora" is null where the files say
                              that all parameters are trained */
    /* A list with an object for each file: "file"; "kind", a sentence part such as "a configuration of accelerate";
     * lists of strings "taken" (keys whose value is in config), "defaults" ("learning_rate 5e-05": keys that the file
     * leaves out, and whose default is in config), "unneeded" (keys that ask for nothing here) and "notes" (a line for
     * each other key, with what to do instead). Every key of the file is in one of taken, unneeded and notes. */
    struct json_t *files;
    uint32_t nranks; /* number of processes that the files name; 0: none does */
};

/* Reads the files: accelerate's YAML or JSON, the arguments of a transformers, TRL or axolotl trainer as YAML or JSON,
 * torchtitan's TOML. The content decides what a file is. Two files that set one key to different values are refused.
 * nranks: the number of ranks that batches are computed for if no file names one. On failure *out is empty. */
FSDPCK_API int train_import_read(const char *const *paths, size_t npaths, uint32_t nranks, struct train_import *out,
                                 struct fsdpck_error *err);
FSDPCK_API void train_import_free(struct train_import *im);

#ifdef __cplusplus
}
#endif
#endif
