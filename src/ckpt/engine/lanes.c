/* SPDX-License-Identifier: Apache-2.0 */
/* Divides a transfer into lanes. Chunks of a tensor whose spans (first to last element) overlap share a lane; otherwise
 * the source would be read once for each. A chunk that is one run of its tensor has its own lane. A long lane is cut
 * where both a row and a hash block end, so that the hashes and content ids of its parts can be joined. */
#include "engine/lanes.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "engine/value_view.h"
#include "tensor/box.h"

#define LANE_NBYTES        (32u << 20) /* a longer chunk is cut, if possible */
#define PACKED_LANE_NBYTES (4u << 20)  /* if compressed, because the next lane waits for its size */
#define LATE_NLANES        32          /* that late tensors wait for: more than there are threads, nearly always */
#define CUT_MAX_NBYTES     (64u << 20) /* unless rows and blocks end together less often than this */

struct span {
    uint64_t begin, end;
    uint32_t chunk;
};

struct maker {
    const struct fsdpck_transfer *t;
    struct fsdpck_vec lanes; /* struct fsdpck_lane */
    uint32_t *order;
    size_t norder;
    size_t max_chunks;
    struct span *spans; /* of one tensor */
    struct fsdpck_error *err;
};

static const struct fsdpck_tensor *tensor_of(const struct fsdpck_transfer *t, uint32_t tensor)
{
    return &source_tensors(t->src)[t->selection->tensors[tensor].source];
}

static int by_begin(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->chunk < y->chunk ? -1 : x->chunk > y->chunk;
}

static uint64_t gcd(uint64_t a, uint64_t b)
{
    return b ? gcd(b, a % b) : a;
}

/* Returns the number of elements between two positions where a long chunk may be cut; 0: nowhere. */
static uint64_t cut_every(const struct maker *m, uint32_t tensor, const struct fsdpck_out_chunk *c)
{
    const struct fsdpck_tensor *t = tensor_of(m->t, tensor);
    uint64_t item = fsdpck_dtype_info(m->t->selection->tensors[tensor].dtype)->nbytes;
    uint64_t block = FSDPCK_BLOCK_NBYTES / item, row = t->ndim ? t->nelem / t->shape[0] : 1, both;
    if (!c->hashes && m->t->src->turned_nbytes && row < LANE_NBYTES / item)
        return LANE_NBYTES / item / row * row;
    if (!c->hashes)
        return m->t->src->turned_nbytes ? row : LANE_NBYTES / item;
    if (!checked_mul(block / gcd(block, row), row, &both) || both > CUT_MAX_NBYTES / item)
        return 0;
    uint64_t n = (c->compressed ? PACKED_LANE_NBYTES : LANE_NBYTES) / item / both;
    return both * (n ? n : 1);
}

static bool whole_rows(const struct fsdpck_tensor *t, uint64_t begin, uint64_t end)
{
    uint64_t row = t->ndim ? t->nelem / t->shape[0] : 1;
    return begin % row == 0 && end % row == 0;
}

static int push(struct maker *m, struct fsdpck_lane lane)
{
    struct fsdpck_lane *l = fsdpck_vec_push(&m->lanes, m->err);
    if (!l)
        return FSDPCK_ERR_NOMEM;
    lane.whole_rows = whole_rows(tensor_of(m->t, lane.tensor), lane.begin, lane.end);
    *l = lane;
    return 0;
}

static int push_single(struct maker *m, uint32_t tensor, const struct span *s)
{
    const struct fsdpck_out_chunk *c = &m->t->chunks[s->chunk];
    uint64_t step = cut_every(m, tensor, c);
    m->order[m->norder] = s->chunk;
    for (uint64_t at = s->begin; at < s->end;) {
        uint64_t stop = step && s->end - at > step ? at + step : s->end;
        struct fsdpck_lane lane = { .tensor = tensor,
                                    .begin = at,
                                    .end = stop,
                                    .first = m->norder,
                                    .count = 1,
                                    .single = true,
                                    .owns_content = true };
        int rc = push(m, lane);
        if (rc)
            return rc;
        at = stop;
    }
    m->norder++;
    return 0;
}

/* Spans [first, last) overlap each other: makes one lane, or several over the same range if there are too many. */
static int push_cluster(struct maker *m, uint32_t tensor, size_t first, size_t last, uint64_t end)
{
    const struct fsdpck_tensor *t = tensor_of(m->t, tensor);
    const struct fsdpck_out_chunk *c = &m->t->chunks[m->spans[first].chunk];
    if (last - first == 1 && end - m->spans[first].begin == fsdpck_box_nelem(c->size, t->ndim))
        return push_single(m, tensor, &m->spans[first]);
    for (size_t at = first; at < last; at += m->max_chunks) {
        size_t n = last - at < m->max_chunks ? last - at : m->max_chunks;
        struct fsdpck_lane lane = { .tensor = tensor,
                                    .begin = m->spans[first].begin,
                                    .end = end,
                                    .first = m->norder,
                                    .count = n,
                                    .owns_content = at == first };
        for (size_t i = 0; i < n; i++)
            m->order[m->norder++] = m->spans[at + i].chunk;
        int rc = push(m, lane);
        if (rc)
            return rc;
    }
    return 0;
}

