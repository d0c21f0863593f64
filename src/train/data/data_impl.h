/* Inside of struct data, shared by its reader, its packer and its plan. */
#ifndef TRAIN_DATA_IMPL_H
#define TRAIN_DATA_IMPL_H

#include "data/data.h"

struct chat;
struct chat_coder; /* one thread's */

struct document {
    uint64_t first; /* in ids and targets */
    uint32_t ntok, nsupervised;
};

/* Lists of lists as offsets: list i of `of` is entries at[i] … at[i+1]-1. */
struct lists {
    size_t *at; /* (count + 1) */
    size_t count, capacity;
};

struct data {
    struct document *docs;
    size_t ndocs, docs_capacity;
    int32_t *ids, *labels; /* (ntok) owned, or in the map */
    size_t ntok, tok_capacity;
    void *map; /* of the token cache; NULL: none */
    size_t map_nbytes;
    size_t *file_ends; /* (nfiles) documents of the files up to each */
    size_t nfiles;
    uint64_t nskipped; /* lines left out (data.on_bad_line) */
    bool planned; /* by data.plan: steps → micro-batches → docs. Else rows → docs */
    struct lists steps, groups;
    uint32_t *members; /* documents of the groups (micro-batches or rows) */
    size_t nmembers, members_capacity;
    uint64_t seed, fingerprint;
    size_t micro_rows, step_rows;
};

/* Room for `wanted` items; false where there is no memory. */
bool data_grow(void **array, size_t *capacity, size_t wanted, size_t item_nbytes);
bool lists_end(struct lists *l, size_t at); /* the open list ends here, the next begins */

/* What lines are turned into documents with; the same for all of a run's. */
struct data_reader {
    const struct train_config *config;
    const struct chat *chat; /* NULL: only lines of input_ids are read */
    int64_t nvocab;
};
/* Adds the document of one line. An error names the line. */
int data_add_line(struct data *d, const struct data_reader *reader, struct chat_coder *coder, const char *path, uint64_t line, const char *text, size_t nbytes,
                  struct fsdpck_error *err);
/* Whether a line is tokenized already (or is no JSON, which data_add_line() then says). */
bool data_line_has_ids(const char *text, size_t nbytes);
/* All documents of config->data.files, by all processors. */
int data_read_documents(struct data *d, const struct data_reader *reader, struct fsdpck_error *err);
/* Whether the first line of some file is text. */
int data_has_text(const struct train_config *config, bool *out, struct fsdpck_error *err);
void data_free_documents(struct data *d);
/* Documents as often as the weights of their files say. */
int data_weigh(struct data *d, const struct train_config *config, struct fsdpck_error *err);

/* The documents in a file of output_dir that every rank maps. key: of everything that went into it. */
int data_cache_key(const struct data_reader *reader, uint64_t *key, struct fsdpck_error *err);
int data_cache_path(const struct train_config *config, uint64_t key, char *path, size_t path_nbytes, struct fsdpck_error *err);
/* *found false: there is none, or it is damaged: it is to be made. */
int data_cache_map(struct data *d, const char *path, uint64_t key, int64_t nvocab, bool *found, struct fsdpck_error *err);
/* Waits for others who make it; close(*fd) lets go, and so does the end of a process. */
int data_cache_lock(const char *path, int *fd, struct fsdpck_error *err);
int data_cache_write(const struct data *d, const char *path, uint64_t key, struct fsdpck_error *err);
int data_read_plan(struct data *d, const char *path, struct fsdpck_error *err);
int data_pack(struct data *d, const struct train_config *config, const struct fsdpck_options *opt, struct fsdpck_error *err);

#endif
