/* SPDX-License-Identifier: Apache-2.0 */
/* One launch for a list of pieces of work: each has its blocks, and a block finds out whose it is. The list goes to the
 * stream's scratch memory. */
#ifndef CUDA_LISTS_CUH
#define CUDA_LISTS_CUH

#include "cuda/upload.cuh"

/* As T::block0: its first block. The last one that does not begin after this block; those with blocks only are in the
 * list. */
template <typename T> __device__ __forceinline__ const T &my_entry(const T *entries, int n)
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
    int n; /* there, or in `some` */
    int64_t nblock;
    T some[sizeof(upload_words) / sizeof(T)]; /* those that are not there yet: one launch's */
};

template <typename T> T *list_on_device(const list<T> &l)
{
    return static_cast<T *>(l.stream->scratch);
}

template <typename T> bool list_is_full(const list<T> &l)
{
    return (size_t)(l.n + 1) * sizeof(T) > l.stream->scratch_nbytes;
}

/* What is on the stream so far is done with the scratch memory then. */
template <typename T> void list_send(const list<T> &l)
{
    const int most = (int)(sizeof(l.some) / sizeof(T)), sent = l.n == 0 ? 0 : (l.n - 1) / most * most;
    static_assert(sizeof(T) % sizeof(uint64_t) == 0);
    if (cuda_has_scratch(l.stream))
        upload(l.stream, list_on_device(l) + sent, l.some, (size_t)(l.n - sent) * sizeof(T));
}

/* Work without blocks is none. */
template <typename T> void list_add(list<T> &l, T entry, int64_t nblock)
{
    const int most = (int)(sizeof(l.some) / sizeof(T));
    if (nblock <= 0)
        return;
    if (l.n > 0 && l.n % most == 0)
        list_send(l);
    entry.block0 = l.nblock;
    l.some[l.n++ % most] = entry;
    l.nblock += nblock;
}

#endif
