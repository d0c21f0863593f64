/* SPDX-License-Identifier: Apache-2.0 */
/* Decoding of one token. Matrix-vector products: one warp per row, over the rows of all matrices of a call; each weight
 * is read once. Attention: the keys of a head are divided among blocks, and within a block among lanes; the partial
 * results are joined in a fixed order. */
#include "cuda/ops.h"
#include "cuda/reduce.cuh"
#include "cuda/vec.cuh"

namespace {

enum { PARTS = 8 }; /* per launch */

struct parts {
    int64_t k;
    struct kern_cmat x;
    struct kern_gemv_part part[PARTS];
    bool vectors[PARTS];
    int n;
};

enum { STEP = WARP * WIDTH };                                   /* columns that a warp processes at a time */
template <types K> constexpr int AHEAD = K == ALL_BF16 ? 4 : 2; /* steps in flight */

__device__ __forceinline__ float add_products(float sum, const f8 &a, const f8 &b)
{
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        sum += a.v[i] * b.v[i];
    return sum;
}

template <types K>
__device__ __forceinline__ float dot_row(const struct kern_cmat &w, int64_t row, const struct kern_cmat &x, int64_t k,
                                         bool vectors)
{
    int64_t col = (int64_t)(threadIdx.x % WARP) * WIDTH;
    float sum = 0;
    for (; vectors && col + (AHEAD<K> - 1) * STEP + WIDTH <= k; col += AHEAD<K> * STEP) {
        raw8<K> a[AHEAD<K>], b[AHEAD<K>];
#pragma unroll
        for (int i = 0; i < AHEAD<K>; i++)
            a[i] = load_raw8<K>(w, row, col + i * STEP, WIDTH, true);
#pragma unroll
        for (int i = 0; i < AHEAD<K>; i++)
            b[i] = load_raw8<K>(x, 0, col + i * STEP, WIDTH, true);
#pragma unroll
        for (int i = 0; i < AHEAD<K>; i++)
            sum = add_products(sum, unpack(a[i]), unpack(b[i]));
    }
    for (; col < k; col += STEP) {
        const int n = k - col < WIDTH ? (int)(k - col) : WIDTH;
        sum = add_products(sum, load8<K>(w, row, col, n, vectors && n == WIDTH),
                           load8<K>(x, 0, col, n, vectors && n == WIDTH));
    }
    return warp_sum(sum);
}

__device__ __forceinline__ void finish_row(const struct kern_gemv_part &p, int64_t row, float sum)
{
    if (p.bias.data)
        sum += load1<MIXED>(p.bias, 0, row);
    if (p.add.data)
        sum += load1<MIXED>(p.add, 0, row);
    store1<MIXED>(p.y, 0, row, sum);
}

/* Four blocks per multiprocessor leave enough registers for the loads in flight. Without this bound the compiler saves
 * registers and waits between loads. */
template <types K> __global__ void __launch_bounds__(THREADS, 4) dot_rows(parts all)
{
    int64_t row = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / WARP;
    int i = 0;
    for (; i < all.n && row >= all.part[i].n; i++)
        row -= all.part[i].n;
    if (i == all.n)
        return;
    const struct kern_gemv_part &p = all.part[i];
    float sum = p.alpha * dot_row<K>(p.w, row, all.x, all.k, all.vectors[i]);
    if (p.r)
        sum += dot_row<MIXED>(p.b, row, kern_cmat{ p.s, p.r, KERN_F32 }, p.r, false);
    if (threadIdx.x % WARP == 0)
        finish_row(p, row, sum);
}

void run_dot_rows(struct kern_stream *stream, const parts &all, types kind, int64_t nrow)
{
    const dim3 grid = blocks_for(nrow, THREADS / WARP);
    switch (kind) {
    case ALL_F32: launch(stream, dot_rows<ALL_F32>, grid, THREADS, 0, all); break;
    case ALL_BF16: launch(stream, dot_rows<ALL_BF16>, grid, THREADS, 0, all); break;
    case MIXED: launch(stream, dot_rows<MIXED>, grid, THREADS, 0, all); break;
    }
}

enum {
    MAX_DIM = WARP * WIDTH,
    MIN_LANES = 8
}; /* features of a head; lanes that share a key, each with eight of its features */
template <types K> constexpr int KEYS = K == ALL_BF16 ? 4 : 2; /* keys in flight at once */

/* Partial results of attention over n ranges of the keys of a head: the maximum scores, Σ exp(score - top), and the
 * sums of values with those weights, in rows of pitch features. */
struct partial_attention {
    float *top, *sum, *o;
    int64_t n, pitch;
};

/* Partial results of the lanes of a block, in shared memory. */
struct block_results {
    float top[THREADS / MIN_LANES], sum[THREADS / MIN_LANES], o[THREADS * WIDTH];
};

/* State of a lane: n of eight features, from column col on, of the keys and values; and the online softmax over the
 * keys seen so far. */
struct lane_state {
    int64_t col;
    int n;
    bool whole;
    f8 q, o;
    float top, sum;
};

/* Loads all keys behind one branch: with a branch per key the compiler waits for each load. Past the end of the range
 * it reads the last key again; the result is ignored. */
template <types K, int STRIDE>
__device__ __forceinline__ void load_keys(raw8<K> x[KEYS<K>], const lane_state &s, const struct kern_cmat &m,
                                          int64_t first, int64_t end)
{
    int64_t key[KEYS<K>];
#pragma unroll
    for (int i = 0; i < KEYS<K>; i++)
        key[i] = first + i * STRIDE < end ? first + i * STRIDE : end - 1;
    if (s.whole)
#pragma unroll
        for (int i = 0; i < KEYS<K>; i++)
            x[i] = load_raw8<K>(m, key[i], s.col, WIDTH, true);
    else
#pragma unroll
        for (int i = 0; i < KEYS<K>; i++)
            x[i] = load_raw8<K>(m, key[i], s.col, s.n, false);
}

/* Rescales the sums to the new maximum, and adds the values of these keys. */
template <types K>
__device__ __forceinline__ void add_keys(lane_state &s, const float score[KEYS<K>], const bool there[KEYS<K>],
                                         const raw8<K> v[KEYS<K>])
{
    float next = s.top;
#pragma unroll
    for (int i = 0; i < KEYS<K>; i++)
        next = there[i] ? fmaxf(next, score[i]) : next;
    const float factor = s.top == next ? 1.0f : expf(s.top - next);
    s.top = next;
    s.sum *= factor;
#pragma unroll
    for (int j = 0; j < WIDTH; j++)
        s.o.v[j] *= factor;
#pragma unroll
    for (int i = 0; i < KEYS<K>; i++) {
        const float weight = there[i] ? expf(score[i] - next) : 0.0f;
        const f8 x = unpack(v[i]);
        s.sum += weight;
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
            s.o.v[j] = there[i] ? s.o.v[j] + weight * x.v[j] : s.o.v[j];
    }
}

/* Processes KEYS keys from the lane's first key on. All lanes of a warp must call it, also those without a key. */
template <types K, int LANES>
__device__ __forceinline__ void attend_to_keys(lane_state &s, const struct kern_attention_one &a, int64_t first,
                                               int64_t end)
{
    constexpr int STRIDE = THREADS / LANES;
    raw8<K> k[KEYS<K>], v[KEYS<K>];
    float score[KEYS<K>];
    bool there[KEYS<K>];
    load_keys<K, STRIDE>(k, s, a.k, first, end);
    load_keys<K, STRIDE>(v, s, a.v, first, end);
#pragma unroll
    for (int i = 0; i < KEYS<K>; i++) {
        there[i] = first + i * STRIDE < end;
        score[i] = lanes_sum<LANES>(add_products(0, s.q, unpack(k[i]))) * a.scale;
    }
    add_keys<K>(s, score, there, v);
}

/* Joins the partial results of feature col; *top and *sum receive the total maximum and sum. A range without keys adds
 * nothing. sink: -inf for none. */
__device__ __forceinline__ float join_parts(const partial_attention &f, int64_t col, float sink, float *top, float *sum)
{
    float x = 0;
    *top = sink;
    for (int64_t i = 0; i < f.n; i++)
        *top = fmaxf(*top, f.top[i]);
    *sum = sink == -INFINITY ? 0 : expf(sink - *top);
    for (int64_t i = 0; i < f.n; i++) {
        const float factor = f.sum[i] == 0 ? 0.0f : expf(f.top[i] - *top);
        *sum += f.sum[i] * factor;
        x += factor == 0 ? 0.0f : f.o[i * f.pitch + col] * factor;
    }
    return x;
}

__device__ __forceinline__ float sink_of(const struct kern_attention_one &a, int64_t head)
{
    return a.sinks.data ? load1<MIXED>(a.sinks, 0, head) : -INFINITY;
}

template <types K, int LANES>
__device__ __forceinline__ lane_state begin_lane(const struct kern_attention_one &a, int64_t head, bool vectors)
{
    const int64_t kv = (uint32_t)head / ((uint32_t)a.nhead / (uint32_t)a.nkv);
    const int col = (int)threadIdx.x % LANES * WIDTH, left = (int)a.head_dim - col,
              n = left < 0       ? 0
                  : left < WIDTH ? left
                                 : WIDTH;
    return lane_state{ kv * a.head_dim + col,
                       n,
                       vectors && n == WIDTH,
                       load8<K>(a.q, 0, head * a.head_dim + col, n, false),
                       {},
                       -INFINITY,
                       0 };
}

/* Collects the partial results of the lanes. After its barrier all threads of the block see them. */
template <int LANES>
__device__ __forceinline__ partial_attention gather_lanes(block_results &shared, const lane_state &s)
{
    const int part = (int)threadIdx.x / LANES;
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        shared.o[threadIdx.x * WIDTH + i] = s.o.v[i];
    if (threadIdx.x % LANES == 0) {
        shared.top[part] = s.top;
        shared.sum[part] = s.sum;
    }
    __syncthreads();
    return partial_attention{ shared.top, shared.sum, shared.o, THREADS / LANES, LANES * WIDTH };
}

/* The partial results of one head, out of those of all heads. */
__device__ __forceinline__ partial_attention of_head(const partial_attention &all, int64_t head)
{
    return partial_attention{ all.top + head * all.n, all.sum + head * all.n, all.o + head * all.n * all.pitch, all.n,
                              all.pitch };
}

/* A block takes one head and up to `each` of its keys. At the end each thread takes a feature. If there is only one
 * range, the block writes the final result. */
template <types K, int LANES>
__global__ void __launch_bounds__(THREADS, 2)
    attend_keys(struct kern_attention_one a, partial_attention ranges, int64_t each, bool vectors)
{
    const int64_t head = blockIdx.x, range = blockIdx.y, feature = threadIdx.x,
                  end = (range + 1) * each < a.nkeys ? (range + 1) * each : a.nkeys;
    lane_state s = begin_lane<K, LANES>(a, head, vectors);
    for (int64_t first = range * each; first < end; first += THREADS / LANES * KEYS<K>)
        attend_to_keys<K, LANES>(s, a, first + threadIdx.x / LANES, end);
    const partial_attention all = gather_lanes<LANES>(shared_memory<block_results>(), s), out = of_head(ranges, head);
    if (feature >= a.head_dim)
        return;
    float top, sum, x = join_parts(all, feature, ranges.n == 1 ? sink_of(a, head) : -INFINITY, &top, &sum);
    if (ranges.n == 1) {
        store1<K>(a.o, 0, head * a.head_dim + feature, x / sum);
        return;
    }
    out.o[range * out.pitch + feature] = x;
    if (feature == 0) {
        out.top[range] = top;
        out.sum[range] = sum;
    }
}

__global__ void __launch_bounds__(THREADS) join_ranges(struct kern_attention_one a, partial_attention ranges)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, head = i / a.head_dim;
    if (head >= a.nhead)
        return;
    float top, sum, x = join_parts(of_head(ranges, head), i % a.head_dim, sink_of(a, head), &top, &sum);
    store1<MIXED>(a.o, 0, i, x / sum);
}

