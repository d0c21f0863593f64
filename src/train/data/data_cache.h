/* SPDX-License-Identifier: Apache-2.0 */
/* The token cache: one file in output_dir that every rank maps. The ranks build it together from sections, appended
 * in the order of the parts of the data. Its bytes depend on the data only. An interrupted build resumes where it
 * stopped. */
#ifndef TRAIN_DATA_CACHE_H
#define TRAIN_DATA_CACHE_H

#include "data/data_cache_file.h"

/* Hash of everything that determines the content of the cache. */
int data_cache_key(const struct data_reader *reader, uint64_t *key, struct fsdpck_error *err);
/* The path of the cache. Creates its parent folders. */
int data_cache_path(const struct train_config *config, uint64_t key, char *path, size_t path_nbytes,
                    struct fsdpck_error *err);

/* *found false: the file is missing or damaged. */
int data_cache_map(struct data *d, const struct data_cache_id *id, bool *found, struct fsdpck_error *err);
/* Opens the cache for building. *found: another process has finished it meanwhile, and it is mapped; *out is NULL. */
int data_cache_open(struct data *d, const struct data_cache_id *id, struct data_cache **out, bool *found,
                    struct fsdpck_error *err);
void data_cache_close(struct data_cache *c); /* Releases all claims. NULL does nothing */
/* Claims a part for this process; false: another process has it. The claim does not exclude threads of this process. */
bool data_cache_claim(struct data_cache *c, size_t part);
void data_cache_release(struct data_cache *c, size_t part);
/* Number of parts appended so far, by any process. */
size_t data_cache_nparts(struct data_cache *c);
/* Appends a section as part number data_cache_nparts(). */
int data_cache_append(struct data_cache *c, const struct data_section *s, struct fsdpck_error *err);
/* Called when all parts are appended. The first process to call it renames the file. */
int data_cache_finish(struct data_cache *c, struct fsdpck_error *err);

#endif
