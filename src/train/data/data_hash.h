/* SPDX-License-Identifier: Apache-2.0 */
/* Content hash of a data file. */
#ifndef TRAIN_DATA_HASH_H
#define TRAIN_DATA_HASH_H

#include <fsdpck/error.h>

/* XXH3 of the file's bytes (packed or not), chained to *hash. */
int data_file_hash(const char *path, uint64_t *hash, struct fsdpck_error *err);

#endif
