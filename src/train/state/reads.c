/* Batches of reads. A batch is full when its memory is: that of casts, or half of the pinned memory. What was read is hashed and cast by the rank's threads. */
#include "state/reads.h"

#include <kernels/pool.h>
#include <stdlib.h>
#include <xxhash.h>

#include "run/device.h"

enum { CAST_NBYTES = 32 << 20, HALF_NBYTES = 64 << 20, ALIGNED = 64, PIECE_NBYTES = 64 << 10 };

struct entry {
    struct reads_rows rows;
    void *raw;   /* as the source has it */
    void *whole; /* as it is wanted, in memory of the host: the destination itself, or on the way there */
    uint64_t offset[2], size[2];
};

struct half {
    char *data;
    struct kern_event *sent;
};

struct reads {
    const struct rank *r;
    struct fsdpck_source *src;
    struct fsdpck_read *reads;
    struct entry *entries;
    size_t n, capacity;
    uint64_t used_nbytes; /* of the batch's memory */
    bool apart;
    struct kern_buffer pinned; /* apart: both halves */
    struct half halves[2];
    unsigned filling;
};

static int start_halves(struct reads *b, struct fsdpck_error *err)
{
    const struct kern_device *device = b->r->where->device;
    const struct kern_place pinned = { .kind = KERN_PLACE_PINNED, .index = b->r->where->index };
    char message[KERN_MESSAGE_BYTES];
    int status = device->memory->alloc(pinned, 2 * (size_t)HALF_NBYTES, &b->pinned, message);
    for (int i = 0; i < 2 && status == KERN_OK; i++) {
        b->halves[i].data = (char *)b->pinned.data + (size_t)i * HALF_NBYTES;
        status = device->event_new(b->r->where->index, &b->halves[i].sent, message);
        if (status == KERN_OK)
            device->event_record(b->halves[i].sent, b->r->compute->stream);
    }
    return status == KERN_OK ? 0 : fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "memory to load through: %s", message);
}

static void reads_free(struct reads *b)
{
    const struct kern_device *device = b->r->where->device;
    for (int i = 0; i < 2; i++)
        device->event_free(b->halves[i].sent);
    device->memory->free(&b->pinned);
    free(b->reads);
    free(b->entries);
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
    b->apart = r->where->device->apart;
    int rc = b->apart ? start_halves(b, err) : 0;
    if (rc)
        reads_free(b);
    else
        *out = b;
    return rc;
}

/* A tensor's content id (FORMAT.md): the sum over rows of their hashes, so that ranks and threads can add up theirs. limbs: 32 bits each, lowest first. */
static void add_content(const unsigned char *rows, uint64_t row_nbytes, uint64_t first, uint64_t nrow, uint64_t limbs[4])
{
    uint64_t limb[4] = { 0 };
    for (uint64_t i = 0; i < nrow; i++) {
        XXH128_hash_t h = XXH3_128bits_withSeed(rows + i * row_nbytes, row_nbytes, first + i);
        limb[0] += (uint32_t)h.low64;
        limb[1] += h.low64 >> 32;
        limb[2] += (uint32_t)h.high64;
        limb[3] += h.high64 >> 32;
    }
    for (int k = 0; k < 4; k++)
        __atomic_fetch_add(&limbs[k], limb[k], __ATOMIC_RELAXED);
}

static uint64_t nbytes_of(const struct entry *e, enum fsdpck_dtype dtype)
{
    return e->rows.nrow * e->rows.ncol * fsdpck_dtype_info(dtype)->nbytes;
}

struct finishing {
    const struct entry *entry;
    uint64_t nrow; /* of a piece */
};

