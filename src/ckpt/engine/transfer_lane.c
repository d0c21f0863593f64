/* SPDX-License-Identifier: Apache-2.0 */
/* Moves one lane: reads its elements band by band from the source, casts or edits them, and passes them to their
 * chunks. Knows neither formats nor directories. */
#include "engine/transfer_impl.h"

#include "base/buffer.h"
#include "base/stop.h"
#include "tensor/box.h"

#define STREAM_MAX_NBYTES (1u << 20)

struct band {
    struct transfer_engine *e;
    struct transfer_worker *w;
    const struct fsdpck_lane *lane;
    const struct fsdpck_tensor *t;
    size_t source;
    enum fsdpck_dtype from, to;
    bool edited;
    uint64_t begin, end; /* elements */
    const uint8_t *data; /* of dtype `to` */
    struct fsdpck_error *err;
};

/* Converts elements from the source's dtype to the selection's, by edit or cast. */
static int change(const struct band *b, uint64_t begin, uint64_t nelem, const uint8_t *in, uint8_t *out)
{
    const struct fsdpck_edit *edit = b->e->t->edit;
    if (b->edited)
        return edit->apply(edit->ctx, b->lane->tensor, begin, nelem, in, out, b->err);
    fsdpck_dtype_cast(b->from, in, b->to, out, nelem);
    return 0;
}

/* Loads elements [begin, end) into memory; their first byte has the same offset in a page as `position`. */
static int load(struct band *b, uint64_t position)
{
    uint64_t lead = position % FSDPCK_PAGE_NBYTES, item = fsdpck_dtype_info(b->from)->nbytes;
    bool cast = b->from != b->to || b->edited;
    uint8_t *dst = cast ? b->w->band : b->w->band + lead;
    uint64_t first = b->begin, nelem = b->end - b->begin;
    b->data = dst;
    if (!cast)
        return fsdpck_fetch_range(&b->w->fetch, b->source, first, b->end, dst, b->err);
    uint64_t at_once = b->e->band_nbytes / item, out = fsdpck_dtype_info(b->to)->nbytes;
    for (uint64_t at = 0; at < nelem; at += at_once) { /* the input of a cast can be wider than the band */
        uint64_t n = nelem - at < at_once ? nelem - at : at_once;
        int rc = fsdpck_fetch_range(&b->w->fetch, b->source, first + at, first + at + n, dst, b->err);
        if (!rc)
            rc = change(b, first + at, n, dst, b->w->cast + lead + at * out);
        if (rc)
            return rc;
    }
    b->data = b->w->cast + lead;
    return 0;
}

static uint64_t row_elements(const struct fsdpck_tensor *t)
{
    return t->ndim ? t->nelem / t->shape[0] : 1;
}

struct chunk_copy { /* copies one chunk's part of a band */
    const struct band *b;
    const struct fsdpck_out_chunk *c;
    uint8_t *dst;
    const uint8_t *data;
    uint64_t item;
};

static int copy_part(void *ctx, const uint64_t *offset, const uint64_t *size)
{
    struct chunk_copy *p = ctx;
    uint32_t n = p->b->t->ndim;
    uint64_t o[FSDPCK_MAX_DIMS], s[FSDPCK_MAX_DIMS], skip = 0;
    int64_t from[FSDPCK_MAX_DIMS], to[FSDPCK_MAX_DIMS];
    const uint8_t *data = p->data;
    p->data += fsdpck_box_nelem(size, n) * p->item;
    if (!fsdpck_box_intersect(n, offset, size, p->c->offset, p->c->size, o, s))
        return 0;
    fsdpck_dense_strides(n, size, p->item, from);
    fsdpck_dense_strides(n, s, p->item, to);
    for (uint32_t d = 0; d < n; d++)
        skip += (o[d] - offset[d]) * (uint64_t)from[d];
    fsdpck_copy_strided(n, s, p->item, p->dst, to, data + skip, from);
    p->dst += fsdpck_box_nelem(s, n) * p->item;
    return 0;
}

/* Passes the band's elements that belong to a chunk, in the chunk's order, to its stream. */
static int gather_band(struct band *b, struct fsdpck_stream *s)
{
    struct chunk_copy p = {
        .b = b, .c = s->chunk, .dst = b->w->gather, .data = b->data, .item = fsdpck_dtype_info(b->to)->nbytes
    };
    fsdpck_range_boxes(b->t->ndim, b->t->shape, b->begin, b->end, copy_part, &p);
    return fsdpck_stream_gather(s, b->w->gather, (uint64_t)(p.dst - b->w->gather), b->err);
}

static void report(struct transfer_engine *e, uint64_t nbytes)
{
    pthread_mutex_lock(&e->lock);
    e->done_nbytes += nbytes;
    if (e->opt->progress)
        e->opt->progress(e->opt->ctx, e->done_nbytes, e->total_nbytes);
    pthread_mutex_unlock(&e->lock);
}

