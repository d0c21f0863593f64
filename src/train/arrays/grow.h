/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays that grow. */
#ifndef TRAIN_ARRAYS_GROW_H
#define TRAIN_ARRAYS_GROW_H

#include <stdbool.h>
#include <stddef.h>

/* Room for `wanted` items of item_nbytes in *array, which is owned and moves; by half at a time. false: no memory, and
 * all is as before. */
bool grow(void **array, size_t *capacity, size_t wanted, size_t item_nbytes);

#endif
