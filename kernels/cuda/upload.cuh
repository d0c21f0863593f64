/* SPDX-License-Identifier: Apache-2.0 */
/* Uploads host data as arguments of launches. Arguments travel by value, so the caller may change the data at once, and
 * a recording keeps them. (A copy from unpinned memory may read it after the call, or synchronise the stream.) */
#ifndef CUDA_UPLOAD_CUH
#define CUDA_UPLOAD_CUH

#include "cuda/vec.cuh"

/* CUDA allows 4096 bytes of arguments on every device. */
struct upload_words {
    uint64_t at[448];
};

static __global__ void __launch_bounds__(THREADS) write_words(uint64_t *to, upload_words words, int n)
{
    for (int i = (int)threadIdx.x; i < n; i += THREADS)
        to[i] = words.at[i];
}

/* Enqueues the upload. nbytes and `to` must be multiples of eight. */
static inline void upload(struct kern_stream *stream, void *to, const void *from, size_t nbytes)
{
    upload_words words = {};
    for (size_t done = 0, n; done < nbytes; done += n) {
        n = nbytes - done < sizeof(words) ? nbytes - done : sizeof(words);
        memcpy(words.at, static_cast<const char *>(from) + done, n);
        launch(stream, write_words, dim3(1), THREADS, 0, reinterpret_cast<uint64_t *>(static_cast<char *>(to) + done),
               words, (int)(n / sizeof(uint64_t)));
    }
}

#endif
