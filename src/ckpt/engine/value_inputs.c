/* SPDX-License-Identifier: Apache-2.0 */
/* Reads of the inputs of computed tensors, stored or computed themselves, and the counts of what was read. */
#include "engine/value_inputs.h"

#include <stdlib.h>

#include "engine/fetch.h"
#include "engine/values.h"
#include "tensor/box.h"

struct input {
    struct fsdpck_fetch *f;
    const struct fsdpck_tensor *t;
    const uint64_t *offset, *size;
    struct fsdpck_fetch_target to;
    uint64_t covered;
};

static int read_extent(void *ctx, const struct fsdpck_extent *e, struct fsdpck_error *err)
{
    struct input *in = ctx;
    uint64_t o[FSDPCK_MAX_DIMS], s[FSDPCK_MAX_DIMS];
    if (!fsdpck_box_intersect(in->t->ndim, e->offset, e->size, in->offset, in->size, o, s))
        return 0;
    uint64_t nelem = fsdpck_box_nelem(s, in->t->ndim);
    in->covered += nelem;
    return fsdpck_fetch_box(in->f, e, o, s, 0, nelem, &in->to, err);
}

static int read_stored(struct fsdpck_fetch *f, size_t ordinal, const uint64_t *offset, const uint64_t *size, void *dst,
                       const int64_t *strides, struct fsdpck_error *err)
{
    struct input in = { .f = f,
                        .t = &source_tensors(f->src)[ordinal],
                        .offset = offset,
                        .size = size,
                        .to = { .ordinal = ordinal, .offset = offset, .dst = dst, .strides = strides } };
    int rc = f->src->ops->extents(f->src, ordinal, offset, size, read_extent, &in, err);
    uint64_t want = fsdpck_box_nelem(size, in.t->ndim);
    if (rc || in.covered == want)
        return rc;
    fsdpck_error_set(err, FSDPCK_ERR_MISSING, f->src->path,
                     "the stored chunks hold %llu of the %llu elements that are wanted", (unsigned long long)in.covered,
                     (unsigned long long)want);
    fsdpck_error_tensor(err, in.t->name);
    return FSDPCK_ERR_MISSING;
}

/* The counts of a workspace before a read, to add the difference to another's. */
struct counts {
    uint64_t read, needed, nruns;
};

static struct counts begin_input(const struct fsdpck_fetch *f, struct fsdpck_fetch *input)
{
    input->dry = f->dry;
    return (struct counts){ input->read_nbytes, input->needed_nbytes, input->nruns };
}

static void end_input(struct fsdpck_fetch *f, const struct fsdpck_fetch *input, struct counts before)
{
    f->read_nbytes += input->read_nbytes - before.read;
    f->needed_nbytes += input->needed_nbytes - before.needed;
    f->nruns += input->nruns - before.nruns;
}

int fsdpck_values_input_box(struct fsdpck_fetch *f, struct fsdpck_fetch *input, size_t ordinal, const uint64_t *offset,
                            const uint64_t *size, void *dst, const int64_t *strides, struct fsdpck_error *err)
{
    struct counts before = begin_input(f, input);
    int rc = fsdpck_is_computed(input->src, ordinal)
                 ? fsdpck_values_box(input, ordinal, offset, size, dst, strides, err)
                 : read_stored(input, ordinal, offset, size, dst, strides, err);
    end_input(f, input, before);
    return rc;
}

int fsdpck_values_input(struct fsdpck_fetch *f, struct fsdpck_fetch *input, size_t ordinal, const uint64_t *offset,
                        const uint64_t *size, void *dst, struct fsdpck_error *err)
{
    const struct fsdpck_tensor *t = &source_tensors(input->src)[ordinal];
    int64_t strides[FSDPCK_MAX_DIMS];
    fsdpck_dense_strides(t->ndim, size, fsdpck_dtype_info(t->dtype)->nbytes, strides);
    return fsdpck_values_input_box(f, input, ordinal, offset, size, dst, strides, err);
}

int fsdpck_values_input_range(struct fsdpck_fetch *f, struct fsdpck_fetch *input, size_t ordinal, uint64_t begin,
                              uint64_t end, void *dst, struct fsdpck_error *err)
{
    struct counts before = begin_input(f, input);
    int rc = fsdpck_fetch_range(input, ordinal, begin, end, dst, err);
    end_input(f, input, before);
    return rc;
}

/* Reads a box of a stored tensor seen as a matrix: whole rows at once where dst has them dense. */
static int pass_stored(struct fsdpck_fetch *input, size_t ordinal, const struct fsdpck_matrix_box *box, uint8_t *dst,
                       uint64_t stride, struct fsdpck_error *err)
{
    const struct fsdpck_tensor *t = &source_tensors(input->src)[ordinal];
    const uint64_t cols = t->ndim ? t->shape[t->ndim - 1] : 1, item = fsdpck_dtype_info(t->dtype)->nbytes;
    const uint64_t nrows = box->ncols == cols && stride == cols * item ? box->nrows : 1;
    int rc = 0;
    for (uint64_t i = 0; i < box->nrows && !rc; i += nrows) {
        const uint64_t begin = (box->row + i) * cols + box->col, n = nrows > 1 ? nrows * cols : box->ncols;
        rc = fsdpck_fetch_range(input, ordinal, begin, begin + n, dst ? dst + i * stride : NULL, err);
    }
    return rc;
}

int fsdpck_values_pass(struct fsdpck_fetch *f, struct fsdpck_fetch *input, size_t ordinal,
                       const struct fsdpck_matrix_box *box, void *dst, uint64_t stride, struct fsdpck_error *err)
{
    struct counts before = begin_input(f, input);
    int rc = fsdpck_is_computed(input->src, ordinal) ? fsdpck_values_matrix(input, ordinal, *box, dst, stride, err)
                                                     : pass_stored(input, ordinal, box, dst, stride, err);
    end_input(f, input, before);
    return rc;
}

int fsdpck_value_piece_begin(struct fsdpck_source *input, uint64_t nbytes, void **state, struct fsdpck_error *err)
{
    struct fsdpck_value_piece *s = calloc(1, sizeof *s);
    if (!s || !(s->piece = malloc(nbytes))) {
        free(s);
        return fsdpck_error_nomem(err, nbytes);
    }
    *state = s;
    return fsdpck_fetch_init(&s->fetch, input, err);
}

void fsdpck_value_piece_end(void *state)
{
    struct fsdpck_value_piece *s = state;
    if (s) {
        fsdpck_fetch_free(&s->fetch);
        free(s->piece);
    }
    free(s);
}
