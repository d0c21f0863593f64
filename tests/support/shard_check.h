/* SPDX-License-Identifier: Apache-2.0 */
/* Checks shard files against a model, without the library's readers of payloads: every chunk that a table lists, its
 * bytes, block hashes, CRC-32s (in the table and in the zip around it) and content. */
#ifndef TESTS_SHARD_CHECK_H
#define TESTS_SHARD_CHECK_H

#include "model.h"

/* Checks files __0_0.distcp … of `dir`; tensor ordinals are indices into the model. Returns NULL or the problem
 * (borrowed until the next call). */
const char *shard_check(const struct model *m, const char *dir, uint32_t nranks);

#endif
