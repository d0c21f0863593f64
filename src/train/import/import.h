/* SPDX-License-Identifier: Apache-2.0 */
/* What the translations of all kinds of files share: setting a key of CONFIG.json, and a record of what became of each
 * key of the file. */
#ifndef TRAIN_IMPORT_IMPORT_H
#define TRAIN_IMPORT_IMPORT_H

#include <jansson.h>
#include <stdbool.h>

#include <train/import.h>

struct importer;
/* Translates one key of a file. value: never null. */
typedef void import_take(struct importer *im, const char *key, const json_t *value);

/* A key of a file that is taken over: by a function, or as it is into the key `to`. */
struct import_row {
    const char *key, *to;
    import_take *take;
};

/* A key that asks for nothing here while it has one of the values in `idle`, a JSON list; null always is one of them.
 */
struct import_idle {
    const char *key, *idle;
    const char *instead; /* what to do if it has another value */
};

/* A default of the other trainer that differs from the one here: it is taken over where the file leaves the key out. */
struct import_default {
    const char *key, *value; /* JSON */
};

struct import_dialect {
    const char *kind; /* "a configuration of accelerate" */
    const struct import_row *rows;
    const struct import_idle *idles;
    const struct import_default *defaults;
    const char *const *unneeded; /* keys that ask for nothing here, whatever their value; all four lists end with a
                                    NULL key */
    /* Translates keys that need facts of all files; may be NULL. */
    void (*finish)(struct importer *im);
};

struct import_file {
    const char *path;
    const struct import_dialect *dialect;
    json_t *root, *report;
};

struct importer {
    json_t *config;
    json_t *origins;          /* our key to "FILE: key", the place of its value */
    struct import_file *file; /* the one whose keys are translated */
    const json_t *usual;      /* the default that is taken over, which counts less than a value of a file; else NULL */
    bool beaten;              /* a value of another key or file counted more than the last default */
    uint32_t nranks;          /* that batches are computed for */
    bool nranks_named;        /* a file names them */
    bool sharded;             /* a file sets FSDP up */
    struct fsdpck_error *err;
    int rc; /* the first failure; later calls do nothing */
};

/* Sets a key of CONFIG.json. Takes the value. Fails if the key refuses the value, or another file has set another one.
 * Returns false, with a note, if the value is planned for a later version. */
bool import_put(struct importer *im, const char *from, const char *to, json_t *value);
/* The same for a value that any file may replace: what a key that is off leaves. */
void import_put_weak(struct importer *im, const char *from, const char *to, json_t *value);
/* Records what became of a key: its value is in the config; it asks for nothing here; a line says what to do instead.
 */
void import_taken(struct importer *im, const char *key);
void import_unneeded(struct importer *im, const char *key);
FSDPCK_PRINTF(4, 5)
void import_note(struct importer *im, const char *key, const json_t *value, const char *fmt, ...);
/* Refuses the file. */
FSDPCK_PRINTF(3, 4) void import_refuse(struct importer *im, const char *key, const char *fmt, ...);

/* The value of a key that the file has and that is not null, else NULL. key: "section.key" for a key in a table. */
const json_t *import_get(const struct importer *im, const char *key);
double import_number(const json_t *value, double otherwise); /* also of a text such as "2e-5" */
bool import_is_true(const json_t *value);                    /* true, 1, "true", "yes" */
/* The text of a value, in upper case and without "ClassName." before it; "" if it is no text. */
const char *import_word(const json_t *value, char word[64]);

/* Translates every key of im->file, and sees to it that each one is recorded. */
void import_walk(struct importer *im);
/* Takes over the defaults of keys that the file leaves out. */
void import_defaults(struct importer *im);

extern const struct import_dialect import_accelerate, import_transformers, import_trl, import_axolotl,
    import_torchtitan;

#endif
