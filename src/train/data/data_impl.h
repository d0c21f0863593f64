/* Inside of struct data, shared by its reader, its packer and its plan. */
#ifndef TRAIN_DATA_IMPL_H
#define TRAIN_DATA_IMPL_H

#include "data/data.h"

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
    int32_t *ids, *labels;
    size_t ntok, tok_capacity;
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

int data_read_documents(struct data *d, const char *path, int64_t nvocab, struct fsdpck_error *err);
int data_read_plan(struct data *d, const char *path, struct fsdpck_error *err);
int data_pack(struct data *d, const struct train_config *config, const struct fsdpck_options *opt, struct fsdpck_error *err);

#endif
