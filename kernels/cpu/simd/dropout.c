/* Dropout's mask from Philox, four numbers a block. Compiled once for each instruction set. */
#include "cpu/simd/table.h"
#include "cpu/simd/vec.h"

/* Blocks at a time: enough for the compiler to put one in each lane. */
enum { BLOCKS = 16 };

/* Words of the blocks first … first+BLOCKS-1, in order. The block function is kern_philox4x32's, with lanes for blocks. */
INLINE void draw(const struct kern_philox *rng, uint64_t first, uint32_t out[4 * BLOCKS])
{
    uint32_t c0[BLOCKS], c1[BLOCKS], c2[BLOCKS], c3[BLOCKS], k0 = (uint32_t)rng->seed, k1 = (uint32_t)(rng->seed >> 32);
    for (int i = 0; i < BLOCKS; i++) {
        c0[i] = (uint32_t)(first + (uint64_t)i);
        c1[i] = (uint32_t)((first + (uint64_t)i) >> 32);
        c2[i] = rng->step;
        c3[i] = rng->name;
    }
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < BLOCKS; i++) {
            uint64_t a = (uint64_t)c0[i] * 0xD2511F53u, b = (uint64_t)c2[i] * 0xCD9E8D57u;
            c0[i] = (uint32_t)(b >> 32) ^ c1[i] ^ k0;
            c1[i] = (uint32_t)b;
            c2[i] = (uint32_t)(a >> 32) ^ c3[i] ^ k1;
            c3[i] = (uint32_t)a;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < BLOCKS; i++) {
        out[4 * i] = c0[i];
        out[4 * i + 1] = c1[i];
        out[4 * i + 2] = c2[i];
        out[4 * i + 3] = c3[i];
    }
}

void SIMD_DROPOUT(float *y, const float *x, float p, float keep, const struct kern_philox *rng, uint64_t index, int64_t n)
{
    int64_t at = -(int64_t)(index % 4); /* element that the block's first word belongs to */
    for (uint64_t first = index / 4; at < n; first += BLOCKS, at += 4 * BLOCKS) {
        uint32_t u[4 * BLOCKS];
        draw(rng, first, u);
        int64_t from = at < 0 ? -at : 0, to = n - at < 4 * BLOCKS ? n - at : 4 * BLOCKS;
        for (int64_t i = from; i < to; i++)
            y[at + i] = (float)(u[i] >> 8) * 0x1p-24f >= p ? x[at + i] * keep : 0.0f;
    }
}
