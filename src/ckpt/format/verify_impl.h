/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files that verify an fsdpck directory. */
#ifndef CKPT_VERIFY_IMPL_H
#define CKPT_VERIFY_IMPL_H

#include "format/source_fsdpck.h"

struct fsdpck_verifier {
    struct fsdpck_source *src;
    bool quick; /* sizes instead of bytes */
    fsdpck_problem_fn report;
    void *ctx;
    struct fsdpck_verify_result *result;
    struct fsdpck_verify_contents *contents;
    bool *unread; /* (files) */
    pthread_mutex_t lock;
    bool metadata_waits; /* the .metadata that counts has not got its name yet: a save in place was committed, and not
                            cleaned up */
};

/* Counts a problem and hands it on, one at a time. */
void fsdpck_verifier_report(struct fsdpck_verifier *v, const struct fsdpck_problem *problem);
/* Reports a problem with a rank's file, or with one tensor in it (NULL: none). */
void fsdpck_verifier_report_file(struct fsdpck_verifier *v, uint32_t rank, uint64_t offset, const char *tensor,
                                 const char *what);
/* Some bytes of a rank's file will not be checked; that was reported. Counted once a file. */
void fsdpck_verifier_unread(struct fsdpck_verifier *v, uint32_t rank);
/* Handles the error of a step on a rank's file: copies a system error to err and returns it; reports any other error as
 * a problem and returns 0. */
int fsdpck_verifier_report_error(struct fsdpck_verifier *v, int code, const struct fsdpck_error *e, uint32_t rank,
                                 struct fsdpck_error *err);
/* Returns true for errors of the system, as opposed to damaged bytes: they end the work. */
static inline bool fsdpck_is_system_error(int code)
{
    return code == FSDPCK_ERR_IO || code == FSDPCK_ERR_NOMEM || code == FSDPCK_ERR_STOPPED;
}

/* Every byte before the chunk tables of the files whose tables were read: payload blocks against their hashes, the rest
 * against the envelopes'. */
int fsdpck_verify_bytes(struct fsdpck_verifier *v, struct fsdpck_error *err);

/* verify_content.c: the content ids. Create it after the tables are read. Tensors with longer rows than that are read
 * again. */
#define FSDPCK_VERIFY_ROW_NBYTES (1u << 20)
int fsdpck_verify_contents_new(struct fsdpck_verifier *v, struct fsdpck_verify_contents **out,
                               struct fsdpck_error *err); /* free in any case */
void fsdpck_verify_contents_free(struct fsdpck_verify_contents *c);
/* Bytes [begin, end) of an entry's decoded payload were read and are sound. Thread-safe, in any order. */
void fsdpck_verify_contents_add(struct fsdpck_verify_contents *c, uint32_t rank, const struct fsdpck_table *t,
                                const struct fsdpck_table_entry *e, uint64_t begin, uint64_t end, const uint8_t *data);
void fsdpck_verify_contents_suspect(struct fsdpck_verify_contents *c,
                                    size_t tensor); /* another problem of it was reported */
/* At the end: reports what is wrong. quick: holds the index against the tables. */
int fsdpck_verify_contents_check(struct fsdpck_verify_contents *c, struct fsdpck_error *err);

/* verify_metadata.c: compares .metadata with index.json and the tables. Reads items' headers unless quick. */
int fsdpck_verify_metadata(struct fsdpck_verifier *v, struct fsdpck_error *err);

/* .metadata, assets, and files that do not belong there. */
int fsdpck_verify_others(struct fsdpck_verifier *v, struct fsdpck_error *err);

#endif
