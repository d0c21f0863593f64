/* What the files of the CUDA row share: the stream that operations are put on, and how one fails. No CUDA type stands here, so that operations also compile
 * where they run on the processor through the shim. */
#ifndef CUDA_STREAM_H
#define CUDA_STREAM_H

#include <kernels/stream.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kern_stream {
    void *native; /* cudaStream_t */
    int index;    /* of the device */
    int status;   /* the first failure, and its words */
    char message[KERN_MESSAGE_BYTES];
    void *products; /* what matrix products keep for this stream (handles, chosen algorithms), made by the first of them; NULL until then */
    void (*products_free)(void *products);
};

/* Keeps the first failure. Returns status. An operation does nothing on a stream whose status is set. */
int cuda_fail(struct kern_stream *stream, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));

extern const struct kern_ops cuda_ops;
extern const struct kern_memory cuda_memory;
extern const struct kern_device cuda_device;

#ifdef __cplusplus
}
#endif
#endif
