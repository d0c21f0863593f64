/* SPDX-License-Identifier: Apache-2.0 */
/* Makes and frees a thread's workspace, and formats the errors about damaged payloads. Makes decoders when the first
 * compressed payload is read. */
#include "engine/workspace.h"

#include <stdlib.h>

#include "base/block_codec.h"
#include "base/buffer.h"
#include "engine/value_view.h"

int fsdpck_fetch_init(struct fsdpck_fetch *f, struct fsdpck_source *src, struct fsdpck_error *err)
{
    size_t nbytes = FSDPCK_FETCH_WINDOW_NBYTES + 2 * FSDPCK_BLOCK_NBYTES + 2 * FSDPCK_PAGE_NBYTES;
    *f = (struct fsdpck_fetch){ .src = src };
    f->scratch = fsdpck_buffer_new(nbytes);
    return f->scratch ? 0 : fsdpck_error_nomem(err, nbytes);
}

void fsdpck_fetch_init_shared(struct fsdpck_fetch *f, struct fsdpck_source *src, const struct fsdpck_fetch *with)
{
    *f = (struct fsdpck_fetch){ .src = src, .scratch = with->scratch, .shared = true };
}

void fsdpck_fetch_free(struct fsdpck_fetch *f)
{
    if (!f->shared)
        free(f->scratch);
    fsdpck_decoder_free(f->decoder);
    free(f->block);
    free(f->decoded);
    fsdpck_zstream_free(f->stream);
    if (f->values_end)
        f->values_end(f->values);
    *f = (struct fsdpck_fetch){ .read_nbytes = f->read_nbytes, .needed_nbytes = f->needed_nbytes, .nruns = f->nruns };
}

uint64_t fsdpck_fetch_stream_nbytes(const struct fsdpck_source *src)
{
    return src->streamed ? FSDPCK_FETCH_DECODED_NBYTES + FSDPCK_ZSTREAM_NBYTES : 0;
}

uint64_t fsdpck_fetch_values_nbytes(const struct fsdpck_source *src)
{
    return src->ops->values ? src->ops->values->nbytes(src) : 0;
}

uint64_t fsdpck_fetch_shared_nbytes(const struct fsdpck_source *src)
{
    uint64_t decoding = FSDPCK_FETCH_DECODED_NBYTES + 6 * FSDPCK_BLOCK_NBYTES;
    return (src->compressed ? decoding : 0) + fsdpck_fetch_stream_nbytes(src) + fsdpck_fetch_values_nbytes(src);
}

uint64_t fsdpck_fetch_nbytes(const struct fsdpck_source *src)
{
    return FSDPCK_FETCH_WINDOW_NBYTES + 4 * FSDPCK_BLOCK_NBYTES + fsdpck_fetch_shared_nbytes(src);
}

/* Computes the rows [rows[0], rows[1]) that contain bytes [begin, end); a scalar counts as one row. Messages name the
 * first and the last row, as verify does. */
static void rows_of(const struct fsdpck_extent *e, uint32_t ndim, uint64_t item, uint64_t begin, uint64_t end,
                    uint64_t rows[2])
{
    rows[0] = 0;
    rows[1] = 1;
    if (ndim == 0)
        return;
    if (e->strides) { /* elements are stored in another order */
        rows[0] = e->offset[0];
        rows[1] = e->offset[0] + e->size[0];
        return;
    }
    uint64_t row_nbytes = item;
    for (uint32_t d = 1; d < ndim; d++)
        row_nbytes *= e->size[d];
    rows[0] = e->offset[0] + begin / row_nbytes;
    rows[1] = e->offset[0] + (end + row_nbytes - 1) / row_nbytes;
}

int fsdpck_fetch_damaged(const struct fsdpck_fetch *f, size_t ordinal, const struct fsdpck_extent *e, uint64_t begin,
                         uint64_t end, struct fsdpck_error *err)
{
    const struct fsdpck_tensor *t = &source_tensors(f->src)[ordinal];
    const struct source_file *file = &source_files(f->src)[e->file];
    const char *in = e->compressed ? "the compressed chunk" : "";
    uint64_t rows[2],
        base = e->compressed ? 0 : e->payload; /* inside a compressed chunk, the elements' bytes have no file offset */
    rows_of(e, t->ndim, fsdpck_dtype_info(t->dtype)->nbytes, begin, end, rows);
    fsdpck_error_at(err, FSDPCK_ERR_DAMAGED, file->path, e->payload + (e->compressed ? 0 : begin),
                    "rows %llu..%llu of rank %lld are damaged: the hash of bytes %llu..%llu%s%s does not match",
                    (unsigned long long)rows[0], (unsigned long long)rows[1] - 1, (long long)file->pub.rank,
                    (unsigned long long)(base + begin), (unsigned long long)(base + end) - 1, *in ? " of " : "", in);
    fsdpck_error_tensor(err, t->name);
    return FSDPCK_ERR_DAMAGED;
}
