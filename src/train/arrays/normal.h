/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAIN_NORMAL_H
#define TRAIN_NORMAL_H

#include <kernels/random.h>

/* Standard normal numbers by Box and Muller (1958), from Philox. An element depends on its index only: dst[0] is number
 * index0. */
void normal_draw(float *dst, uint64_t nelem, const struct kern_philox *rng, uint64_t index0);

#endif
