/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files that read index.json: the parser's state, and the values that occur in several places. Each
 * fsdpck_index_parse_X() consumes the value of key X. A failure stops the JSON reader for all of them, so the caller
 * checks it once. */
#ifndef CKPT_INDEX_PARSE_H
#define CKPT_INDEX_PARSE_H

#include "format/index.h"
#include "base/json_read.h"

struct index_parse {
    struct fsdpck_json j;
    struct fsdpck_source *src;
    struct fsdpck_index *index;
    const char *file; /* path of index.json */
    const char *assets_folder;
    struct fsdpck_names items, assets; /* names listed so far */
    struct fsdpck_error *err;
};

/* ---- index_values.c ---- */

/* Records the code that a library call returned, and stops the JSON reader. */
bool fsdpck_index_failed(struct index_parse *p, int code);
void fsdpck_index_bad(struct index_parse *p, const char *what);
/* Reads the next key of the open object that is in names (at most 32, then NULL), and returns its position there. Sets
 * its bit in *seen; refuses a duplicate key. Skips other keys. Returns -1 at the end of the object, or on failure. */
int fsdpck_index_next_field(struct index_parse *p, const char *const *names, uint32_t *seen);
void fsdpck_index_parse_hash(struct index_parse *p, uint8_t hash[16]);
char *fsdpck_index_parse_text(struct index_parse *p);
/* Parses a list of at most max (FSDPCK_MAX_DIMS) integers, into the arena. */
uint64_t *fsdpck_index_parse_u64s(struct index_parse *p, uint32_t max, uint32_t *count);
void fsdpck_index_parse_dtype(struct index_parse *p, enum fsdpck_dtype *dtype);
const uint64_t *fsdpck_index_parse_shape(struct index_parse *p, uint32_t *ndim); /* into the arena */
const struct fsdpck_key *fsdpck_index_parse_path(struct index_parse *p, uint32_t *npath);
/* Copies the vector's contents into the arena, and frees the vector. Returns NULL, with the parser failed, if out of
 * memory or if it had already failed. */
void *fsdpck_index_keep(struct index_parse *p, struct fsdpck_vec *v);

/* ---- index_meshes.c, index_files.c, index_tensors.c, index_base.c ---- */

void fsdpck_index_parse_meshes(struct index_parse *p);
/* After files: checks that each rank of each mesh has one. */
void fsdpck_index_check_meshes(struct index_parse *p);
void fsdpck_index_parse_files(struct index_parse *p);
void fsdpck_index_parse_items(struct index_parse *p);
/* After files: checks that each item lies in one. */
int fsdpck_index_check_items(struct index_parse *p);
void fsdpck_index_parse_assets(struct index_parse *p);
void fsdpck_index_parse_tensors(struct index_parse *p);
void fsdpck_index_parse_base(struct index_parse *p);
/* After files: checks that they have room for the tensors. */
int fsdpck_index_check_room(struct index_parse *p);

#endif
