/* SPDX-License-Identifier: Apache-2.0 */
#include "draw.h"

static uint64_t state = 88172645463325252u;

uint64_t draw_bits(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

uint64_t draw(uint64_t below)
{
    return (draw_bits() >> 11) % below; /* the low bits are the weak ones */
}
