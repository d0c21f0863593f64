/* SPDX-License-Identifier: Apache-2.0 */
/* The two faces of `fsdpck ls`: for people and as JSON. */
#ifndef TOOLS_LS_H
#define TOOLS_LS_H

#include <fsdpck/check.h>
#include <fsdpck/select.h>

#include "common/json_out.h"

/* Whether a tensor is listed; glob NULL: every one. */
bool ls_listed(const struct fsdpck_tensor *t, const char *glob);

/* Distinct meshes of a source in the order of their first tensors. Owned array of borrowed meshes; NULL with *count 0
 * where there are none; false: no memory. */
bool ls_meshes(const struct fsdpck_source *src, const struct fsdpck_mesh ***out, size_t *count);

uint64_t ls_payload_nbytes(const struct fsdpck_source *src); /* of all tensors, aliases counted once */
/* Bytes of all files for each of payload: under 1 where a compressed checkpoint is larger than its tables. */
double ls_ratio(const struct fsdpck_source *src);

void ls_text_header(const struct fsdpck_source *src);
void ls_text_leftover(void *ctx, const struct fsdpck_leftover *l); /* ctx: not used */
void ls_text_tensors(const struct fsdpck_source *src, const char *glob);

struct ls_json {
    json_t *object, *leftovers; /* leftovers is borrowed from object */
    bool complete;
};

void ls_json_start(struct ls_json *ls, const struct fsdpck_source *src, const char *glob);
void ls_json_leftover(void *ctx, const struct fsdpck_leftover *l); /* ctx: struct ls_json */

#endif
