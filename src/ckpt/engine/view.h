/* SPDX-License-Identifier: Apache-2.0 */
/* Common to all views, which are sources that present another source with other tensors. A view is a struct whose first
 * member is struct fsdpck_view; the view adds what it needs to find its tensors in the inner source. */
#ifndef CKPT_VIEW_H
#define CKPT_VIEW_H

#include "engine/source_impl.h"

struct fsdpck_view {
    struct fsdpck_source inner; /* the source as it was opened */
    struct fsdpck_source_ops ops;
    uint64_t state_nbytes; /* of a value view: what fsdpck_view_state_nbytes() returns */
};

/* Puts v, which malloc() allocated, before src: src->impl is v, and src has no tensors until the view lists its own.
 * Takes extents, close and values of ops, the rest from the source. Closing src frees v. */
void fsdpck_view_install(struct fsdpck_view *v, struct fsdpck_source *src, const struct fsdpck_source_ops *ops);
/* For ops.close: closes the inner source and frees v. A view that owns more frees that first. */
void fsdpck_view_close(struct fsdpck_source *src);
/* Instead of closing: src is again the source as opened. A view that owns more frees that first. */
void fsdpck_view_remove(struct fsdpck_source *src);
/* Lists a tensor t of the inner source as it is, under this name (NULL: its own). */
int fsdpck_view_show(struct fsdpck_source *src, const struct fsdpck_tensor *t, const char *name,
                     struct fsdpck_error *err);
/* Lists all tensors of the inner source as they are; those that the view computes lose their content ids. */
int fsdpck_view_show_all(struct fsdpck_source *src, struct fsdpck_error *err);
/* For ops.extents: refuses a computed tensor. how: how it is made, such as "is computed". */
int fsdpck_view_no_extents(const struct fsdpck_source *src, size_t ordinal, const char *how, struct fsdpck_error *err);
/* For values.finish of a view with one inner source. */
int fsdpck_view_finish(struct fsdpck_source *src, uint64_t *read_nbytes, struct fsdpck_error *err);
/* For values.nbytes. */
uint64_t fsdpck_view_state_nbytes(const struct fsdpck_source *src);

#endif
