/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a source inside the library: like fsdpck_source_open(), or for verify. */
#ifndef CKPT_VERBS_OPEN_H
#define CKPT_VERBS_OPEN_H

#include <fsdpck/source.h>

/* fsdpck_source_open(); to_verify: a missing file or wrong size is a problem to report, see struct fsdpck_source. */
int fsdpck_source_open_as(const char *path, const char *from, const struct fsdpck_options *opt, bool to_verify,
                          struct fsdpck_source **out, struct fsdpck_error *err);

#endif
