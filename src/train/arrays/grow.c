/* SPDX-License-Identifier: Apache-2.0 */
#include "arrays/grow.h"

#include <stdlib.h>

bool grow(void **array, size_t *capacity, size_t wanted, size_t item_nbytes)
{
    if (wanted <= *capacity)
        return true;
    size_t grown = wanted + wanted / 2 + 16;
    void *moved = reallocarray(*array, grown, item_nbytes);
    if (!moved)
        return false;
    *array = moved;
    *capacity = grown;
    return true;
}
