/* SPDX-License-Identifier: Apache-2.0 */
/* The two output forms of `fsdpck ls`: text and JSON. */
#ifndef TOOLS_LS_H
#define TOOLS_LS_H

#include <fsdpck/check.h>
#include <fsdpck/select.h>

#include "common/json_out.h"

/* Returns true if a tensor is listed. glob NULL: all are. */
bool ls_listed(const struct fsdpck_tensor *t, const char *glob);

/* Lists the distinct meshes of a source, in the order of their first tensors. *out: an owned array of borrowed meshes.
 * Returns false if out of memory. */
bool ls_meshes(const struct fsdpck_source *src, const struct fsdpck_mesh ***out, size_t *count);

uint64_t ls_payload_nbytes(const struct fsdpck_source *src); /* of all tensors; aliases do not count */
/* Bytes of all files per byte of payload; below 1 if compression saves more than the tables take. */
double ls_ratio(const struct fsdpck_source *src);

void ls_text_header(const struct fsdpck_source *src);
void ls_text_leftover(void *ctx, const struct fsdpck_leftover *l); /* ctx: unused */
void ls_text_tensors(const struct fsdpck_source *src, const char *glob);

struct ls_json {
    json_t *object, *leftovers; /* leftovers is borrowed from object */
    bool complete;
};

void ls_json_start(struct ls_json *ls, const struct fsdpck_source *src, const char *glob);
void ls_json_leftover(void *ctx, const struct fsdpck_leftover *l); /* ctx: struct ls_json */

#endif
