/* SPDX-License-Identifier: Apache-2.0 */
/* Reads boxes of a stored tensor into strided memory, against a copy of single elements. Properties: every byte of the
 * destination is the tensor's; no byte outside is touched; the plan counts the same bytes; a range of elements in
 * row-major order is that range. */
#include <string.h>

#include "engine/fetch.h"
#include "fuzz_stored.h"

#define GUARD 0xee

struct read_target {
    struct fuzz_box box;
    int64_t strides[MODEL_MAX_DIMS];
    uint64_t nbytes, first; /* size of the memory; offset of the first element in it */
};

/* Lays out the destination with its dimensions in any order, with gaps, forwards or backwards. */
static void choose_target(const struct model_tensor *t, struct fuzz_bytes *in, struct read_target *p)
{
    uint64_t step = t->item + fuzz_below(in, 4), used = t->item;
    uint32_t rotate = t->ndim ? (uint32_t)fuzz_below(in, t->ndim) : 0;
    p->first = 0;
    for (uint32_t d = 0; d < t->ndim; d++) {
        uint64_t n = t->shape[d];
        p->box.offset[d] = fuzz_below(in, n + 1 < 65536 ? n + 1 : 65536);
        p->box.size[d] = fuzz_below(in, n - p->box.offset[d] + 1 < 65536 ? n - p->box.offset[d] + 1 : 65536);
    }
    for (uint32_t i = 0; i < t->ndim; i++) {
        uint32_t d = (i + rotate) % t->ndim;
        uint64_t n = p->box.size[d] ? p->box.size[d] : 1;
        bool backwards = fuzz_below(in, 3) == 0;
        p->strides[d] = backwards ? -(int64_t)step : (int64_t)step;
        p->first += backwards ? (n - 1) * step : 0;
        used += (n - 1) * step;
        step = n * step + fuzz_below(in, 3);
    }
    p->nbytes = used;
}

static void check_box(struct fuzz_stored *s, struct fuzz_bytes *in)
{
    struct read_target p;
    struct fsdpck_plan plan;
    struct fsdpck_error err = { 0 };
    choose_target(s->t, in, &p);
    uint8_t *got = malloc(p.nbytes), *want = malloc(p.nbytes);
    uint64_t needed = s->t->item;
    FUZZ_CHECK(got && want);
    memset(got, GUARD, p.nbytes);
    memset(want, GUARD, p.nbytes);
    struct fsdpck_read read = { .tensor = fsdpck_source_tensor(s->src, 0),
                                .offset = p.box.offset,
                                .size = p.box.size,
                                .dst = got + p.first,
                                .strides = p.strides };
    FUZZ_CHECK(fsdpck_source_read(s->src, &read, 1, &err) == 0);
    FUZZ_CHECK(fsdpck_source_plan(s->src, &read, 1, &plan, &err) == 0);
    for (uint32_t d = 0; d < s->t->ndim; d++)
        needed *= p.box.size[d];
    if (needed)
        model_get_box(s->t, p.box.offset, p.box.size, want + p.first, p.strides);
    FUZZ_CHECK(memcmp(got, want, p.nbytes) == 0);
    FUZZ_CHECK(plan.needed_nbytes == needed && plan.read_nbytes >= needed && plan.nfiles <= FUZZ_NFILES);
    free(got);
    free(want);
}

static void check_range(struct fuzz_stored *s, struct fuzz_bytes *in)
{
    struct fsdpck_fetch f;
    struct fsdpck_error err = { 0 };
    uint64_t n = s->t->nelem, begin = fuzz_below(in, n + 1 < 65536 ? n + 1 : 65536);
    uint64_t end = begin + fuzz_below(in, n - begin + 1 < 65536 ? n - begin + 1 : 65536),
             nbytes = (end - begin) * s->t->item;
    uint8_t *got = malloc(nbytes ? nbytes : 1);
    FUZZ_CHECK(got && fsdpck_fetch_init(&f, s->src, &err) == 0);
    if (end > begin) {
        FUZZ_CHECK(fsdpck_fetch_range(&f, 0, begin, end, got, &err) == 0);
        FUZZ_CHECK(memcmp(got, s->t->data + begin * s->t->item, nbytes) == 0);
    }
    fsdpck_fetch_free(&f);
    free(got);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    struct fuzz_bytes in = { data, nbytes };
    static struct fuzz_stored s;
    fuzz_stored_make(&s, &in);
    for (uint64_t i = fuzz_below(&in, 3) + 1; i > 0; i--)
        check_box(&s, &in);
    check_range(&s, &in);
    fuzz_stored_free(&s);
    return 0;
}
