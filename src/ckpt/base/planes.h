/* SPDX-License-Identifier: Apache-2.0 */
/* Converts elements to byte planes and back (FORMAT.md section 8.2): bytes of one significance are contiguous, so that
 * the predictable ones can be coded separately. Pure. */
#ifndef CKPT_PLANES_H
#define CKPT_PLANES_H

#include <fsdpck/dtype.h>

#define FSDPCK_PLANES_MAX 8u

struct fsdpck_planes {
    uint32_t unit; /* bytes of a number: 1, 2, 4 or 8; the number of planes is the same */
    bool rotate; /* rotate left by one bit first: the sign moves to the low end, and the exponent fills the first plane
                  */
};

struct fsdpck_planes fsdpck_planes_of(enum fsdpck_dtype dtype);
/* Splits n numbers into plane[0], the most significant bytes, … plane[unit - 1]; (n) bytes each. */
void fsdpck_planes_split(const struct fsdpck_planes *p, const uint8_t *in, uint8_t *const *plane, uint32_t n);
void fsdpck_planes_merge(const struct fsdpck_planes *p, const uint8_t *const *plane, uint8_t *out, uint32_t n);

#endif
