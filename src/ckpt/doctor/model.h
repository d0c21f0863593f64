/* SPDX-License-Identifier: Apache-2.0 */
/* A model or adapter folder as a doctor sees it: everything that can be read is kept, and what cannot be read is a
 * fact like any other. The sources of hf/ refuse such folders; this never does. Knows no checks. */
#ifndef CKPT_DOCTOR_MODEL_H
#define CKPT_DOCTOR_MODEL_H

#include <fsdpck/dtype.h>
#include <fsdpck/source.h>
#include <jansson.h>

#include "base/arena.h"
#include "base/names.h"
#include "base/vec.h"
#include "doctor/shards.h"

struct doctor_file {
    const char *name, *in_quotes; /* in_quotes: for a shell's command, between single quotes */
    bool indexed;                 /* the index names it */
    bool there;                   /* it exists, and is a file */
    struct fsdpck_error error;    /* of its header; code 0: it was read */
};

struct doctor_tensor {
    const char *name;
    enum fsdpck_dtype dtype;
    uint32_t ndim;
    const uint64_t *shape;
    uint64_t nbytes;
    uint32_t file;
    bool twice; /* a second file has one of this name */
};

struct doctor_listed {
    const char *name;
    uint32_t file;
};

enum doctor_json {
    DOCTOR_CONFIG,
    DOCTOR_GENERATION,
    DOCTOR_TOKENIZER,
    DOCTOR_ADAPTER,
    DOCTOR_HF_QUANT,
    DOCTOR_NJSON,
};

struct doctor_model {
    const struct fsdpck_io *io;
    const char *path, *in_quotes; /* in_quotes: for a shell's command, between single quotes */
    struct fsdpck_arena arena;
    char **names; /* (nnames) entries of the folder, sorted */
    size_t nnames;
    const char *index, *index_in_quotes; /* its name, or NULL */
    struct fsdpck_error index_error;
    struct fsdpck_vec files;     /* struct doctor_file */
    struct fsdpck_vec tensors;   /* struct doctor_tensor */
    struct fsdpck_vec listed;    /* struct doctor_listed: entries of the index */
    struct doctor_shards shards; /* of a folder without index */
    struct fsdpck_names file_names, tensor_names, listed_names;
    json_t *json[DOCTOR_NJSON]; /* NULL: not there, or not JSON */
    struct fsdpck_error json_error[DOCTOR_NJSON];
    bool found; /* weights, an index or a config.json: the folder is a model's */
    bool whole; /* every header could be read, and index and headers agree */
};

/* Reads the folder. Fails only where nothing can be said about it. fsdpck_doctor_model_free() releases m even then. */
int fsdpck_doctor_model_read(struct doctor_model *m, const char *path, const struct fsdpck_io *io,
                             struct fsdpck_error *err);
void fsdpck_doctor_model_free(struct doctor_model *m);

bool fsdpck_doctor_has_file(const struct doctor_model *m, const char *name);
const struct doctor_tensor *fsdpck_doctor_find(const struct doctor_model *m, const char *name); /* NULL: none */
/* Returns the first tensor whose name has `part` in it, or NULL. */
const struct doctor_tensor *fsdpck_doctor_find_part(const struct doctor_model *m, const char *part);
/* Returns a key of the language model: of text_config if config.json has it there, else of its top level; or NULL. */
const json_t *fsdpck_doctor_key(const struct doctor_model *m, const char *key);
/* Gets a count of the language model; false if it is absent or no positive integer. */
bool fsdpck_doctor_count(const struct doctor_model *m, const char *key, uint64_t *out);
const char *fsdpck_doctor_json_name(enum doctor_json which);

static inline const struct doctor_tensor *doctor_tensors(const struct doctor_model *m)
{
    return m->tensors.data;
}
static inline const struct doctor_file *doctor_files(const struct doctor_model *m)
{
    return m->files.data;
}

#endif
