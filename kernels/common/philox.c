/* SPDX-License-Identifier: Apache-2.0 */
/* The exported form of Philox4x32-10. */
#include "common/philox.h"

#include <kernels/random.h>

void kern_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    for (int i = 0; i < 4; i++)
        out[i] = counter[i];
    philox_block(out, key[0], key[1]);
}
