/* SPDX-License-Identifier: Apache-2.0 */
/* Exact sums of doubles, in a wide integer whose unit is 2⁻¹⁰⁷⁴, the smallest double. */
#include <kernels/optimizer.h>

#include <math.h>
#include <string.h>

static void add_one(struct kern_exact *sum, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof(bits));
    uint64_t exponent = bits >> 52 & 0x7ff, mantissa = bits & 0xfffffffffffff;
    if (exponent == 0x7ff || (bits >> 63 && bits << 1)) {
        sum->limb[KERN_EXACT_LIMBS]++;
        return;
    }
    /* A normal number is (2⁵² + mantissa) · 2^(exponent - 1) units. */
    uint64_t shift = exponent ? exponent - 1 : 0;
    mantissa |= exponent ? (uint64_t)1 << 52 : 0;
    size_t at = shift / 32;
    unsigned __int128 wide = (unsigned __int128)mantissa << shift % 32;
    for (uint64_t carry = 0; wide || carry; at++, wide >>= 32) {
        uint64_t limb = sum->limb[at] + (uint32_t)wide + carry;
        sum->limb[at] = (uint32_t)limb;
        carry = limb >> 32;
    }
}

void kern_exact_add(struct kern_exact *sum, const double *x, int64_t nelem)
{
    for (int64_t i = 0; i < nelem; i++)
        add_one(sum, x[i]);
}

/* Reduces the limbs to 32 bits after accumulators were added up. */
static void normalize(uint64_t limb[KERN_EXACT_LIMBS])
{
    uint64_t carry = 0;
    for (size_t i = 0; i < KERN_EXACT_LIMBS; i++) {
        uint64_t value = limb[i] + carry;
        limb[i] = (uint32_t)value;
        carry = value >> 32;
    }
}

double kern_exact_value(const struct kern_exact *sum)
{
    uint64_t limb[KERN_EXACT_LIMBS];
    memcpy(limb, sum->limb, sizeof(limb));
    if (sum->limb[KERN_EXACT_LIMBS])
        return NAN;
    normalize(limb);
    int top = KERN_EXACT_LIMBS - 1;
    while (top > 1 && !limb[top])
        top--;
    /* Three limbs hold more than the 53 significant bits. One sticky bit records whether anything lies below them: it
     * decides ties. */
    unsigned __int128 head = (unsigned __int128)limb[top] << 64 | limb[top - 1] << 32 | (top >= 2 ? limb[top - 2] : 0);
    int exponent = (top - 2) * 32 - 1074, sticky = 0;
    for (int i = 0; i < top - 2; i++)
        sticky |= limb[i] != 0;
    int drop = 0;
    while (head >> drop >> 62)
        drop++;
    sticky |= (head & (((unsigned __int128)1 << drop) - 1)) != 0;
    uint64_t kept = (uint64_t)(head >> drop) << 1 | (uint64_t)sticky;
    /* Rounds once, by hand: ldexp would round a subnormal result twice. A subnormal result needs no rounding, as the
     * unit is the smallest double. */
    int bits = kept ? 64 - __builtin_clzll(kept) : 0, over = bits - 53;
    if (over <= 0)
        return ldexp((double)kept, exponent + drop - 1);
    uint64_t low = kept & (((uint64_t)1 << over) - 1), half = (uint64_t)1 << (over - 1);
    uint64_t high = kept >> over;
    high += low > half || (low == half && (high & 1));
    return ldexp((double)high, exponent + drop - 1 + over);
}
