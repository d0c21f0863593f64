/* SPDX-License-Identifier: Apache-2.0 */
/* Text in JSON, YAML or TOML to one tree of JSON values. The text is untrusted: sizes, depth and numbers have limits,
 * and whatever would make a small file large (YAML's aliases) is refused. */
#ifndef TRAIN_IMPORT_READ_H
#define TRAIN_IMPORT_READ_H

#include <jansson.h>

#include <fsdpck/error.h>

enum {
    IMPORT_FILE_NBYTES = 1 << 20, /* largest file */
    IMPORT_DEPTH = 16             /* deepest nesting of YAML and TOML */
};

enum import_syntax { IMPORT_JSON, IMPORT_YAML, IMPORT_TOML };

/* Chooses the syntax by the text. The caller owns *out, an object. On failure *out is NULL. path: for errors. */
int import_parse(const char *path, const char *text, size_t nbytes, json_t **out, enum import_syntax *syntax,
                 struct fsdpck_error *err);
/* The value of a plain scalar of YAML, or a value of TOML that is no string, list or table. NULL: it is a string.
 * *refusal: why it is refused, if it is (the result is then NULL too). */
json_t *import_scalar(const char *text, size_t nbytes, const char **refusal);

int import_yaml(const char *path, const char *text, size_t nbytes, json_t **out, struct fsdpck_error *err);
int import_toml(const char *path, const char *text, size_t nbytes, json_t **out, struct fsdpck_error *err);

#endif
