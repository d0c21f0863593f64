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
/* What is wrong with the system, not with the bytes, ends the work. */
static inline bool fsdpck_is_system_error(int code) { return code == FSDPCK_ERR_IO || code == FSDPCK_ERR_NOMEM || code == FSDPCK_ERR_STOPPED; }

/* .metadata, assets, and files that do not belong there. */
int fsdpck_verify_others(struct fsdpck_verifier *v, struct fsdpck_error *err);

#endif