constexpr int64_t BLOCKS = 256,
                  MIN_RANGE = 256; /* blocks that keep a device busy; keys below which a second launch does not pay */
static_assert((MAX_DIM + 2) * BLOCKS * sizeof(float) <= CUDA_SCRATCH_BYTES);

/* Number of keys in a range, chosen so that the device gets about BLOCKS blocks. Depends on the shape only. */
int64_t keys_of_range(const struct kern_attention_one *a)
{
    const int64_t most = a->nhead > 0 && a->nhead < BLOCKS ? BLOCKS / a->nhead : 1, even = (a->nkeys + most - 1) / most;
    return even > MIN_RANGE ? even : MIN_RANGE;
}

template <types K>
void run_attend_keys(struct kern_stream *stream, const struct kern_attention_one *a, const partial_attention &ranges,
                     int64_t each)
{
    const bool vectors = a->head_dim % WIDTH == 0 && aligned({ a->k, a->v });
    const dim3 grid((unsigned)a->nhead, (unsigned)ranges.n);
    if (a->head_dim <= MIN_LANES * WIDTH)
        launch(stream, attend_keys<K, MIN_LANES>, grid, THREADS, sizeof(block_results), *a, ranges, each, vectors);
    else if (a->head_dim <= 16 * WIDTH)
        launch(stream, attend_keys<K, 16>, grid, THREADS, sizeof(block_results), *a, ranges, each, vectors);
    else
        launch(stream, attend_keys<K, WARP>, grid, THREADS, sizeof(block_results), *a, ranges, each, vectors);
}

