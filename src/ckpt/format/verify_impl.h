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
    pthread_mutex_t lock;
};

/* Counts a problem and hands it on, one at a time. */
void fsdpck_verifier_report(struct fsdpck_verifier *v, const struct fsdpck_problem *problem);
/* What is wrong with a rank's file, or with one tensor (NULL: none) in it. */
void fsdpck_verifier_report_file(struct fsdpck_verifier *v, uint32_t rank, uint64_t offset, const char *tensor, const char *what);
/* What a step on a rank's file came to: a system error goes to err and is returned, anything else is reported, and 0 returned. */
int fsdpck_verifier_settle(struct fsdpck_verifier *v, int code, const struct fsdpck_error *e, uint32_t rank, struct fsdpck_error *err);
/* What is wrong with the system, not with the bytes, ends the work. */
static inline bool fsdpck_is_system_error(int code) { return code == FSDPCK_ERR_IO || code == FSDPCK_ERR_NOMEM || code == FSDPCK_ERR_STOPPED; }

/* Every byte before the chunk tables of the files whose tables were read: payload blocks against their hashes, the rest against the envelopes'. */
int fsdpck_verify_bytes(struct fsdpck_verifier *v, struct fsdpck_error *err);

/* .metadata, assets, and files that do not belong there. */
int fsdpck_verify_others(struct fsdpck_verifier *v, struct fsdpck_error *err);

#endif
