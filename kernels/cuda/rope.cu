/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary positions, in place. A thread rotates eight pairs of features: those of a head's lower half with their
 * partners in the upper half, or sixteen adjacent ones. */
#include "cuda/ops.h"
#include "cuda/vec.cuh"

namespace {

struct rope_op {
    struct kern_rope_apply r;
    uint32_t per_head; /* groups of eight per half head */
    bool vectors;
    /* The n pairs from column col on. */
    template <types K>
    __device__ void turn_adjacent(int64_t row, int64_t col, int n, bool whole, const f8 &c, const f8 &s) const
    {
        for (int first = 0; first < n; first += WIDTH / 2) {
            const int npair = n - first < WIDTH / 2 ? n - first : WIDTH / 2;
            f8 x = load8<K>(as_const(r.x), row, col + 2 * first, 2 * npair, whole);
            for (int i = 0; i < npair; i++) {
                const float a = x.v[2 * i], b = x.v[2 * i + 1], sine = r.inverse ? -s.v[first + i] : s.v[first + i];
                x.v[2 * i] = a * c.v[first + i] - b * sine;
                x.v[2 * i + 1] = b * c.v[first + i] + a * sine;
            }
            store8<K>(r.x, row, col + 2 * first, 2 * npair, whole, x);
        }
    }
    /* col / WIDTH counts groups of eight of half heads, head after head. */
    template <types K> __device__ void at(int64_t row, int64_t col, int, bool) const
    {
        const uint32_t eight = (uint32_t)(col / WIDTH);
        const int64_t half = r.rotary / 2, head = eight / per_head, j = (int64_t)(eight % per_head) * WIDTH;
        const int n = half - j < WIDTH ? (int)(half - j) : WIDTH;
        const bool whole = vectors && n == WIDTH;
        const int64_t low_at = head * r.dim + j, position = r.positions[row];
        const f8 c = load8<ALL_F32>(kern_cmat{ r.cosines, half, KERN_F32 }, position, j, n, whole);
        const f8 s = load8<ALL_F32>(kern_cmat{ r.sines, half, KERN_F32 }, position, j, n, whole);
        if (r.adjacent) {
            turn_adjacent<K>(row, head * r.dim + 2 * j, n, whole, c, s);
            return;
        }
        f8 low = load8<K>(as_const(r.x), row, low_at, n, whole),
           high = load8<K>(as_const(r.x), row, low_at + half, n, whole);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            const float a = low.v[i], b = high.v[i], sine = r.inverse ? -s.v[i] : s.v[i];
            low.v[i] = a * c.v[i] - b * sine;
            high.v[i] = b * c.v[i] + a * sine;
        }
        store8<K>(r.x, row, low_at, n, whole, low);
        store8<K>(r.x, row, low_at + half, n, whole, high);
    }
};

} // namespace

void cuda_rope(struct kern_stream *stream, const struct kern_rope_apply *r)
{
    const int64_t half = r->rotary / 2, per_head = (half + WIDTH - 1) / WIDTH;
    const bool vectors = aligned({ r->x, r->cosines, r->sines }) && half % WIDTH == 0;
    for_eights(stream, { r->x }, r->nrow, r->nhead * per_head * WIDTH, rope_op{ *r, (uint32_t)per_head, vectors });
}
