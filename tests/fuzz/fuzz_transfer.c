/* SPDX-License-Identifier: Apache-2.0 */
/* A stored tensor through the engine, into chunks with another cut, against a copy of single elements. Properties:
 * lanes contain every chunk and cover every element; payloads, block hashes, CRC-32s and content ids match the tensor's
 * elements; no byte outside payloads and hashes is touched. */
#include <string.h>

#include "engine/lanes.h"
#include "engine/transfer.h"
#include "fuzz_stored.h"
#include "tensor/box.h"

static const char *const out_paths[FUZZ_NFILES] = { MEMORY_ROOT "/out/0", MEMORY_ROOT "/out/1" };

struct task {
    struct fuzz_stored stored;
    struct model_tensor want; /* the tensor as written; owns its data if it was cast */
    struct fuzz_box boxes[FUZZ_MAX_BOXES];
    struct fsdpck_out_chunk chunks[FUZZ_MAX_BOXES];
    size_t nchunks;
    struct fsdpck_out_file files[FUZZ_NFILES];
    uint8_t *rooms[FUZZ_NFILES];
    struct fsdpck_chosen chosen;
    struct fsdpck_selection selection;
    struct fsdpck_transfer transfer;
    struct fsdpck_transfer_content content;
};

static void choose_dtype(struct task *k, struct fuzz_bytes *in)
{
    struct model_tensor *w = &k->want;
    *w = *k->stored.t;
    if (w->dtype != FSDPCK_FLOAT32 || fuzz_below(in, 2) == 0)
        return;
    w->dtype = FSDPCK_BFLOAT16;
    w->item = fsdpck_dtype_info(w->dtype)->nbytes;
    w->nbytes = w->nelem * w->item;
    w->data = malloc(w->nbytes ? w->nbytes : 1);
    FUZZ_CHECK(w->data && fsdpck_dtype_cast(FSDPCK_FLOAT32, k->stored.t->data, w->dtype, w->data, w->nelem));
}

static uint64_t chunk_nbytes(const struct task *k, const struct fsdpck_out_chunk *c)
{
    return fsdpck_box_nelem(c->size, k->want.ndim) * k->want.item;
}

/* Places payloads and, optionally, their hashes. */
static void place_chunks(struct task *k, struct fuzz_bytes *in)
{
    uint64_t ends[FUZZ_NFILES] = { 1 + fuzz_below(in, 64), 1 };
    k->nchunks = fuzz_cut(&k->want, in, k->boxes);
    bool hashed = fuzz_below(in, 4) != 0;
    for (size_t i = 0; i < k->nchunks; i++) {
        struct fsdpck_out_chunk *c = &k->chunks[i];
        uint32_t file = (uint32_t)fuzz_below(in, FUZZ_NFILES);
        *c = (struct fsdpck_out_chunk){ .file = file,
                                        .offset = k->boxes[i].offset,
                                        .size = k->boxes[i].size,
                                        .payload = ends[file] + fuzz_below(in, 70) };
        ends[file] = c->payload + chunk_nbytes(k, c);
        if (hashed) {
            c->hashes = ends[file];
            ends[file] += (chunk_nbytes(k, c) / FSDPCK_BLOCK_NBYTES + 1) * sizeof(struct fsdpck_hash128);
        }
    }
    for (int i = 0; i < FUZZ_NFILES; i++)
        k->files[i] = (struct fsdpck_out_file){ out_paths[i], ends[i] };
}

static void prepare(struct task *k, struct fuzz_bytes *in)
{
    choose_dtype(k, in);
    place_chunks(k, in);
    for (int i = 0; i < FUZZ_NFILES; i++) {
        k->rooms[i] = calloc(1, k->files[i].nbytes);
        FUZZ_CHECK(k->rooms[i]);
        memory_io_add_room(&k->stored.m, out_paths[i], k->rooms[i], k->files[i].nbytes);
    }
    k->chosen = (struct fsdpck_chosen){ .name = k->want.name, .alias_of = -1, .dtype = k->want.dtype };
    k->selection = (struct fsdpck_selection){ .tensors = &k->chosen, .ntensors = 1 };
    k->transfer = (struct fsdpck_transfer){ .src = k->stored.src,
                                            .selection = &k->selection,
                                            .files = k->files,
                                            .nfiles = FUZZ_NFILES,
                                            .chunks = k->chunks,
                                            .nchunks = k->nchunks,
                                            .contents = &k->content };
}

