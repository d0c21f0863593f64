/* SPDX-License-Identifier: Apache-2.0 */
/* Lays out a tensor in chunks, byte by byte, and locates the chunks. Written to be obviously correct; uses the library
 * only to create the source under test. */
#include "fuzz_stored.h"

#include <string.h>

#include "base/hash.h"
#include "engine/checks.h"
#include "engine/files.h"

/* ---- the tensor, and cutting it ---- */

static void make_tensor(struct fuzz_stored *s, struct fuzz_bytes *in)
{
    static const enum fsdpck_dtype dtypes[] = { FSDPCK_UINT8,   FSDPCK_BFLOAT16,  FSDPCK_FLOAT32,
                                                FSDPCK_FLOAT64, FSDPCK_COMPLEX64, FSDPCK_COMPLEX128 };
    enum fsdpck_dtype dtype = dtypes[fuzz_below(in, sizeof dtypes / sizeof *dtypes)];
    uint32_t ndim = (uint32_t)fuzz_below(in, MODEL_MAX_DIMS + 1);
    uint64_t shape[MODEL_MAX_DIMS], nbytes = fsdpck_dtype_info(dtype)->nbytes, seed = 1;
    for (uint32_t d = 0; d < ndim; d++)
        nbytes *= shape[d] = fuzz_below(in, 7);
    uint32_t wide = ndim ? (uint32_t)fuzz_below(in, 16 * ndim) : 1;
    if (wide < ndim && nbytes) { /* sometimes one dimension is long enough for several hash blocks */
        uint64_t most = FUZZ_TENSOR_NBYTES / nbytes, times = 1 + fuzz_below(in, 65536);
        shape[wide] *= times < most ? times : most;
    }
    s->t = model_add(&s->model, &seed, dtype, ndim, shape);
}

/* Cuts a dimension into up to three parts; at: their starts and the end. */
static size_t cut_dim(uint64_t length, struct fuzz_bytes *in, uint64_t at[4])
{
    size_t n = 0;
    at[0] = 0;
    while (at[n] < length) {
        uint64_t part = n == 2 ? length : 1 + fuzz_below(in, length < 65536 ? length : 65536);
        at[n + 1] = part < length - at[n] ? at[n] + part : length;
        n++;
    }
    return n;
}

size_t fuzz_cut(const struct model_tensor *t, struct fuzz_bytes *in, struct fuzz_box boxes[FUZZ_MAX_BOXES])
{
    uint64_t at[MODEL_MAX_DIMS][4];
    size_t parts[MODEL_MAX_DIMS], count = 1;
    for (uint32_t d = 0; d < t->ndim; d++)
        count *= parts[d] = cut_dim(t->shape[d], in, at[d]);
    for (size_t i = 0; i < count; i++) {
        size_t rest = i;
        for (uint32_t d = t->ndim; d-- > 0; rest /= parts[d]) {
            boxes[i].offset[d] = at[d][rest % parts[d]];
            boxes[i].size[d] = at[d][rest % parts[d] + 1] - boxes[i].offset[d];
        }
    }
    return count;
}

/* ---- chunks in files ---- */

/* Chooses row-major strides, or another order of dimensions with gaps between elements. Returns the distance in
 * elements from first to last. */
static uint64_t choose_strides(struct fuzz_chunk *c, uint32_t ndim, struct fuzz_bytes *in, bool dense)
{
    uint32_t order[MODEL_MAX_DIMS];
    uint64_t stride = dense ? 1 : 1 + fuzz_below(in, 2), span = 1;
    for (uint32_t d = 0; d < ndim; d++)
        order[d] = d;
    for (uint32_t d = ndim; !dense && d > 1; d--) {
        uint32_t k = (uint32_t)fuzz_below(in, d), last = order[d - 1];
        order[d - 1] = order[k];
        order[k] = last;
    }
    for (uint32_t i = ndim; i-- > 0; stride *= c->box.size[order[i]]) {
        c->strides[order[i]] = stride;
        span += (c->box.size[order[i]] - 1) * stride;
    }
    return span;
}

static void put_elements(const struct model_tensor *t, const struct fuzz_chunk *c, uint8_t *payload)
{
    int64_t strides[MODEL_MAX_DIMS];
    for (uint32_t d = 0; d < t->ndim; d++)
        strides[d] = (int64_t)(c->strides[d] * t->item);
    model_get_box(t, c->box.offset, c->box.size, payload, strides);
}

static void swap_elements(const struct model_tensor *t, uint8_t *payload, uint64_t nbytes)
{
    uint32_t unit = fsdpck_dtype_info(t->dtype)->swap;
    for (uint8_t *p = payload; p < payload + nbytes; p += unit)
        for (uint32_t i = 0; i < unit / 2; i++) {
            uint8_t byte = p[i];
            p[i] = p[unit - 1 - i];
            p[unit - 1 - i] = byte;
        }
}

