/* SPDX-License-Identifier: Apache-2.0 */
/* Checks records against the CRC-32s that zips state. A record that was read in part is open: it has a list of the
 * segments that were read. Knows files and bytes; about zips it knows only that they state a CRC-32. */
#include "engine/checks.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/buffer.h"
#include "base/hash.h"
#include "base/stop.h"
#include "engine/value_view.h"
#include "engine/crc_segments.h"
#include "engine/file_read.h"
#include "engine/zstream.h"

#define PIECE_NBYTES (1u << 20)

enum { UNSEEN, OPEN, SOUND, DAMAGED };

struct open_record {
    struct open_record *next, *previous;
    struct fsdpck_crc_record *record;
    struct fsdpck_zstream_range stream; /* nbytes 0: the record is stored directly in the file */
    uint32_t file;
    const char *tensor; /* that was being read; for messages; NULL: none */
    struct crc_segments segments;
};

struct fsdpck_checks {
    pthread_mutex_t lock; /* guards all of this, and the records' open */
    struct open_record *first;
    uint64_t nunchecked;
};

struct fsdpck_checks *fsdpck_checks_new(struct fsdpck_error *err)
{
    struct fsdpck_checks *c = calloc(1, sizeof *c);
    if (c)
        pthread_mutex_init(&c->lock, NULL);
    else
        fsdpck_error_nomem(err, sizeof *c);
    return c;
}

/* Called with the lock held. */
static void close_record(struct fsdpck_checks *c, struct open_record *o, uint32_t state)
{
    *(o->previous ? &o->previous->next : &c->first) = o->next;
    if (o->next)
        o->next->previous = o->previous;
    o->record->open = NULL;
    atomic_store(&o->record->state, state);
    fsdpck_crc_segments_free(&o->segments);
    free(o);
}

