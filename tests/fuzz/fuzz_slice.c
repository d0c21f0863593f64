/* SPDX-License-Identifier: Apache-2.0 */
/* --slice: the input is the number of dimensions, their sizes (one byte each), then the text. Property: an accepted
 * slice is a box inside the shape, with the right number of elements. */
#include "slice.h"
#include "fuzz.h"

enum { MAX_DIMS = 5 };

static void check(const struct fsdpck_tensor *t, const struct slice *s)
{
    uint64_t nelem = 1;
    for (uint32_t d = 0; d < t->ndim; d++) {
        FUZZ_CHECK(s->offset[d] <= t->shape[d] && s->size[d] <= t->shape[d] - s->offset[d]);
        FUZZ_CHECK(!s->dropped[d] || s->size[d] == 1);
        nelem *= s->size[d];
    }
    FUZZ_CHECK(nelem == s->nelem);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    struct fuzz_bytes in = { data, nbytes };
    uint64_t shape[MAX_DIMS];
    struct fsdpck_tensor t = { .ndim = (uint32_t)fuzz_below(&in, MAX_DIMS + 1), .shape = shape };
    struct fsdpck_error err = { 0 };
    struct slice s;
    for (uint32_t d = 0; d < t.ndim; d++)
        shape[d] = fuzz_byte(&in);
    char *text = fuzz_text(in.at, in.nbytes);
    int r = slice_parse(text, &t, &s, &err);
    FUZZ_CHECK(r == err.code && (r == 0 || r == FSDPCK_ERR_USAGE));
    if (r == 0)
        check(&t, &s);
    FUZZ_CHECK(slice_parse(NULL, &t, &s, &err) == 0);
    check(&t, &s);
    free(text);
    return 0;
}
