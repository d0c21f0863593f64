/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of struct data, shared by its reader, its packer and its plan. */
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

/* What an epoch's shuffle came to. */
struct epoch_order {
    uint64_t epoch; /* UINT64_MAX: none yet */
    uint32_t rows[];
};

struct data {
    struct document *docs; /* in the order of the files */
    size_t ndocs, docs_capacity;
    XXH3_state_t *ids_hash, *labels_hash; /* of all documents as they were read, while they are */
    uint64_t content[2];                  /* what came of them */
    void *map;                            /* of the token cache; NULL: the sections are in memory */
    size_t map_nbytes;
    struct data_section *sections; /* (nsections) owned */
    size_t nsections, sections_capacity;
    size_t *file_ends; /* (nfiles) documents of the files up to each */
    size_t nfiles;
    uint64_t nskipped;            /* lines left out (data.on_bad_line) */
    uint64_t nnoted[CHAT_NNOTES]; /* documents with each note */
    bool dated;                   /* the chat template shows the date */
    bool planned;                 /* by data.plan: steps → micro-batches → docs. Else rows → docs */
    struct lists steps, groups;
    uint32_t *members; /* documents of the groups (micro-batches or rows) */
    size_t nmembers, members_capacity;
    struct epoch_order *order; /* of the epoch that was asked for last; NULL where it is planned */
    uint64_t seed, fingerprint;
    size_t micro_rows, step_rows;
};

bool lists_end(struct lists *l, size_t at); /* the open list ends here, the next begins */

/* What lines are turned into documents with; the same for all of a run's. */
struct data_reader {
    const struct train_config *config;
    const struct chat *chat; /* NULL: only lines of input_ids are read */
    int64_t nvocab;
    const struct fsdpck_options *opt; /* nthreads: of this process; may be NULL */
};

/* The documents of a part of a file, one after the other. Zero-initialise. */
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
/* Adds the document of one line. An error names the line. */
int data_add_line(struct data_section *s, const struct data_reader *reader, struct chat_coder *coder, const char *path,
                  uint64_t line, const char *text, size_t nbytes, struct fsdpck_error *err);

/* Sections to documents, in their order; what a section points at must stay. *sound false: it holds what no run may
 * see. */
int data_take_begin(struct data *d, size_t nfiles, struct fsdpck_error *err);
int data_take_section(struct data *d, const struct data_section *s, int64_t nvocab, bool *sound,
                      struct fsdpck_error *err);
void data_take_end(struct data *d);
void data_free_documents(struct data *d);
void data_take_fingerprint(struct data *d);
/* Documents as often as the weights of their files say. */
int data_weigh(struct data *d, const struct train_config *config, struct fsdpck_error *err);

struct data_cache;
/* The sections of all parts of config->data.files, made by all threads, and by all processes that build the same cache;
 * cache NULL: kept in `into`. */
int data_build(const struct data_reader *reader, struct data_cache *cache, struct data *into, struct fsdpck_error *err);

int data_read_plan(struct data *d, const char *path, struct fsdpck_error *err);
int data_pack(struct data *d, const struct train_config *config, const struct fsdpck_options *opt,
              struct fsdpck_error *err);

#endif
