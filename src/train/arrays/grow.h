/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays that grow. */
#ifndef TRAIN_ARRAYS_GROW_H
#define TRAIN_ARRAYS_GROW_H

#include <stdbool.h>
#include <stddef.h>

/* Makes room for `wanted` items of item_nbytes in *array, which is owned and may move. Allocates half as much again.
 * false: out of memory; nothing has changed. */
bool grow(void **array, size_t *capacity, size_t wanted, size_t item_nbytes);

#endif
