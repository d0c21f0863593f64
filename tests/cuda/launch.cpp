/* How a kernel of the shim starts on a hosted stream, by CUDA's rules. */
#include "cuda/shim/shim.h"

#include "hosted.h"

void shim_launch(struct kern_stream *stream, dim3 grid, unsigned nthread, size_t shared_nbytes, shim_body body, void *ctx)
{
    enum { MOST_ACROSS = 65535, MOST_THREADS = 1024, MOST_SHARED = 227 << 10 };
    if (grid.x == 0 || grid.y == 0 || grid.z == 0)
        return;
    if (grid.x > 0x7fffffff || grid.y > MOST_ACROSS || grid.z > MOST_ACROSS || nthread == 0 || nthread > MOST_THREADS || shared_nbytes > MOST_SHARED)
        hosted_die("a kernel", "more blocks, threads or shared memory than a device has");
    const int code = hosted_start(stream->handle);
    if (code != 0) {
        cuda_fail(stream, KERN_ERR_LIBRARY, "CUDA: a kernel of %u x %u x %u blocks: error %d", grid.x, grid.y, grid.z, code);
        return;
    }
    hosted_lock();
    shim_run(grid, nthread, shared_nbytes, body, ctx);
    hosted_unlock();
}

void shim_upload(struct kern_stream *stream, void *to, const void *from, size_t nbytes)
{
    hosted_reach("an upload", to, nbytes, hosted_stream_device(stream->handle));
    memcpy(to, from, nbytes);
}
