/* SPDX-License-Identifier: Apache-2.0 */
/* A stream's first failure, and messages for the faults that kernels find. Knows nothing of CUDA. */
#include "cuda/stream.h"

#include <stdarg.h>
#include <stdio.h>

int cuda_fail(struct kern_stream *stream, int status, const char *format, ...)
{
    if (!stream->status) {
        va_list ap;
        va_start(ap, format);
        vsnprintf(stream->message, sizeof(stream->message), format, ap);
        va_end(ap);
        stream->status = status;
    }
    return stream->status;
}

bool cuda_check(struct kern_stream *stream, bool ok, const char *words)
{
    if (!ok)
        cuda_fail(stream, KERN_ERR_ARG, "%s", words);
    return stream->status == KERN_OK;
}

bool cuda_has_scratch(struct kern_stream *stream)
{
    return cuda_check(stream, stream->scratch,
                      "what needs scratch memory, on a stream that goes ahead of others and has none");
}

void cuda_fault_report(struct kern_stream *stream, const struct cuda_fault *f)
{
    if (f->kind == CUDA_FAULT_INDEX || f->kind == CUDA_FAULT_TARGET)
        cuda_fail(stream, KERN_ERR_ARG, "row %lld: %s %d is not one of %lld", (long long)f->row,
                  f->kind == CUDA_FAULT_INDEX ? "index" : "target", (int)f->value, (long long)f->limit);
}
