/* SPDX-License-Identifier: Apache-2.0 */
/* Batches of reads ("loads"). A load is full when it has used up its memory: the memory for casts, or its part of the
 * pinned memory. The rank's threads hash and cast the rows of a load. For a device whose memory the host cannot access
 * ("apart"), three loads form a pipeline: one is read, the previous one is hashed, cast and enqueued, and the one
 * before that is copied to the device. */
#include "state/reads.h"

#include <kernels/pool.h>
#include <pthread.h>
#include <stdlib.h>

#include "arrays/grow.h"
#include "rank/device.h"

enum {
    CAST_NBYTES = 32 << 20,
    STRAIGHT_NBYTES = 256 << 20,
    NLOAD = 3,
    PINNED_NBYTES = 64 << 20, /* at least */
    ALIGNED = 64,
    PIECE_NBYTES = 64 << 10
};

struct entry {
    struct reads_rows rows;
    void *raw;   /* rows in the dtype of the source */
    void *whole; /* rows in the wanted dtype, in host memory: the destination itself, or a buffer on the way to it */
    uint64_t offset[3], size[3];
};

struct load {
    struct fsdpck_read *reads;
    struct entry *entries;
    size_t n, capacity;
    uint64_t used_nbytes;    /* of the load's memory */
    char *data;              /* apart: (reads.load_nbytes) */
    struct kern_event *sent; /* apart: the copies out of `data` are done */
};

struct reads {
    const struct rank *r;
    struct fsdpck_source *src;
    bool separate_memory;
    struct kern_buffer pinned;          /* apart: shared by all loads */
    uint64_t load_nbytes;               /* apart: of a load's memory */
    struct load loads[NLOAD], *filling; /* not apart: only the first is used */
    uint64_t
        waiting_nbytes; /* not apart: bytes added since the last flush; limits the time between two progress reports */
    uint64_t done_nbytes, total_nbytes; /* bytes in files: read so far, and in total (0: unknown) */
    struct load *pending;               /* apart: the load that has been read but not enqueued, or NULL */
};

static uint64_t aligned(uint64_t nbytes)
{
    return (nbytes + ALIGNED - 1) / ALIGNED * ALIGNED;
}

/* A row, which may be an expert, must fit into a load: of two bytes an element, cast to four. */
static uint64_t load_nbytes(const struct layout *l)
{
    uint64_t most = PINNED_NBYTES;
    for (size_t i = 0; i < l->nparams; i++) {
        const struct param *p = &l->params[i];
        const uint64_t nbytes = p->packed ? 0 : aligned(6 * (uint64_t)p->ncol) + 3 * ALIGNED;
        most = nbytes > most ? nbytes : most;
    }
    return most;
}

static int start_pinned(struct reads *b, struct fsdpck_error *err)
{
    const struct kern_device *device = b->r->where->device;
    const struct kern_location pinned = { .kind = KERN_MEMORY_PINNED, .index = b->r->where->index };
    char message[KERN_MESSAGE_BYTES];
    int status = device->memory->alloc(pinned, NLOAD * b->load_nbytes, &b->pinned, message);
    for (int i = 0; i < NLOAD && status == KERN_OK; i++) {
        b->loads[i].data = (char *)b->pinned.data + (size_t)i * b->load_nbytes;
        status = device->event_new(b->r->where->index, false, &b->loads[i].sent, message);
        if (status == KERN_OK)
            device->event_record(b->loads[i].sent, b->r->compute->stream);
    }
    return status == KERN_OK ? 0 : fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "memory to load through: %s", message);
}

static void reads_free(struct reads *b)
{
    const struct kern_device *device = b->r->where->device;
    for (int i = 0; i < NLOAD; i++) {
        device->event_free(b->loads[i].sent);
        free(b->loads[i].reads);
        free(b->loads[i].entries);
    }
    device->memory->free(&b->pinned);
    free(b);
}