static void finish_piece(void *ctx, int64_t piece, unsigned worker)
{
    const struct finishing *f = ctx;
    const struct entry *e = f->entry;
    const struct reads_rows *rows = &e->rows;
    const enum fsdpck_dtype has = rows->tensor->dtype;
    const uint64_t first = (uint64_t)piece * f->nrow, nrow = rows->nrow - first < f->nrow ? rows->nrow - first : f->nrow;
    const uint64_t raw_row = rows->ncol * fsdpck_dtype_info(has)->nbytes, whole_row = rows->ncol * fsdpck_dtype_info(rows->dtype)->nbytes;
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

/* The other half is filled next, when what was in it has been sent. */
static void turn_over(struct reads *b)
{
    const struct kern_device *device = b->r->compute->device;
    device->event_record(b->halves[b->filling].sent, b->r->compute->stream);
    b->filling = !b->filling;
    device->event_sync(b->halves[b->filling].sent);
}

/* Reads what was added. After a failure (rc) it only lets go. */
static int flush(struct reads *b, int rc, struct fsdpck_error *err)
{
    if (!rc && b->n)
        rc = fsdpck_source_read(b->src, b->reads, b->n, err);
    for (size_t i = 0; i < b->n; i++) {
        struct entry *e = &b->entries[i];
        if (!rc)
            finish_entry(b, e);
        if (!b->apart && e->raw != e->rows.dst)
            free(e->raw);
    }
    if (b->apart && b->n)
        turn_over(b);
    b->n = 0;
    b->used_nbytes = 0;
    return rc;
}

static int reserve(struct reads *b, struct fsdpck_error *err)
{
    if (b->n < b->capacity)
        return 0;
    size_t capacity = 2 * b->capacity + 64;
    struct fsdpck_read *reads = reallocarray(b->reads, capacity, sizeof *reads);
    if (reads)
        b->reads = reads;
    struct entry *entries = reallocarray(b->entries, capacity, sizeof *entries);
    if (entries)
        b->entries = entries;
    if (!reads || !entries)
        return fsdpck_error_nomem(err, capacity * sizeof *entries);
    for (size_t i = 0; i < b->n; i++) { /* which point into the entries */
        reads[i].offset = entries[i].offset;
        reads[i].size = entries[i].size;
    }
    b->capacity = capacity;
    return 0;
}

static void add_entry(struct reads *b, const struct reads_rows *rows, void *raw, void *whole)
{
    struct entry *e = &b->entries[b->n];
    *e = (struct entry){ .rows = *rows, .raw = raw, .whole = whole, .offset = { rows->first, 0 }, .size = { rows->nrow, rows->ncol } };
    b->reads[b->n++] = (struct fsdpck_read){ .tensor = rows->tensor, .offset = e->offset, .size = e->size, .dst = raw };
}

static int add_straight(struct reads *b, const struct reads_rows *rows, struct fsdpck_error *err)
{
    uint64_t nbytes = rows->nrow * rows->ncol * fsdpck_dtype_info(rows->tensor->dtype)->nbytes;
    void *raw = rows->dst;
    int rc = reserve(b, err);
    if (!rc && rows->tensor->dtype != rows->dtype) {
        raw = malloc(nbytes);
        rc = raw ? 0 : fsdpck_error_nomem(err, nbytes);
        b->used_nbytes += nbytes;
    }
    if (rc)
        return rc;
    add_entry(b, rows, raw, rows->dst);
    return b->used_nbytes > CAST_NBYTES ? flush(b, 0, err) : 0;
}

static uint64_t aligned(uint64_t nbytes)
{
    return (nbytes + ALIGNED - 1) / ALIGNED * ALIGNED;
}

/* As many rows as there is room for; at least one in an empty half. */
static int add_some(struct reads *b, struct reads_rows *rows, struct fsdpck_error *err)
{
    const bool cast = rows->tensor->dtype != rows->dtype;
    const uint64_t raw_row = rows->ncol * fsdpck_dtype_info(rows->tensor->dtype)->nbytes, whole_row = rows->ncol * fsdpck_dtype_info(rows->dtype)->nbytes;
    const uint64_t row = raw_row + (cast ? whole_row : 0), room = HALF_NBYTES - b->used_nbytes;
    uint64_t nrow = room > 2 * ALIGNED ? (room - 2 * ALIGNED) / row : 0;
    if (nrow == 0 && b->n == 0)
        return fsdpck_error_set(err, FSDPCK_ERR_LIMIT, fsdpck_source_path(b->src), "tensor '%s' has rows of %llu bytes; %d are supported on a device",
                                rows->tensor->name, (unsigned long long)raw_row, HALF_NBYTES / 2);
    if (nrow == 0)
        return flush(b, 0, err);
    int rc = reserve(b, err);
    if (rc)
        return rc;
    struct reads_rows part = *rows;
    part.nrow = nrow < rows->nrow ? nrow : rows->nrow;
    char *raw = b->halves[b->filling].data + b->used_nbytes, *whole = cast ? raw + aligned(part.nrow * raw_row) : raw;
    b->used_nbytes += aligned(part.nrow * raw_row) + (cast ? aligned(part.nrow * whole_row) : 0);
    add_entry(b, &part, raw, whole);
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
    if (!b->apart)
        return add_straight(b, rows, err);
    while (left.nrow > 0 && !rc)
        rc = add_some(b, &left, err);
    return rc;
}

int reads_end(struct reads *b, int rc, struct fsdpck_error *err)
{
    struct fsdpck_error ignored = { 0 }; /* the first failure counts */
    if (!b)
        return rc;
    rc = flush(b, rc, err);
    int rc2 = compute_sync(b->r->compute, rc ? &ignored : err); /* pinned memory is read until then */
    reads_free(b);
    return rc ? rc : rc2;
}