static int cut_tensor(struct maker *m, uint32_t tensor, size_t first, size_t last)
{
    const struct fsdpck_tensor *t = tensor_of(m->t, tensor);
    size_t n = last - first;
    for (size_t i = 0; i < n; i++) {
        const struct fsdpck_out_chunk *c = &m->t->chunks[first + i];
        m->spans[i].chunk = (uint32_t)(first + i);
        fsdpck_box_span(t->ndim, t->shape, c->offset, c->size, &m->spans[i].begin, &m->spans[i].end);
    }
    qsort(m->spans, n, sizeof *m->spans, by_begin);
    uint64_t end = m->spans[0].end;
    for (size_t start = 0, i = 1; i <= n; i++) {
        if (i < n && m->spans[i].begin < end) {
            end = m->spans[i].end > end ? m->spans[i].end : end;
            continue;
        }
        int rc = push_cluster(m, tensor, start, i, end);
        if (rc)
            return rc;
        start = i;
        end = i < n ? m->spans[i].end : 0;
    }
    return 0;
}

static bool is_late(const struct fsdpck_transfer *t, const struct fsdpck_lane *lane)
{
    const struct fsdpck_values *values = t->src->ops->values;
    return values && values->late && values->late(t->src, t->selection->tensors[lane->tensor].source);
}

/* Moves lanes of late tensors behind others, in their order. Compressed chunks lie in the order of their lanes. */
static int defer_late(struct maker *m)
{
    struct fsdpck_lane *list = m->lanes.data;
    const size_t n = m->lanes.count;
    size_t at = 0, next = 0, ntaken = 0; /* next: the late lane that comes first; ntaken: others that were placed */
    if (m->t->compress || !m->t->src->ops->values || !m->t->src->ops->values->late)
        return 0;
    struct fsdpck_lane *out = malloc((n + 1) * sizeof *out);
    size_t *due = malloc((n + 1) * sizeof *due), *late = malloc((n + 1) * sizeof *late), nlate = 0;
    int rc = out && due && late ? 0 : fsdpck_error_nomem(m->err, n * sizeof *out);
    for (size_t i = 0; i < n && !rc; i++) {
        if (is_late(m->t, &list[i])) {
            due[nlate] = ntaken + LATE_NLANES;
            late[nlate++] = i;
            continue;
        }
        out[at++] = list[i];
        for (ntaken++; next < nlate && due[next] <= ntaken; next++)
            out[at++] = list[late[next]];
    }
    for (; next < nlate && !rc; next++)
        out[at++] = list[late[next]];
    if (!rc && n)
        memcpy(list, out, n * sizeof *out);
    free(out);
    free(due);
    free(late);
    return rc;
}

int fsdpck_lanes_make(const struct fsdpck_transfer *t, size_t max_chunks, struct fsdpck_lanes *out,
                      struct fsdpck_error *err)
{
    struct maker m = { .t = t, .lanes = FSDPCK_VEC(struct fsdpck_lane), .max_chunks = max_chunks, .err = err };
    int rc = 0;
    memset(out, 0, sizeof *out);
    m.order = malloc((t->nchunks ? t->nchunks : 1) * sizeof *m.order);
    m.spans = malloc((t->nchunks ? t->nchunks : 1) * sizeof *m.spans);
    if (!m.order || !m.spans)
        rc = fsdpck_error_nomem(err, t->nchunks * sizeof *m.spans);
    for (size_t first = 0; !rc && first < t->nchunks;) {
        size_t last = first + 1;
        while (last < t->nchunks && t->chunks[last].tensor == t->chunks[first].tensor)
            last++;
        rc = cut_tensor(&m, t->chunks[first].tensor, first, last);
        first = last;
    }
    if (!rc)
        rc = defer_late(&m);
    free(m.spans);
    if (rc) {
        free(m.order);
        fsdpck_vec_free(&m.lanes);
        return rc;
    }
    *out = (struct fsdpck_lanes){ .list = m.lanes.data, .count = m.lanes.count, .order = m.order };
    return 0;
}

void fsdpck_lanes_free(struct fsdpck_lanes *l)
{
    free(l->list);
    free(l->order);
    memset(l, 0, sizeof *l);
}