static void put_chunk(struct fuzz_stored *s, struct fuzz_chunk *c, struct fuzz_bytes *in, bool dense, bool swap)
{
    const struct model_tensor *t = s->t;
    uint32_t file = (uint32_t)fuzz_below(in, FUZZ_NFILES);
    uint64_t at = s->ends[file] + fuzz_below(in, 70), nbytes = choose_strides(c, t->ndim, in, dense) * t->item;
    FUZZ_CHECK(at + nbytes <= FUZZ_FILE_NBYTES);
    put_elements(t, c, s->files[file] + at);
    if (swap)
        swap_elements(t, s->files[file] + at, nbytes);
    c->extent = (struct fsdpck_extent){ .file = file,
                                        .offset = c->box.offset,
                                        .size = c->box.size,
                                        .payload = at,
                                        .payload_nbytes = nbytes,
                                        .strides = dense ? NULL : c->strides,
                                        .swap = swap };
    s->ends[file] = at + nbytes;
}

static void put_hashes(struct fuzz_stored *s, struct fuzz_chunk *c)
{
    struct fsdpck_extent *e = &c->extent;
    uint8_t *file = s->files[e->file];
    struct fsdpck_hash128 hash;
    e->hashes = s->ends[e->file];
    for (uint64_t at = 0; at < e->payload_nbytes; at += FSDPCK_BLOCK_NBYTES) {
        uint64_t left = e->payload_nbytes - at;
        fsdpck_hash(file + e->payload + at, left < FSDPCK_BLOCK_NBYTES ? left : FSDPCK_BLOCK_NBYTES, &hash);
        memcpy(file + s->ends[e->file], hash.bytes, sizeof hash.bytes);
        s->ends[e->file] += sizeof hash.bytes;
    }
}

static void put_chunks(struct fuzz_stored *s, struct fuzz_bytes *in)
{
    struct fuzz_box boxes[FUZZ_MAX_BOXES];
    s->nchunks = fuzz_cut(s->t, in, boxes);
    bool dense = fuzz_below(in, 2), swap = fuzz_below(in, 4) == 0, hashed = dense && !swap && fuzz_below(in, 2);
    for (size_t i = 0; i < s->nchunks; i++) {
        s->chunks[i].box = boxes[i];
        put_chunk(s, &s->chunks[i], in, dense, swap);
        if (hashed)
            put_hashes(s, &s->chunks[i]);
    }
}

/* ---- the source ---- */

static bool meets(const struct fuzz_box *b, uint32_t ndim, const uint64_t *offset, const uint64_t *size)
{
    for (uint32_t d = 0; d < ndim; d++)
        if (b->offset[d] + b->size[d] <= offset[d] || offset[d] + size[d] <= b->offset[d])
            return false;
    return true;
}

static int extents(struct fsdpck_source *src, size_t ordinal, const uint64_t *offset, const uint64_t *size,
                   fsdpck_extent_fn visit, void *ctx, struct fsdpck_error *err)
{
    struct fuzz_stored *s = src->impl;
    FUZZ_CHECK(ordinal == 0);
    for (size_t i = 0; i < s->nchunks; i++) {
        int r = meets(&s->chunks[i].box, s->t->ndim, offset, size) ? visit(ctx, &s->chunks[i].extent, err) : 0;
        if (r != 0)
            return r;
    }
    return 0;
}

static const struct fsdpck_source_ops ops = { .kind = "fuzz", .extents = extents };

/* Like fsdpck_source_open(), without a format. */
static struct fsdpck_source *make_source(struct fuzz_stored *s)
{
    static const char *const paths[FUZZ_NFILES] = { MEMORY_ROOT "/0", MEMORY_ROOT "/1" };
    struct fsdpck_source *src = calloc(1, sizeof *src);
    struct fsdpck_error err = { 0 };
    FUZZ_CHECK(src);
    src->ops = &ops;
    src->impl = s;
    src->path = MEMORY_ROOT;
    src->tensors.item_nbytes = sizeof(struct fsdpck_tensor);
    src->files.item_nbytes = sizeof(struct source_file);
    FUZZ_CHECK((src->checks = fsdpck_checks_new(&err)));
    src->opt = (struct fsdpck_options){ .io = &s->m.io, .nthreads = 1, .memory_nbytes = 8u << 20 };
    src->io = src->opt.io;
    FUZZ_CHECK(fsdpck_files_init(src, &err) == 0);
    for (int i = 0; i < FUZZ_NFILES; i++) {
        memory_io_add(&s->m, paths[i], s->files[i], s->ends[i]);
        FUZZ_CHECK(fsdpck_source_add_file(src, paths[i], paths[i], i, NULL, &err) == 0);
    }
    FUZZ_CHECK(fsdpck_source_add_tensor(src, "fuzz", s->t->name, NULL, 0, s->t->dtype, s->t->ndim, s->t->shape, &err));
    return src;
}

void fuzz_stored_make(struct fuzz_stored *s, struct fuzz_bytes *in)
{
    memset(s, 0, sizeof *s);
    for (int i = 0; i < FUZZ_NFILES; i++) {
        s->files[i] = calloc(1, FUZZ_FILE_NBYTES);
        FUZZ_CHECK(s->files[i]);
    }
    memory_io_init(&s->m);
    make_tensor(s, in);
    put_chunks(s, in);
    s->src = make_source(s);
}

void fuzz_stored_free(struct fuzz_stored *s)
{
    fsdpck_source_close(s->src);
    FUZZ_CHECK(s->m.nopen == 0);
    for (int i = 0; i < FUZZ_NFILES; i++)
        free(s->files[i]);
    model_free(&s->model);
}