static void open_streams(struct band *b)
{
    const struct fsdpck_lane *lane = b->lane;
    struct transfer_engine *e = b->e;
    uint64_t each = e->staging_nbytes / lane->count / FSDPCK_BLOCK_NBYTES * FSDPCK_BLOCK_NBYTES;
    while (each > FSDPCK_BLOCK_NBYTES && lane->count * (each + FSDPCK_PAGE_NBYTES) > e->staging_nbytes)
        each -= FSDPCK_BLOCK_NBYTES;
    each = each < STREAM_MAX_NBYTES ? each : STREAM_MAX_NBYTES;
    for (size_t i = 0; i < lane->count; i++) {
        const struct fsdpck_out_chunk *c = &e->t->chunks[e->lanes.order[lane->first + i]];
        uint64_t at = 0, first, last;
        if (lane->single) {
            fsdpck_box_span(b->t->ndim, b->t->shape, c->offset, c->size, &first, &last);
            at = (lane->begin - first) * fsdpck_dtype_info(b->to)->nbytes;
        }
        fsdpck_stream_begin(&b->w->streams[i], e->out, c, at, b->w->staging + i * (each + FSDPCK_PAGE_NBYTES), each);
        b->w->streams[i].packer = &b->w->packer;
    }
}

/* Whether bands end where matrices end, not where hash blocks do. */
static bool takes_matrices(const struct band *b)
{
    return b->e->t->src->turned_nbytes > 0 && b->t->ndim >= 3;
}

static int write_band(struct band *b, struct fsdpck_stream *s, uint64_t nbytes)
{
    return s->chunk->hashes && takes_matrices(b) ? fsdpck_stream_gather(s, b->data, nbytes, b->err)
                                                 : fsdpck_stream_write(s, b->data, nbytes, b->err);
}

static int run_band(struct band *b, uint64_t end)
{
    struct fsdpck_stream *s = b->w->streams;
    uint64_t nbytes = (end - b->begin) * fsdpck_dtype_info(b->to)->nbytes;
    b->end = end;
    int rc = load(b, b->lane->single ? fsdpck_stream_position(s) : 0);
    if (rc)
        return rc;
    if (b->lane->whole_rows)
        fsdpck_rows_add(&b->w->rows, b->data, nbytes);
    if (b->lane->single)
        rc = write_band(b, s, nbytes);
    for (size_t i = 0; !rc && !b->lane->single && i < b->lane->count; i++)
        rc = gather_band(b, &s[i]);
    if (!rc && b->lane->owns_content)
        report(b->e, nbytes);
    return rc;
}

/* Stores the CRC-32s of the lane's chunks, and its content id. */
static void keep_results(struct band *b, size_t number)
{
    struct transfer_engine *e = b->e;
    struct lane_result *result = &e->results[number];
    result->content = b->w->rows.sum;
    if (b->lane->single) {
        uint64_t item = fsdpck_dtype_info(b->to)->nbytes;
        result->crc32 = b->w->streams[0].crc32;
        result->nbytes = (b->lane->end - b->lane->begin) * item;
        return;
    }
    for (size_t i = 0; i < b->lane->count; i++)
        e->t->chunks[e->lanes.order[b->lane->first + i]].crc32 = b->w->streams[i].crc32;
}

/* Turned matrices are taken whole where a band holds them: a part of one would read all its rows. */
static uint64_t end_of_band(const struct band *b, uint64_t step)
{
    const uint64_t end = b->lane->end - b->begin > step ? b->begin + step : b->lane->end;
    if (!takes_matrices(b) || end == b->lane->end)
        return end;
    const uint64_t matrix = b->t->shape[b->t->ndim - 1] * b->t->shape[b->t->ndim - 2], whole = end / matrix * matrix;
    return whole > b->begin ? whole : end;
}

int fsdpck_transfer_lane(struct transfer_engine *e, size_t number, unsigned worker, struct fsdpck_error *err)
{
    const struct fsdpck_lane *lane = &e->lanes.list[number];
    const struct fsdpck_chosen *chosen = &e->t->selection->tensors[lane->tensor];
    struct band b = { .e = e,
                      .w = &e->workers[worker],
                      .lane = lane,
                      .t = &source_tensors(e->t->src)[chosen->source],
                      .source = chosen->source,
                      .to = chosen->dtype,
                      .begin = lane->begin,
                      .err = err };
    b.from = b.t->dtype;
    b.edited = fsdpck_transfer_edits(e->t, lane->tensor);
    uint64_t item = fsdpck_dtype_info(b.to)->nbytes, step = e->band_nbytes / item, row = row_elements(b.t);
    open_streams(&b);
    fsdpck_packer_begin(&b.w->packer, e->turns && fsdpck_turns_has(e->turns, number) ? e->turns : NULL, number);
    if (lane->whole_rows)
        fsdpck_rows_begin(&b.w->rows, row * item, lane->begin / row);
    int rc = 0;
    while (!rc && b.begin < lane->end) {
        if (fsdpck_stop_asked(e->opt->stop))
            return fsdpck_error_set(err, FSDPCK_ERR_STOPPED, NULL, "stopped");
        rc = run_band(&b, end_of_band(&b, step));
        b.begin = b.end;
    }
    for (size_t i = 0; !rc && i < lane->count; i++)
        rc = fsdpck_stream_end(&b.w->streams[i], err);
    if (!rc)
        keep_results(&b, number);
    return rc;
}