int reads_new(const struct rank *r, struct fsdpck_source *src, struct reads **out, struct fsdpck_error *err)
{
    struct reads *b = calloc(1, sizeof *b);
    *out = NULL;
    if (!b)
        return fsdpck_error_nomem(err, sizeof *b);
    b->r = r;
    b->src = src;
    b->filling = b->loads;
    b->separate_memory = r->where->device->separate_memory;
    b->load_nbytes = load_nbytes(&r->job->layout);
    int rc = b->separate_memory ? start_pinned(b, err) : 0;
    if (rc)
        reads_free(b);
    else
        *out = b;
    return rc;
}

/* Adds the content id of the rows to 32-bit limbs, lowest first. Addition commutes: ranks and threads may add in any
 * order. */
static void add_content(const unsigned char *rows, uint64_t row_nbytes, uint64_t first, uint64_t nrow,
                        uint64_t limbs[4])
{
    uint8_t id[16];
    fsdpck_content_of_rows(rows, row_nbytes, first, nrow, id);
    for (int k = 0; k < 4; k++) {
        uint64_t limb = 0;
        for (int b = 3; b >= 0; b--)
            limb = limb << 8 | id[4 * k + b];
        __atomic_fetch_add(&limbs[k], limb, __ATOMIC_RELAXED);
    }
}

static uint64_t nbytes_of(const struct entry *e, enum fsdpck_dtype dtype)
{
    return e->rows.nrow * e->rows.ncol * fsdpck_dtype_info(dtype)->nbytes;
}

struct finishing {
    const struct entry *entry;
    uint64_t nrow; /* rows per piece */
};

static void finish_piece(void *ctx, int64_t piece, unsigned worker)
{
    const struct finishing *f = ctx;
    const struct entry *e = f->entry;
    const struct reads_rows *rows = &e->rows;
    const enum fsdpck_dtype has = rows->tensor->dtype;
    const uint64_t first = (uint64_t)piece * f->nrow,
                   nrow = rows->nrow - first < f->nrow ? rows->nrow - first : f->nrow;
    const uint64_t raw_row = rows->ncol * fsdpck_dtype_info(has)->nbytes,
                   whole_row = rows->ncol * fsdpck_dtype_info(rows->dtype)->nbytes;
    const unsigned char *raw = (const unsigned char *)e->raw + first * raw_row;
    (void)worker;
    if (rows->content)
        add_content(raw, raw_row, rows->first + first, nrow, rows->content);
    if (e->raw != e->whole)
        fsdpck_dtype_cast(has, raw, rows->dtype, (char *)e->whole + first * whole_row, nrow * rows->ncol);
}

static void finish_entry(const struct reads *b, const struct entry *e)
{
    const struct reads_rows *rows = &e->rows;
    const uint64_t row_nbytes = rows->ncol * fsdpck_dtype_info(rows->tensor->dtype)->nbytes;
    struct finishing f = { e, row_nbytes < PIECE_NBYTES ? PIECE_NBYTES / row_nbytes : 1 };
    if (rows->content || e->raw != e->whole)
        kern_pool_run(b->r->compute->pool, (int64_t)((rows->nrow + f.nrow - 1) / f.nrow), finish_piece, &f);
    if (e->whole != rows->dst)
        b->r->compute->device->memory->copy(b->r->compute->stream, rows->dst, e->whole, nbytes_of(e, rows->dtype));
}

/* Hashes and casts a load that has been read, and enqueues its copy to a device. failed: only releases it. */
static void finish(struct reads *b, struct load *load, bool failed)
{
    for (size_t i = 0; i < load->n; i++) {
        struct entry *e = &load->entries[i];
        if (!failed)
            finish_entry(b, e);
        if (!b->separate_memory && e->raw != e->rows.dst)
            free(e->raw);
    }
    if (b->separate_memory)
        b->r->compute->device->event_record(load->sent, b->r->compute->stream);
    load->n = 0;
    load->used_nbytes = 0;
}

struct reading {
    struct fsdpck_source *src;
    const struct load *load;
    int rc;
    struct fsdpck_error err;
};

static void *read_load(void *ctx)
{
    struct reading *r = ctx;
    r->rc = r->load->n ? fsdpck_source_read(r->src, r->load->reads, r->load->n, &r->err) : 0;
    return NULL;
}

