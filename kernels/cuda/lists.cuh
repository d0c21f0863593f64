/* SPDX-License-Identifier: Apache-2.0 */
/* One launch for a list of work items. Each item takes a number of consecutive blocks, and a block looks up its item.
 * The list is uploaded to the stream's scratch memory. */
#ifndef CUDA_LISTS_CUH
#define CUDA_LISTS_CUH

#include "cuda/upload.cuh"

/* The item of this block: the last one whose block0 is not after it. Every item in the list has at least one block. */
template <typename T> __device__ __forceinline__ const T &entry_of_block(const T *entries, int n)
{
    int low = 0, high = n;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        (entries[middle].block0 <= (int64_t)blockIdx.x ? low : high) = middle;
    }
    return entries[low];
}

/* A list on its way to the device. */
template <typename T> struct list {
    struct kern_stream *stream;
    int n; /* items added so far, in scratch or still in `pending` */
    int64_t nblock;
    T pending[sizeof(upload_words) / sizeof(T)]; /* items not uploaded yet; one launch uploads them */
};

template <typename T> T *list_on_device(const list<T> &l)
{
    return static_cast<T *>(l.stream->scratch);
}

template <typename T> bool list_is_full(const list<T> &l)
{
    return (size_t)(l.n + 1) * sizeof(T) > l.stream->scratch_nbytes;
}

/* Uploads the items in `pending`. Stream order guarantees that earlier work no longer uses the scratch memory. */
template <typename T> void list_send(const list<T> &l)
{
    const int most = (int)(sizeof(l.pending) / sizeof(T)), sent = l.n == 0 ? 0 : (l.n - 1) / most * most;
    static_assert(sizeof(T) % sizeof(uint64_t) == 0);
    if (cuda_has_scratch(l.stream))
        upload(l.stream, list_on_device(l) + sent, l.pending, (size_t)(l.n - sent) * sizeof(T));
}

/* Items without blocks are skipped. */
template <typename T> void list_add(list<T> &l, T entry, int64_t nblock)
{
    const int most = (int)(sizeof(l.pending) / sizeof(T));
    if (nblock <= 0)
        return;
    if (l.n > 0 && l.n % most == 0)
        list_send(l);
    entry.block0 = l.nblock;
    l.pending[l.n++ % most] = entry;
    l.nblock += nblock;
}

#endif
