/* SPDX-License-Identifier: Apache-2.0 */
/* numpy-like slices of a tensor: "0:8,:", "-1", "3,:,2:". */
#ifndef TOOLS_SLICE_H
#define TOOLS_SLICE_H

#include <fsdpck/tensor.h>

struct slice {
    uint64_t offset[FSDPCK_MAX_DIMS], size[FSDPCK_MAX_DIMS]; /* (ndim) box of the tensor, inside its shape */
    bool dropped[FSDPCK_MAX_DIMS]; /* an index, not a range: the result lacks this dimension */
    uint64_t nelem;
};

/* text NULL: the whole tensor. Dimensions that text does not name are whole. Ranges are clamped as in numpy; an index
 * out of range is an error. */
int slice_parse(const char *text, const struct fsdpck_tensor *t, struct slice *out, struct fsdpck_error *err);

#endif