/* Checks that the lanes of a chunk together cover its span, and that exactly one lane owns each element's content. */
static void check_lanes(const struct task *k, size_t max_chunks)
{
    struct fsdpck_lanes lanes;
    struct fsdpck_error err = { 0 };
    uint64_t held[FUZZ_MAX_BOXES] = { 0 }, owned = 0;
    FUZZ_CHECK(fsdpck_lanes_make(&k->transfer, max_chunks, &lanes, &err) == 0);
    for (size_t i = 0; i < lanes.count; i++) {
        const struct fsdpck_lane *l = &lanes.list[i];
        FUZZ_CHECK(l->begin < l->end && l->end <= k->want.nelem && l->count >= 1 && l->count <= max_chunks &&
                   l->first + l->count <= k->nchunks);
        owned += l->owns_content ? l->end - l->begin : 0;
        for (size_t n = 0; n < l->count; n++) {
            uint32_t c = lanes.order[l->first + n];
            FUZZ_CHECK(c < k->nchunks);
            const struct fsdpck_out_chunk *chunk = &k->chunks[c];
            held[c] += fsdpck_box_elements_before(k->want.ndim, k->want.shape, chunk->offset, chunk->size, l->end) -
                       fsdpck_box_elements_before(k->want.ndim, k->want.shape, chunk->offset, chunk->size, l->begin);
        }
    }
    for (size_t c = 0; c < k->nchunks; c++)
        FUZZ_CHECK(held[c] == fsdpck_box_nelem(k->chunks[c].size, k->want.ndim));
    FUZZ_CHECK(owned == k->want.nelem);
    fsdpck_lanes_free(&lanes);
}

/* Compares a range of an output file and zeroes it; any other byte at the end was written by mistake. */
static void take(struct task *k, uint32_t file, uint64_t at, const void *want, uint64_t nbytes)
{
    FUZZ_CHECK(memcmp(k->rooms[file] + at, want, nbytes) == 0);
    memset(k->rooms[file] + at, 0, nbytes);
}

static void check_hashes(struct task *k, const struct fsdpck_out_chunk *c, const uint8_t *bytes, uint64_t nbytes)
{
    struct fsdpck_hash128 hash;
    for (uint64_t at = 0; at < nbytes; at += FSDPCK_BLOCK_NBYTES) {
        fsdpck_hash(bytes + at, nbytes - at < FSDPCK_BLOCK_NBYTES ? nbytes - at : FSDPCK_BLOCK_NBYTES, &hash);
        take(k, c->file, c->hashes + at / FSDPCK_BLOCK_NBYTES * sizeof hash, &hash, sizeof hash);
    }
    FUZZ_CHECK(c->crc32 == fsdpck_crc32(0, bytes, nbytes));
}

/* Checks the content id's sum over the chunk's whole rows. */
static void check_content(const struct task *k, const struct fsdpck_out_chunk *c, const uint8_t *bytes, uint64_t nbytes)
{
    struct fsdpck_content sum = { 0 };
    uint64_t nrows = k->want.ndim ? c->size[0] : 1, first = k->want.ndim ? c->offset[0] : 0;
    for (uint64_t r = 0; r < nrows; r++)
        fsdpck_content_add_row(&sum, bytes + r * (nbytes / nrows), nbytes / nrows, first + r);
    FUZZ_CHECK(sum.low == c->content.low && sum.high == c->content.high);
}

static void check_chunk(struct task *k, const struct fsdpck_out_chunk *c)
{
    int64_t strides[MODEL_MAX_DIMS];
    uint64_t nbytes = chunk_nbytes(k, c);
    uint8_t *bytes = malloc(nbytes);
    FUZZ_CHECK(bytes);
    fsdpck_dense_strides(k->want.ndim, c->size, k->want.item, strides);
    model_get_box(&k->want, c->offset, c->size, bytes, strides);
    take(k, c->file, c->payload, bytes, nbytes);
    if (c->hashes)
        check_hashes(k, c, bytes, nbytes);
    if (c->hashes && c->has_content)
        check_content(k, c, bytes, nbytes);
    free(bytes);
}

static void check_run(struct task *k)
{
    struct fsdpck_transfer_result result = { 0 };
    struct fsdpck_error err = { 0 };
    uint8_t content[16], got[16];
    FUZZ_CHECK(fsdpck_transfer_run(&k->transfer, &result, &err) == 0);
    FUZZ_CHECK(result.payload_nbytes == k->want.nbytes);
    for (size_t i = 0; i < k->nchunks; i++)
        check_chunk(k, &k->chunks[i]);
    for (int f = 0; f < FUZZ_NFILES; f++)
        for (uint64_t i = 0; i < k->files[f].nbytes; i++)
            FUZZ_CHECK(k->rooms[f][i] == 0);
    model_content(&k->want, content);
    fsdpck_content_store(&k->content.content, got);
    FUZZ_CHECK(!k->content.known || memcmp(got, content, sizeof got) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    static struct task k;
    struct fuzz_bytes in = { data, nbytes };
    fuzz_stored_make(&k.stored, &in);
    prepare(&k, &in);
    check_lanes(&k, 1 + fuzz_below(&in, 4));
    check_run(&k);
    if (k.want.data != k.stored.t->data)
        free(k.want.data);
    for (int i = 0; i < FUZZ_NFILES; i++)
        free(k.rooms[i]);
    fuzz_stored_free(&k.stored);
    return 0;
}
