/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files that read config.json. */
#ifndef TRAIN_MODEL_READER_H
#define TRAIN_MODEL_READER_H

#include <jansson.h>

#include "model/model.h"

/* State of the reader, for messages. */
struct model_reader {
    char path[4096];
    json_t *root;
    const struct fsdpck_options *opt;
    struct fsdpck_error *err;
    int rc;
};

/* Sets the error of the reader; the first one wins. */
#define MODEL_REFUSE(r, code, ...) \
    ((r)->rc = (r)->rc ? (r)->rc : fsdpck_error_set((r)->err, code, (r)->path, __VA_ARGS__))

/* The value of a top-level key; NULL: absent or null. */
json_t *model_get(const struct model_reader *r, const char *key);
/* Typed values. `absent` is the default; a negative one of model_get_int() makes the key required. A wrong type or a
 * value out of range is an error of the reader. */
int64_t model_get_int(struct model_reader *r, const char *key, int64_t absent, int64_t min, int64_t max);
bool model_get_bool(struct model_reader *r, const char *key, bool absent);
double model_get_number(struct model_reader *r, const json_t *from, const char *key, double absent, double min);

/* Rejects settings that would change the maths, and that the family does not have. */
void model_check_refused(struct model_reader *r, const struct family *family);
/* Notes keys that are neither used nor known to be harmless. */
void model_note_unknown(struct model_reader *r);

/* Fills m->rope. m->head_dim and m->max_position must be set. */
void model_read_rope(struct model_reader *r, struct model *m);

#endif
