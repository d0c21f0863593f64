/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files that read index.json: the state of the parser, and the values that occur in several places. Each
 * fsdpck_index_parse_X() consumes the value of key X; failures stop the JSON reader everywhere, so that they are looked
 * at once. */
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
    struct fsdpck_names items, assets; /* what was listed so far */
    struct fsdpck_error *err;
};

/* ---- index_values.c ---- */

/* Keeps a code that a library call returned: the JSON reader then stops everywhere. */
bool fsdpck_index_failed(struct index_parse *p, int code);
void fsdpck_index_bad(struct index_parse *p, const char *what);
/* The next key of the open object that is one of names (at most 32, then NULL), as its position there; its bit in *seen
 * is set, and a key that has it already is refused. Other keys are passed over. -1 at the end of the object, or on
 * failure. */
int fsdpck_index_next_field(struct index_parse *p, const char *const *names, uint32_t *seen);
void fsdpck_index_parse_hash(struct index_parse *p, uint8_t hash[16]);
char *fsdpck_index_parse_text(struct index_parse *p);
/* A list of at most max (FSDPCK_MAX_DIMS) integers, into the arena. */
uint64_t *fsdpck_index_parse_u64s(struct index_parse *p, uint32_t max, uint32_t *count);
void fsdpck_index_parse_dtype(struct index_parse *p, enum fsdpck_dtype *dtype);
const uint64_t *fsdpck_index_parse_shape(struct index_parse *p, uint32_t *ndim); /* into the arena */
const struct fsdpck_key *fsdpck_index_parse_path(struct index_parse *p, uint32_t *npath);
/* A copy of the vector's contents in the arena; NULL, and the parser has failed, when memory is out or it had failed
 * before. Frees the vector. */
void *fsdpck_index_keep(struct index_parse *p, struct fsdpck_vec *v);

/* ---- index_meshes.c, index_files.c, index_tensors.c, index_base.c ---- */

void fsdpck_index_parse_meshes(struct index_parse *p);
/* After files: every rank of every mesh has one. */
void fsdpck_index_check_meshes(struct index_parse *p);
void fsdpck_index_parse_files(struct index_parse *p);
void fsdpck_index_parse_items(struct index_parse *p);
/* After files: every item lies in one. */
int fsdpck_index_check_items(struct index_parse *p);
void fsdpck_index_parse_assets(struct index_parse *p);
void fsdpck_index_parse_tensors(struct index_parse *p);
void fsdpck_index_parse_base(struct index_parse *p);
/* After files: they have room for the tensors. */
int fsdpck_index_check_room(struct index_parse *p);

#endif