/* Reads the load that was filled while the previous one is finished. Then waits until the next load has been sent and
 * can be filled again. */
static int flush_pinned(struct reads *b, struct fsdpck_error *err)
{
    struct reading now = { .src = b->src, .load = b->filling };
    pthread_t thread;
    const bool beside = b->pending && pthread_create(&thread, NULL, read_load, &now) == 0;
    if (b->pending)
        finish(b, b->pending, false);
    if (beside)
        pthread_join(thread, NULL);
    else
        read_load(&now);
    b->pending = b->filling;
    b->filling = &b->loads[(b->filling - b->loads + 1) % NLOAD];
    b->r->compute->device->event_sync(b->filling->sent);
    if (now.rc)
        *err = now.err;
    return now.rc;
}

static uint64_t raw_nbytes(const struct load *load)
{
    uint64_t nbytes = 0;
    for (size_t i = 0; i < load->n; i++)
        nbytes += nbytes_of(&load->entries[i], load->entries[i].rows.tensor->dtype);
    return nbytes;
}

static int flush_straight(struct reads *b, struct fsdpck_error *err)
{
    int rc = b->filling->n ? fsdpck_source_read(b->src, b->filling->reads, b->filling->n, err) : 0;
    finish(b, b->filling, rc != 0);
    return rc;
}

static int flush(struct reads *b, struct fsdpck_error *err)
{
    b->done_nbytes += raw_nbytes(b->filling);
    int rc = b->separate_memory ? flush_pinned(b, err) : flush_straight(b, err);
    if (!rc && b->total_nbytes)
        rank_report_progress(b->r, TRAIN_LOADING, b->done_nbytes, b->total_nbytes);
    return rc;
}

void reads_expect(struct reads *b, uint64_t nbytes)
{
    b->total_nbytes = nbytes;
    rank_report_progress(b->r, TRAIN_LOADING, 0, nbytes);
}

static int reserve(struct load *b, struct fsdpck_error *err)
{
    size_t nreads = b->capacity; /* both arrays have the same capacity */
    if (b->n < b->capacity)
        return 0;
    if (!grow((void **)&b->reads, &nreads, b->n + 1, sizeof *b->reads) ||
        !grow((void **)&b->entries, &b->capacity, b->n + 1, sizeof *b->entries))
        return fsdpck_error_nomem(err, (b->n + 1) * sizeof *b->entries);
    for (size_t i = 0; i < b->n; i++) { /* they point into the entries, which have moved */
        b->reads[i].offset = b->entries[i].offset;
        b->reads[i].size = b->entries[i].size;
    }
    return 0;
}

static void add_entry(struct load *b, const struct reads_rows *rows, void *raw, void *whole)
{
    struct entry *e = &b->entries[b->n];
    *e = (struct entry){
        .rows = *rows, .raw = raw, .whole = whole, .offset = { rows->first }, .size = { rows->nrow, rows->ncol }
    };
    for (uint32_t d = 1; d < rows->tensor->ndim && rows->tensor->ndim == 3; d++)
        e->size[d] = rows->tensor->shape[d];
    b->reads[b->n++] = (struct fsdpck_read){ .tensor = rows->tensor, .offset = e->offset, .size = e->size, .dst = raw };
}

static int add_straight(struct reads *b, const struct reads_rows *rows, struct fsdpck_error *err)
{
    uint64_t nbytes = rows->nrow * rows->ncol * fsdpck_dtype_info(rows->tensor->dtype)->nbytes;
    void *raw = rows->dst;
    int rc = reserve(b->filling, err);
    if (!rc && rows->tensor->dtype != rows->dtype) {
        raw = malloc(nbytes);
        rc = raw ? 0 : fsdpck_error_nomem(err, nbytes);
        b->filling->used_nbytes += nbytes;
    }
    if (rc)
        return rc;
    add_entry(b->filling, rows, raw, rows->dst);
    b->waiting_nbytes += nbytes;
    if (b->filling->used_nbytes <= CAST_NBYTES && b->waiting_nbytes <= STRAIGHT_NBYTES)
        return 0;
    b->waiting_nbytes = 0;
    return flush(b, err);
}

