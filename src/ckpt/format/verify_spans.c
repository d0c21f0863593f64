/* SPDX-License-Identifier: Apache-2.0 */
/* Divides shard files for verify. Neighbours in the file share a window, so that small chunks and the bytes around them
 * need no separate reads; long ones are cut at ends of hash blocks. Knows tables, no bytes. */
#include "format/verify_spans.h"

#include <stdlib.h>

struct cutter {
    uint32_t rank, nturns;
    uint64_t at_once;
    uint64_t room; /* room left in the last window; 0: a new one is needed */
    struct fsdpck_vec *spans, *windows;
    struct fsdpck_error *err;
};

static int open_window(struct cutter *c)
{
    struct fsdpck_verify_window *w = fsdpck_vec_push(c->windows, c->err);
    if (!w)
        return FSDPCK_ERR_NOMEM;
    *w = (struct fsdpck_verify_window){ .rank = c->rank, .turn = FSDPCK_NO_TURN, .first = c->spans->count };
    c->room = c->at_once;
    return 0;
}

static int push_span(struct cutter *c, uint64_t entry, uint64_t begin, uint64_t end)
{
    struct fsdpck_verify_span *s = fsdpck_vec_push(c->spans, c->err);
    if (!s)
        return FSDPCK_ERR_NOMEM;
    *s = (struct fsdpck_verify_span){ .entry = entry, .begin = begin, .end = end };
    c->room -= end - begin < c->room ? end - begin : c->room;
    return 0;
}

static int push_gap(struct cutter *c, uint64_t begin, uint64_t end)
{
    int rc = c->room == 0 || end - begin > c->room ? open_window(c) : 0;
    if (rc)
        return rc;
    struct fsdpck_verify_window *w = (struct fsdpck_verify_window *)c->windows->data + c->windows->count - 1;
    w->turn = w->turn == FSDPCK_NO_TURN ? c->nturns++ : w->turn;
    return push_span(c, FSDPCK_NO_ENTRY, begin, end);
}

static int by_payload(const void *a, const void *b)
{
    const struct fsdpck_table_entry *const *x = a, *const *y = b;
    return (*x)->payload < (*y)->payload ? -1 : (*x)->payload > (*y)->payload;
}

/* Divides a payload into as many windows as it needs, cut at hash blocks. */
static int push_payload(struct cutter *c, uint64_t entry, uint64_t nbytes)
{
    for (uint64_t at = 0; at < nbytes;) {
        uint64_t n = nbytes - at <= c->room ? nbytes - at : c->room / FSDPCK_BLOCK_NBYTES * FSDPCK_BLOCK_NBYTES;
        int rc = n ? push_span(c, entry, at, at + n) : open_window(c);
        if (rc)
            return rc;
        at += n;
    }
    return 0;
}

static int push_entry(struct cutter *c, const struct fsdpck_table *t, const struct fsdpck_table_entry *e)
{
    bool alone = e->codec != FSDPCK_CODEC_STORED; /* the offsets of its blocks are not known yet */
    c->room = alone ? 0 : c->room;
    int rc = push_payload(c, (uint64_t)(e - t->entries), e->decoded);
    c->room = alone ? 0 : c->room;
    return rc;
}

int fsdpck_verify_cut(uint32_t rank, const struct fsdpck_table *t, uint64_t table, uint64_t at_once,
                      struct fsdpck_vec *spans, struct fsdpck_vec *windows, uint32_t *nturns, struct fsdpck_error *err)
{
    struct cutter c = { .rank = rank, .at_once = at_once, .spans = spans, .windows = windows, .err = err };
    const struct fsdpck_table_entry **sorted = malloc((t->nentries + 1) * sizeof *sorted);
    uint64_t at = 0;
    int rc = 0;
    if (!sorted)
        return fsdpck_error_nomem(err, t->nentries * sizeof *sorted);
    for (uint64_t i = 0; i < t->nentries; i++)
        sorted[i] = &t->entries[i];
    qsort(sorted, t->nentries, sizeof *sorted, by_payload);
    for (uint64_t i = 0; !rc && i < t->nentries; i++) {
        rc = at < sorted[i]->payload ? push_gap(&c, at, sorted[i]->payload) : 0;
        if (!rc)
            rc = push_entry(&c, t, sorted[i]);
        at = sorted[i]->payload + sorted[i]->nbytes;
    }
    free(sorted);
    if (!rc)
        rc = push_gap(&c, at, table); /* even if empty: an envelope of no bytes has a hash, too */
    *nturns = c.nturns;
    return rc;
}