bool sound(struct kern_stream *stream, const struct kern_attention_one *a)
{
    return cuda_check(stream, a->nkeys > 0 && a->head_dim > 0 && a->nkv > 0 && a->nhead % a->nkv == 0 && a->scale > 0,
                      "attention_one: no keys, query heads that are no multiple of the key heads, or a scale that is "
                      "not positive") &&
           cuda_check(stream, a->head_dim <= MAX_DIM, "attention_one: heads of more than 256 features") &&
           cuda_check(stream, !a->pages.list, "attention_one: keys in pages, which only the CPU reads") &&
           cuda_has_scratch(stream);
}

} // namespace

void cuda_gemv(struct kern_stream *stream, const struct kern_gemv *g)
{
    for (int i = 0; i < g->nalso; i++)
        cuda_gemv(stream, &g->also[i]);
    if (!cuda_check(stream, g->k >= 0, "gemv: negative shape"))
        return;
    for (int from = 0; from < g->nparts; from += PARTS) {
        parts all = {};
        types kind = types_of({ g->x });
        int64_t nrow = 0;
        all.k = g->k;
        all.x = g->x;
        for (; all.n < PARTS && from + all.n < g->nparts; all.n++) {
            all.part[all.n] = g->parts[from + all.n];
            all.vectors[all.n] = aligned({ all.part[all.n].w, one_row(g->x) });
            kind = types_of({ all.part[all.n].w, g->x }) == kind ? kind : MIXED;
            nrow += all.part[all.n].n;
        }
        run_dot_rows(stream, all, kind, nrow);
    }
}

void cuda_attention_one(struct kern_stream *stream, const struct kern_attention_one *a)
{
    if (!sound(stream, a))
        return;
    const int64_t each = keys_of_range(a), n = (a->nkeys + each - 1) / each, all = a->nhead * n;
    float *scratch = static_cast<float *>(stream->scratch);
    const partial_attention ranges = { scratch, scratch + all, scratch + 2 * all, n, a->head_dim };
    switch (types_of({ a->q, a->k, a->v, a->o })) {
    case ALL_F32: run_attend_keys<ALL_F32>(stream, a, ranges, each); break;
    case ALL_BF16: run_attend_keys<ALL_BF16>(stream, a, ranges, each); break;
    case MIXED: run_attend_keys<MIXED>(stream, a, ranges, each); break;
    }
    if (n > 1)
        launch(stream, join_ranges, blocks_for(a->nhead * a->head_dim, THREADS), THREADS, 0, *a, ranges);
}
