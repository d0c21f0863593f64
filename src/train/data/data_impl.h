/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of struct data, shared by reader, packer and plan. */
#ifndef TRAIN_DATA_IMPL_H
#define TRAIN_DATA_IMPL_H

#include "arrays/grow.h"
#include "data/data.h"

#include <train/chat.h>

typedef struct XXH3_state_s XXH3_state_t;

struct document {
    const int32_t *ids, *labels; /* (ntok) in a section */
    uint32_t ntok, nsupervised;
};

/* Lists of lists as offsets: list i of `of` is entries at[i] … at[i+1]-1. */
struct lists {
    size_t *at; /* (count + 1) */
    size_t count, capacity;
};

/* The order of rows in an epoch. */
struct epoch_order {
    uint64_t epoch; /* UINT64_MAX: none yet */
    uint32_t rows[];
};

struct data {
    struct document *docs; /* in the order of the files */
    size_t ndocs, docs_capacity;
    XXH3_state_t *ids_hash, *labels_hash; /* of the documents, while they are read */
    uint64_t content[2];                  /* the final hashes */
    void *map;                            /* the mapped token cache; NULL: the sections are in memory */
    size_t map_nbytes;
    struct data_section *sections; /* (nsections) owned */
    size_t nsections, sections_capacity;
    size_t *file_ends; /* (nfiles) number of documents up to the end of each file */
    size_t nfiles;
    uint64_t nskipped;            /* number of lines skipped by data.on_bad_line */
    uint64_t nnoted[CHAT_NNOTES]; /* number of documents with each note */
    bool dated;                   /* the chat template shows the date */
    bool planned;                 /* with data.plan: steps → micro-batches → docs; otherwise rows → docs */
    struct lists steps, groups;
    uint32_t *members; /* the documents of the groups (micro-batches or rows) */
    size_t nmembers, members_capacity;
    struct epoch_order *order; /* order of the epoch last used; NULL if planned */
    uint64_t seed, fingerprint;
    size_t micro_rows, step_rows;
    struct picture_set *pictures; /* owned; NULL: the documents are text */
};

bool lists_end(struct lists *l, size_t at); /* ends the last list at `at` */

/* Everything that converts lines to documents; shared by all threads. */
struct data_reader {
    const struct train_config *config;
    const struct chat *chat; /* NULL: accept lines with input_ids only */
    int64_t nvocab;
    const struct fsdpck_options *opt; /* nthreads: threads of this process; may be NULL */
};

/* The documents of a part of a file, concatenated. Zero-initialise. */
struct data_section_doc {
    uint32_t ntok, nsupervised;
};

struct data_section {
    struct data_section_doc *docs; /* (ndocs) */
    size_t ndocs, docs_capacity;
    int32_t *ids, *labels; /* (ntok) */
    size_t ntok, tok_capacity;
    uint64_t nskipped, nnoted[CHAT_NNOTES];
    uint32_t file;
};

void data_section_free(struct data_section *s);
/* Adds the document of one line. Errors name the line. */
int data_add_line(struct data_section *s, const struct data_reader *reader, struct chat_coder *coder, const char *path,
                  uint64_t line, const char *text, size_t nbytes, struct fsdpck_error *err);

/* Converts sections to documents, in order. The documents point into the sections, which must remain valid. *sound
 * false: a section has invalid contents. */
int data_documents_begin(struct data *d, size_t nfiles, struct fsdpck_error *err);
int data_documents_add(struct data *d, const struct data_section *s, int64_t nvocab, bool *sound,
                       struct fsdpck_error *err);
void data_documents_end(struct data *d);
void data_free_documents(struct data *d);
void data_documents_fingerprint(struct data *d);
/* Repeats documents according to the weights of their files. */
int data_apply_weights(struct data *d, const struct train_config *config, struct fsdpck_error *err);

struct data_cache;
/* Builds the sections of all parts of config->data.files, with all threads, together with the other processes that
 * build the same cache. cache NULL: stores the sections in `into`. */
int data_build(const struct data_reader *reader, struct data_cache *cache, struct data *into, struct fsdpck_error *err);

/* Memory for the order of an epoch. */
int data_make_order(struct data *d, struct fsdpck_error *err);
int data_read_plan(struct data *d, const char *path, struct fsdpck_error *err);
int data_pack(struct data *d, const struct train_config *config, const struct fsdpck_options *opt,
              struct fsdpck_error *err);

#endif