void fsdpck_checks_free(struct fsdpck_checks *c)
{
    if (!c)
        return;
    while (c->first)
        close_record(c, c->first, UNSEEN);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

void fsdpck_checks_unchecked(struct fsdpck_source *src, uint64_t nrecords)
{
    pthread_mutex_lock(&src->checks->lock);
    src->checks->nunchecked += nrecords;
    pthread_mutex_unlock(&src->checks->lock);
}

struct fsdpck_crc_record *fsdpck_checks_expect(struct fsdpck_source *src, struct fsdpck_crc_record *record,
                                               uint64_t offset, uint64_t nbytes, uint32_t crc32)
{
    *record = (struct fsdpck_crc_record){ .offset = offset, .nbytes = nbytes, .crc32 = crc32 };
    if (crc32 && nbytes)
        return record;
    fsdpck_checks_unchecked(src, nbytes != 0);
    return NULL;
}

/* ---- records ---- */

/* Called with the lock held. NULL: out of memory. */
static struct open_record *open_record(struct fsdpck_checks *c, const char *tensor, const struct fsdpck_extent *e,
                                       struct fsdpck_error *err)
{
    struct fsdpck_crc_record *record = e->crc;
    if (record->open)
        return record->open;
    struct open_record *o = calloc(1, sizeof *o);
    if (!o)
        return fsdpck_error_nomem(err, sizeof *o), NULL;
    o->record = record;
    o->segments = (struct crc_segments)CRC_SEGMENTS_NONE;
    o->file = e->file;
    o->tensor = tensor;
    if (e->streamed)
        o->stream = (struct fsdpck_zstream_range){ .file = e->file, .offset = e->stream, .nbytes = e->stream_nbytes };
    o->next = c->first;
    if (c->first)
        c->first->previous = o;
    c->first = o;
    record->open = o;
    atomic_store(&record->state, OPEN);
    return o;
}

/* By name, because a view and the source below it share records but number tensors differently. */
static const char *tensor_name(const struct fsdpck_source *src, size_t ordinal)
{
    return ordinal != FSDPCK_CHECKS_NO_TENSOR ? source_tensors(src)[ordinal].name : NULL;
}

static void name_tensor(const char *tensor, struct fsdpck_error *err)
{
    if (tensor)
        fsdpck_error_tensor(err, tensor);
}

static int damaged(struct fsdpck_source *src, const char *tensor, uint32_t file, uint64_t offset,
                   const struct fsdpck_crc_record *record, struct fsdpck_error *err)
{
    fsdpck_error_at(err, FSDPCK_ERR_DAMAGED, source_files(src)[file].path, offset,
                    "is damaged: the CRC-32 of its record of %" PRIu64 " bytes is not %08" PRIx32
                    ", which the zip says",
                    record->nbytes, record->crc32);
    name_tensor(tensor, err);
    return FSDPCK_ERR_DAMAGED;
}

/* Called with the lock held: closes the record if all of it was read. */
static int finish_record(struct fsdpck_source *src, struct open_record *o, struct fsdpck_error *err)
{
    struct fsdpck_crc_record *record = o->record;
    uint32_t crc32;
    if (!fsdpck_crc_segments_all(&o->segments, record->nbytes, &crc32))
        return 0;
    bool sound = crc32 == record->crc32;
    int rc =
        sound ? 0 : damaged(src, o->tensor, o->file, o->stream.nbytes ? o->stream.offset : record->offset, record, err);
    close_record(src->checks, o, sound ? SOUND : DAMAGED);
    return rc;
}

/* Adds bytes [begin, end) of the open record; computes their CRC-32 without the lock. */
static int take(struct fsdpck_source *src, struct fsdpck_crc_record *record, uint64_t begin, uint64_t end,
                const uint8_t *data, struct fsdpck_error *err)
{
    const struct crc_segment s = { begin, end, fsdpck_crc32(0, data, end - begin) };
    int rc = 0;
    pthread_mutex_lock(&src->checks->lock);
    struct open_record *o = record->open; /* NULL: another thread completed it */
    /* a part that another thread has read meanwhile is ignored; the gaps that this leaves are read at the end */
    if (o && (rc = fsdpck_crc_segments_add(&o->segments, &s, err)) == 0)
        rc = finish_record(src, o, err);
    pthread_mutex_unlock(&src->checks->lock);
    return rc;
}

int fsdpck_checks_bytes(struct fsdpck_source *src, size_t ordinal, const struct fsdpck_extent *e, uint64_t begin,
                        const void *data, uint64_t nbytes, struct fsdpck_error *err)
{
    struct fsdpck_crc_record *record = src->opt.no_verify ? NULL : e->crc;
    if (!record)
        return 0;
    const uint64_t first = e->payload + begin - record->offset, last = first + nbytes;
    uint32_t state = atomic_load(&record->state);
    int rc = 0;
    for (uint64_t at = first, end; !rc && state < SOUND && at < last; at = end) {
        end = last;
        pthread_mutex_lock(&src->checks->lock);
        state = atomic_load(&record->state);
        struct open_record *o = state < SOUND ? open_record(src->checks, tensor_name(src, ordinal), e, err) : NULL;
        if (o)
            fsdpck_crc_segments_gap(&o->segments, &at, &end);
        else if (state < SOUND)
            rc = FSDPCK_ERR_NOMEM;
        pthread_mutex_unlock(&src->checks->lock);
        if (o && at < last)
            rc = take(src, record, at, end, (const uint8_t *)data + (at - first), err);
    }
    return !rc && state == DAMAGED
               ? damaged(src, tensor_name(src, ordinal), e->file, e->streamed ? e->stream : record->offset, record, err)
               : rc;
}

/* ---- parts that no read needed ---- */

struct rest {
    struct fsdpck_source *src;
    uint8_t *buffer;
    struct fsdpck_zstream *stream; /* NULL: not needed yet */
    uint64_t read_nbytes;
    struct fsdpck_error *err;
};

/* Called with the lock held: finds the first missing piece. False: the record is complete. */
static bool next_piece(struct fsdpck_crc_record *record, uint64_t *begin, uint64_t *end)
{
    struct open_record *o = record->open;
    if (!o)
        return false;
    o->segments.dropped = false;
    *begin = 0;
    *end = record->nbytes;
    fsdpck_crc_segments_gap(&o->segments, begin, end);
    *end = *end - *begin > PIECE_NBYTES ? *begin + PIECE_NBYTES : *end;
    return true;
}

static int read_piece(struct rest *x, const struct open_record *where, uint64_t begin, uint64_t end, uint8_t **data)
{
    const uint64_t offset = where->record->offset + begin;
    x->read_nbytes += end - begin;
    if (!x->buffer && !(x->buffer = fsdpck_buffer_new(PIECE_NBYTES + 2 * FSDPCK_PAGE_NBYTES)))
        return fsdpck_error_nomem(x->err, PIECE_NBYTES);
    if (!where->stream.nbytes)
        return fsdpck_file_read(x->src, where->file, offset, end - begin, x->buffer, data, x->err);
    *data = x->buffer;
    if (!x->stream && !(x->stream = fsdpck_zstream_new(x->src, x->err)))
        return FSDPCK_ERR_NOMEM;
    return fsdpck_zstream_read(x->stream, &where->stream, offset, x->buffer, end - begin, x->err);
}

static int complete(struct rest *x, struct fsdpck_crc_record *record)
{
    for (;;) {
        uint64_t begin, end;
        uint8_t *data;
        struct open_record where;
        pthread_mutex_lock(&x->src->checks->lock);
        bool more = next_piece(record, &begin, &end);
        if (more)
            where = *record->open;
        pthread_mutex_unlock(&x->src->checks->lock);
        if (!more)
            return 0;
        int rc = fsdpck_stop_asked(x->src->opt.stop) ? fsdpck_error_set(x->err, FSDPCK_ERR_STOPPED, NULL, "stopped")
                                                     : read_piece(x, &where, begin, end, &data);
        if (!rc)
            rc = take(x->src, record, begin, end, data, x->err);
        if (rc) {
            name_tensor(where.tensor, x->err);
            return rc;
        }
    }
}

static void end_rest(struct rest *x)
{
    free(x->buffer);
    fsdpck_zstream_free(x->stream);
}

int fsdpck_checks_extent(struct fsdpck_source *src, size_t ordinal, const struct fsdpck_extent *e,
                         struct fsdpck_error *err)
{
    struct rest x = { .src = src, .err = err };
    int rc = 0;
    if (!e->crc || src->opt.no_verify)
        return 0;
    pthread_mutex_lock(&src->checks->lock);
    if (atomic_load(&e->crc->state) < SOUND && !open_record(src->checks, tensor_name(src, ordinal), e, err))
        rc = FSDPCK_ERR_NOMEM;
    pthread_mutex_unlock(&src->checks->lock);
    if (!rc)
        rc = complete(&x, e->crc);
    if (!rc)
        rc = fsdpck_checks_bytes(src, ordinal, e, 0, NULL, 0,
                                 err); /* fails if the record is already known to be damaged */
    end_rest(&x);
    return rc;
}

int fsdpck_checks_finish(struct fsdpck_source *src, uint64_t *read_nbytes, struct fsdpck_error *err)
{
    struct rest x = { .src = src, .err = err };
    int rc = 0;
    while (!rc) {
        pthread_mutex_lock(&src->checks->lock);
        struct fsdpck_crc_record *record = src->checks->first ? src->checks->first->record : NULL;
        pthread_mutex_unlock(&src->checks->lock);
        if (!record)
            break;
        rc = complete(&x, record);
    }
    *read_nbytes += x.read_nbytes;
    end_rest(&x);
    if (!rc && src->ops->values && src->ops->values->finish)
        rc = src->ops->values->finish(src, read_nbytes, err);
    return rc;
}

/* ---- for users of the library ---- */

void fsdpck_checks_note(const struct fsdpck_options *opt, uint64_t nrecords)
{
    char line[128];
    if (!nrecords || !opt->note)
        return;
    snprintf(line, sizeof line, "%" PRIu64 " record%s no CRC-32 to be checked by", nrecords,
             nrecords == 1 ? " has" : "s have");
    opt->note(opt->ctx, line);
}

static uint64_t take_unchecked(struct fsdpck_checks *c)
{
    pthread_mutex_lock(&c->lock);
    uint64_t n = c->nunchecked;
    c->nunchecked = 0;
    pthread_mutex_unlock(&c->lock);
    return n;
}

int fsdpck_source_check(struct fsdpck_source *src, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    uint64_t read_nbytes = 0;
    int rc = fsdpck_checks_finish(src, &read_nbytes, err ? err : &own);
    fsdpck_checks_note(&src->opt, src->opt.no_verify ? 0 : take_unchecked(src->checks));
    return rc;
}

uint64_t fsdpck_source_nunchecked(struct fsdpck_source *src)
{
    pthread_mutex_lock(&src->checks->lock);
    uint64_t n = src->checks->nunchecked;
    pthread_mutex_unlock(&src->checks->lock);
    return n;
}

struct checking {
    struct fsdpck_source *src;
    size_t ordinal;
};

static int check_extent(void *ctx, const struct fsdpck_extent *e, struct fsdpck_error *err)
{
    const struct checking *c = ctx;
    return fsdpck_checks_extent(c->src, c->ordinal, e, err);
}

static int check_input(void *ctx, struct fsdpck_source *input, size_t ordinal, struct fsdpck_error *err)
{
    (void)ctx;
    return fsdpck_source_check_tensor(input, &source_tensors(input)[ordinal], err);
}

int fsdpck_source_check_tensor(struct fsdpck_source *src, const struct fsdpck_tensor *tensor, struct fsdpck_error *err)
{
    static const uint64_t zeros[FSDPCK_MAX_DIMS];
    struct fsdpck_error own = { 0 };
    struct checking c = { src,
                          tensor->alias_of >= 0 ? (size_t)tensor->alias_of : (size_t)(tensor - source_tensors(src)) };
    if (tensor->nelem == 0 || src->opt.no_verify)
        return 0;
    err = err ? err : &own;
    return fsdpck_is_computed(src, c.ordinal)
               ? src->ops->values->inputs(src, c.ordinal, check_input, NULL, err)
               : src->ops->extents(src, c.ordinal, zeros, tensor->shape, check_extent, &c, err);
}
