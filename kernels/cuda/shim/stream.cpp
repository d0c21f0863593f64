/* SPDX-License-Identifier: Apache-2.0 */
/* The shim's streams. They fill the CUDA backend's struct kern_stream from the heap and run kernels at once. device.c
 * cannot do this: it sees the CPU's struct of the same name. */
#include "cuda/matmul.h"
#include "cuda/shim/device.h"
#include "cuda/shim/shim.h"

#include <cstdlib>

extern "C" {
struct kern_stream *cuda_shim_stream_new(void);
void cuda_shim_stream_free(struct kern_stream *stream);
int cuda_shim_stream_status(struct kern_stream *stream, char *message, bool take);
}

void cuda_shim_order(uint64_t seed)
{
    shim_seed = seed;
}

void shim_launch(struct kern_stream *, dim3 grid, unsigned nthread, size_t shared_nbytes, shim_body body, void *ctx,
                 size_t)
{
    shim_run(grid, nthread, shared_nbytes, body, ctx);
}

void cuda_read_back(struct kern_stream *stream, void *host, const void *from, size_t nbytes)
{
    if (stream->status)
        memset(host, 0, nbytes);
    else
        memcpy(host, from, nbytes);
}

enum { SMALL_PANEL = 8 << 10 }; /* makes even small products take several passes */

struct kern_stream *cuda_shim_stream_new(void)
{
    struct kern_stream *s = static_cast<struct kern_stream *>(calloc(1, sizeof(*s)));
    if (!s)
        return nullptr;
    s->fault = static_cast<struct cuda_fault *>(calloc(1, sizeof(*s->fault)));
    s->scratch_nbytes = CUDA_SCRATCH_BYTES;
    s->scratch = aligned_alloc(256, s->scratch_nbytes);
    s->panel_nbytes = SMALL_PANEL;
    s->panel = aligned_alloc(256, s->panel_nbytes);
    if (!s->fault || !s->scratch || !s->panel || cuda_matmuls_new(&s->matmuls, s->message) != KERN_OK) {
        cuda_shim_stream_free(s);
        return nullptr;
    }
    return s;
}

void cuda_shim_stream_free(struct kern_stream *s)
{
    if (!s)
        return;
    cuda_matmuls_free(s->matmuls);
    free(s->panel);
    free(s->scratch);
    free(s->fault);
    free(s);
}

int cuda_shim_stream_status(struct kern_stream *s, char *message, bool take)
{
    cuda_fault_report(s, s->fault);
    const int status = s->status;
    if (status)
        memcpy(message, s->message, sizeof(s->message));
    if (take) {
        s->status = KERN_OK;
        *s->fault = cuda_fault();
    }
    return status;
}
