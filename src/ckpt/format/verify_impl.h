/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files that verify an fsdpck directory. */
#ifndef CKPT_VERIFY_IMPL_H
#define CKPT_VERIFY_IMPL_H

#include "format/source_fsdpck.h"

struct fsdpck_verifier {
    struct fsdpck_source *src;
    bool quick; /* check sizes instead of bytes */
    fsdpck_problem_fn report;
    void *ctx;
    struct fsdpck_verify_result *result;
    struct fsdpck_verify_contents *contents;
    bool *unread; /* (files) */
    pthread_mutex_t lock;
    bool metadata_pending; /* the valid .metadata still has its temporary name: a save in place was committed, but not
                            cleaned up */
};

/* Counts a problem and reports it; one thread at a time. */
void fsdpck_verifier_report(struct fsdpck_verifier *v, const struct fsdpck_problem *problem);
/* Reports a problem with a rank's file, or with one tensor in it (NULL: none). */
void fsdpck_verifier_report_file(struct fsdpck_verifier *v, uint32_t rank, uint64_t offset, const char *tensor,
                                 const char *what);
/* Records that some bytes of a rank's file will not be checked, which was reported. Counted once per file. */
void fsdpck_verifier_unread(struct fsdpck_verifier *v, uint32_t rank);
/* Handles the error of a step on a rank's file: copies a system error to err and returns it; reports any other error as
 * a problem and returns 0. */
int fsdpck_verifier_report_error(struct fsdpck_verifier *v, int code, const struct fsdpck_error *e, uint32_t rank,
                                 struct fsdpck_error *err);
/* Returns true for system errors, which end the verification, in contrast to damaged bytes. */
static inline bool fsdpck_is_system_error(int code)
{
    return code == FSDPCK_ERR_IO || code == FSDPCK_ERR_NOMEM || code == FSDPCK_ERR_STOPPED;
}

/* Checks every byte before the chunk tables, for files whose tables were read: payload blocks against their hashes, the
 * rest against the envelope hash. */
int fsdpck_verify_bytes(struct fsdpck_verifier *v, struct fsdpck_error *err);

/* verify_content.c: the content ids. Create it after the tables are read. Tensors with rows longer than this are read
 * again. */
#define FSDPCK_VERIFY_ROW_NBYTES (1u << 20)
int fsdpck_verify_contents_new(struct fsdpck_verifier *v, struct fsdpck_verify_contents **out,
                               struct fsdpck_error *err); /* free it even after failure */
void fsdpck_verify_contents_free(struct fsdpck_verify_contents *c);
/* Adds bytes [begin, end) of an entry's decoded payload, which were read and are intact. Thread-safe, in any order. */
void fsdpck_verify_contents_add(struct fsdpck_verify_contents *c, uint32_t rank, const struct fsdpck_table *t,
                                const struct fsdpck_table_entry *e, uint64_t begin, uint64_t end, const uint8_t *data);
void fsdpck_verify_contents_suspect(struct fsdpck_verify_contents *c,
                                    size_t tensor); /* another problem with it was reported */
/* Call at the end: reports mismatches. quick: compares the index with the tables. */
int fsdpck_verify_contents_check(struct fsdpck_verify_contents *c, struct fsdpck_error *err);

/* verify_metadata.c: compares .metadata with index.json and the tables. Reads items' headers unless quick. */
int fsdpck_verify_metadata(struct fsdpck_verifier *v, struct fsdpck_error *err);

/* Checks .metadata, assets, and stray files. */
int fsdpck_verify_others(struct fsdpck_verifier *v, struct fsdpck_error *err);

#endif
