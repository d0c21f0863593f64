/* SPDX-License-Identifier: Apache-2.0 */
/* The quick check of a frozen base, for the verbs that copy adapters without it. */
#ifndef CKPT_BASE_CHECK_H
#define CKPT_BASE_CHECK_H

#include <fsdpck/base.h>

/* Refuses a base that differs from the one that src names, as far as it can tell without reading weights. A missing
 * base is only noted (opt->note). Returns 0 if src names no base. */
int fsdpck_base_check_quick(const struct fsdpck_source *src, const struct fsdpck_options *opt,
                            struct fsdpck_error *err);

#endif
