/* SPDX-License-Identifier: Apache-2.0 */
/* Launches a kernel of the shim on a hosted stream, by CUDA's rules. */
#include "cuda/shim/shim.h"

#include "hosted.h"

#include <cstddef>

namespace {

enum { MOST_CTX = 8192 }; /* CUDA allows 4096 bytes of arguments */

struct kernel {
    dim3 grid;
    unsigned nthread;
    size_t shared_nbytes;
    shim_body body;
    alignas(16) unsigned char ctx[MOST_CTX];
};

/* Serialised, because the shim has global state. */
void run(const void *what)
{
    const struct kernel *k = static_cast<const struct kernel *>(what);
    hosted_lock();
    shim_run(k->grid, k->nthread, k->shared_nbytes, k->body,
             const_cast<unsigned char *>(k->ctx)); /* a body does not change its captures */
    hosted_unlock();
}

} // namespace

void shim_launch(struct kern_stream *stream, dim3 grid, unsigned nthread, size_t shared_nbytes, shim_body body,
                 void *ctx, size_t nbytes)
{
    enum { MOST_ACROSS = 65535, MOST_THREADS = 1024, MOST_SHARED = 227 << 10 };
    if (grid.x == 0 || grid.y == 0 || grid.z == 0)
        return;
    if (grid.x > 0x7fffffff || grid.y > MOST_ACROSS || grid.z > MOST_ACROSS || nthread == 0 || nthread > MOST_THREADS ||
        shared_nbytes > MOST_SHARED || nbytes > MOST_CTX)
        hosted_die("a kernel", "more blocks, threads, shared memory or arguments than a device has");
    const int code = hosted_start(stream->handle);
    if (code != 0) {
        cuda_fail(stream, KERN_ERR_LIBRARY, "CUDA: a kernel of %u x %u x %u blocks: error %d", grid.x, grid.y, grid.z,
                  code);
        return;
    }
    struct kernel k = { grid, nthread, shared_nbytes, body, {} };
    memcpy(k.ctx, ctx, nbytes);
    hosted_do(stream->handle, run, &k, offsetof(struct kernel, ctx) + nbytes);
}
