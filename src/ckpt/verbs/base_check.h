/* SPDX-License-Identifier: Apache-2.0 */
/* What the verbs that carry adapters elsewhere do about the base that stays where it is. */
#ifndef CKPT_BASE_CHECK_H
#define CKPT_BASE_CHECK_H

#include <fsdpck/base.h>

/* Refuses a base that is another than src names, as far as that can be told without reading weights; one that is not there is said through opt->note.
 * 0 where src names none. */
int fsdpck_base_check_quick(const struct fsdpck_source *src, const struct fsdpck_options *opt, struct fsdpck_error *err);

#endif
