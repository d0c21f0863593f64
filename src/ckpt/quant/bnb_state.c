/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON that bitsandbytes stores beside 4-bit codes: shape and dtype of the weight, block sizes, offset of nested
 * scales. The codes themselves have no shape. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/json_read.h"
#include "quant/weights.h"

static uint64_t ceil_div(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

static void read_shape(struct fsdpck_json *j, struct fsdpck_quant_weight *w)
{
    fsdpck_json_array(j);
    while (fsdpck_json_next_item(j)) {
        uint64_t n = fsdpck_json_u64(j);
        if (w->ndim == sizeof w->shape / sizeof *w->shape)
            fsdpck_json_fail(j, FSDPCK_ERR_UNSUPPORTED, "has more than 3 dimensions");
        else
            w->shape[w->ndim++] = n;
    }
}

static float read_float(struct fsdpck_json *j)
{
    const char *text;
    size_t nbytes;
    char digits[64] = "";
    bool is_number = fsdpck_json_peek(j) == FSDPCK_JSON_NUMBER;
    fsdpck_json_raw(j, &text, &nbytes);
    if (!j->failed && (!is_number || nbytes >= sizeof digits))
        fsdpck_json_fail(j, FSDPCK_ERR_FORMAT, "nested_offset is no number");
    if (!j->failed)
        memcpy(digits, text, nbytes);
    return (float)strtod(digits, NULL);
}

static void read_keys(struct fsdpck_json *j, struct fsdpck_quant_weight *w)
{
    const char *key;
    fsdpck_json_object(j);
    while (fsdpck_json_next_key(j, &key)) {
        if (strcmp(key, "shape") == 0 && w->ndim == 0) {
            read_shape(j, w);
        } else if (strcmp(key, "blocksize") == 0) {
            w->group_cols = fsdpck_json_u64(j);
        } else if (strcmp(key, "nested_blocksize") == 0) {
            w->nested_block = fsdpck_json_u64(j);
        } else if (strcmp(key, "nested_offset") == 0) {
            w->nested_offset = read_float(j);
        } else if (strcmp(key, "dtype") == 0) {
            const char *name = fsdpck_json_string(j);
            if (name && !fsdpck_dtype_from_name(name, &w->via))
                fsdpck_json_fail(j, FSDPCK_ERR_UNSUPPORTED, "its dtype is not known: '%s'", name);
        } else {
            fsdpck_json_skip(j);
        }
    }
    fsdpck_json_end(j);
}

/* Checks the number of elements of a part. */
static int check_count(const struct fsdpck_source *src, const struct fsdpck_quant_weight *w, enum fsdpck_quant_part p,
                       uint64_t want, struct fsdpck_error *err)
{
    const struct fsdpck_tensor *t = quant_part(src, w, p);
    if (t && t->nelem == want)
        return 0;
    return fsdpck_quant_refuse(src, w->part[t ? p : FSDPCK_QUANT_CODES], err,
                               "has %" PRIu64 " elements; %s of %" PRIu64 " values in blocks of %" PRIu64
                               " needs %" PRIu64,
                               t ? t->nelem : 0, w->form, w->cols, w->group_cols, want);
}

static int check_nested(const struct fsdpck_source *src, struct fsdpck_quant_weight *w, struct fsdpck_error *err)
{
    if (quant_part(src, w, FSDPCK_QUANT_SCALE)->dtype != FSDPCK_UINT8)
        return 0;
    w->rule = FSDPCK_SCALE_NESTED;
    if (!quant_part(src, w, FSDPCK_QUANT_NESTED) || !quant_part(src, w, FSDPCK_QUANT_NESTED_MAP) || !w->nested_block ||
        !isfinite(w->nested_offset))
        return fsdpck_quant_refuse(src, w->part[FSDPCK_QUANT_SCALE], err,
                                   "holds quantized scales, without nested_absmax, nested_quant_map, or a usable "
                                   "nested_blocksize and nested_offset");
    int rc = check_count(src, w, FSDPCK_QUANT_NESTED_MAP, 256, err);
    return rc ? rc : check_count(src, w, FSDPCK_QUANT_NESTED, ceil_div(w->grid_cols, w->nested_block), err);
}

int fsdpck_quant_read_state(const struct fsdpck_source *src, const char *text, size_t nbytes,
                            struct fsdpck_quant_weight *w, struct fsdpck_error *err)
{
    const struct fsdpck_tensor *codes = quant_part(src, w, FSDPCK_QUANT_CODES);
    struct fsdpck_json j;
    uint64_t values, unused;
    fsdpck_json_begin(&j, src->path, 0, text, nbytes, err);
    read_keys(&j, w);
    int rc = j.failed ? err->code : 0;
    fsdpck_json_free(&j);
    if (rc)
        fsdpck_error_tensor(err, source_tensors(src)[w->part[FSDPCK_QUANT_STATE]].name);
    if (rc)
        return rc;
    if (!w->ndim || !w->group_cols || !checked_shape(w->shape, w->ndim, 4, &values, &unused) || !values ||
        (w->via != FSDPCK_FLOAT32 && w->via != FSDPCK_FLOAT16 && w->via != FSDPCK_BFLOAT16))
        return fsdpck_quant_refuse(
            src, w->part[FSDPCK_QUANT_STATE], err,
            "must name a shape (no dimension of 0, less than 2^62 elements), a blocksize from 1 on, and a "
            "dtype of float32, float16 or bfloat16");
    w->nmat = w->rows = w->group_rows = w->grid_rows = 1;
    w->cols = values;
    w->flat = true;
    w->row_nbytes = codes->nbytes;
    w->grid_cols = ceil_div(values, w->group_cols);
    rc = check_count(src, w, FSDPCK_QUANT_CODES, ceil_div(ceil_div(values, 2), fsdpck_dtype_info(codes->dtype)->nbytes),
                     err);
    if (!rc)
        rc = check_count(src, w, FSDPCK_QUANT_SCALE, w->grid_cols, err);
    if (!rc)
        rc = check_count(src, w, FSDPCK_QUANT_MAP, 16, err);
    return rc ? rc : check_nested(src, w, err);
}
