/* SPDX-License-Identifier: Apache-2.0 */
/* The token cache: one file in output_dir that every rank maps. The ranks build it together from sections, appended in
 * the order of the parts of the data. Its bytes depend on the data only. An interrupted build resumes where it
 * stopped. */
#ifndef TRAIN_DATA_CACHE_H
#define TRAIN_DATA_CACHE_H

#include "data/data_cache_file.h"

/* Of everything that goes into it. */
int data_cache_key(const struct data_reader *reader, uint64_t *key, struct fsdpck_error *err);
/* Its path; makes the folders above it. */
int data_cache_path(const struct train_config *config, uint64_t key, char *path, size_t path_nbytes,
                    struct fsdpck_error *err);

/* *found false: there is none, or it is damaged. */
int data_cache_map(struct data *d, const struct data_cache_id *id, bool *found, struct fsdpck_error *err);
/* To build it. *found: another process has finished it meanwhile, and it is mapped: *out is NULL. */
int data_cache_open(struct data *d, const struct data_cache_id *id, struct data_cache **out, bool *found,
                    struct fsdpck_error *err);
void data_cache_close(struct data_cache *c); /* NULL does nothing. What it had claimed, others may */
/* Whether this process is the only one to make a part. Its own threads all may. */
bool data_cache_claim(struct data_cache *c, size_t part);
void data_cache_let_go(struct data_cache *c, size_t part);
/* Parts appended so far, by anybody. */
size_t data_cache_nparts(struct data_cache *c);
/* Part number data_cache_nparts(). */
int data_cache_append(struct data_cache *c, const struct data_section *s, struct fsdpck_error *err);
/* All parts are appended: the file gets its name, from whoever is first. */
int data_cache_finish(struct data_cache *c, struct fsdpck_error *err);

#endif