/* Adds as many rows as fit; at least one into an empty load. */
static int add_some(struct reads *b, struct reads_rows *rows, struct fsdpck_error *err)
{
    struct load *to = b->filling;
    const bool cast = rows->tensor->dtype != rows->dtype;
    const uint64_t raw_row = rows->ncol * fsdpck_dtype_info(rows->tensor->dtype)->nbytes,
                   whole_row = rows->ncol * fsdpck_dtype_info(rows->dtype)->nbytes;
    const uint64_t row = raw_row + (cast ? whole_row : 0), room = b->load_nbytes - to->used_nbytes;
    uint64_t nrow = room > 2 * ALIGNED ? (room - 2 * ALIGNED) / row : 0;
    if (nrow == 0 && to->n == 0)
        return fsdpck_error_set(err, FSDPCK_ERR_LIMIT, fsdpck_source_path(b->src),
                                "tensor '%s' has rows of %llu bytes; %llu are supported on a device",
                                rows->tensor->name, (unsigned long long)raw_row,
                                (unsigned long long)(room * raw_row / row));
    if (nrow == 0)
        return flush(b, err);
    int rc = reserve(to, err);
    if (rc)
        return rc;
    struct reads_rows part = *rows;
    part.nrow = nrow < rows->nrow ? nrow : rows->nrow;
    char *raw = to->data + to->used_nbytes, *whole = cast ? raw + aligned(part.nrow * raw_row) : raw;
    to->used_nbytes += aligned(part.nrow * raw_row) + (cast ? aligned(part.nrow * whole_row) : 0);
    add_entry(to, &part, raw, whole);
    rows->first += part.nrow;
    rows->nrow -= part.nrow;
    rows->dst = (char *)rows->dst + part.nrow * whole_row;
    return 0;
}

int reads_add(struct reads *b, const struct reads_rows *rows, struct fsdpck_error *err)
{
    struct reads_rows left = *rows;
    int rc = 0;
    if (rows->nrow == 0 || rows->ncol == 0)
        return 0;
    if (!b->separate_memory)
        return add_straight(b, rows, err);
    while (left.nrow > 0 && !rc)
        rc = add_some(b, &left, err);
    return rc;
}

/* Reads and copies all that was added. */
static int settle(struct reads *b, struct fsdpck_error *err)
{
    int rc = flush(b, err);
    if (!rc && b->pending) {
        finish(b, b->pending, false);
        b->pending = NULL;
    }
    return rc;
}

/* A part of a file is filled before the next one takes its place in memory. */
int reads_add_state(struct reads *b, const struct param *p, int tree, const struct reads_rows *rows,
                    struct fsdpck_error *err)
{
    struct rank_part part = { 0 };
    int rc = 0;
    for (;;) {
        if (rank_part_moves(b->r, p, tree, &part))
            rc = settle(b, err);
        if (!rc)
            rc = rank_next_part(b->r, p, tree, &part, err);
        if (rc || part.nrow <= 0)
            return rc;
        struct reads_rows some = *rows;
        some.first += (uint64_t)part.row;
        some.nrow = (uint64_t)part.nrow;
        some.dst = part.data;
        some.dtype = FSDPCK_FLOAT32;
        rc = reads_add(b, &some, err);
        if (rc)
            return rc;
    }
}

int reads_end(struct reads *b, int rc, struct fsdpck_error *err)
{
    struct fsdpck_error ignored = { 0 }; /* keeps the first failure */
    if (!b)
        return rc;
    if (!rc)
        rc = flush(b, err);
    if (rc && !b->separate_memory)
        finish(b, b->filling, true);
    if (!rc && b->pending)
        finish(b, b->pending, false);
    int rc2 = compute_sync(b->r->compute, rc ? &ignored : err); /* the device reads pinned memory until then */
    reads_free(b);
    return rc ? rc : rc2;
}
