/* SPDX-License-Identifier: Apache-2.0 */
/* A model on files in memory, presented by a view. */
#ifndef TESTS_FUZZ_MODEL_H
#define TESTS_FUZZ_MODEL_H

#include <fsdpck/source.h>

#include "../support/memory_io.h"

/* Adds what an input holds: a line of config.json, then a safetensors file. Returns false if it has no line. */
bool fuzz_model_add(struct memory_io *m, const uint8_t *data, size_t nbytes);
/* Opens the model, presents it, and checks that it is refused with a message, or has a consistent catalogue: a part of
 * a weight equals that part of the whole, and a plan works where a read does. */
void fuzz_model_check(const struct memory_io *m,
                      int (*present)(struct fsdpck_source *src, const void *ctx, struct fsdpck_error *err),
                      const void *ctx);

#endif
