/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of a save's request. All return 0 or FSDPCK_ERR_USAGE, and the last one may run out of memory. */
#ifndef CKPT_SAVE_CHECK_H
#define CKPT_SAVE_CHECK_H

#include <fsdpck/save.h>

/* The output, and the numbers of ranks. */
int fsdpck_save_check_ranks(const struct fsdpck_save_request *req, struct fsdpck_error *err);
/* Names, shapes, dtypes and meshes. */
int fsdpck_save_check_lists(const struct fsdpck_save_request *req, struct fsdpck_error *err);
/* The boxes and items of this rank, of checked lists: boxes follow from placements. */
int fsdpck_save_check_data(const struct fsdpck_save_request *req, struct fsdpck_error *err);
/* A JSON object, or NULL. */
int fsdpck_save_check_state(const char *state, struct fsdpck_error *err);

#endif
