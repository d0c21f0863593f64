/* SPDX-License-Identifier: Apache-2.0 */
/* Lays out the fused experts of a family that is published with inputs before outputs as matrices that quantizers take:
 * [experts * outputs, inputs]. */
#include "view/experts_rows.h"

#include <stdlib.h>

#include "base/ioutil.h"
#include "hf/config.h"
#include "hf/weight_names.h"
#include "view/experts_view.h"

enum { MOST_EXPERTS = 1 << 16 }; /* each takes memory here; quantizers refuse larger stacks */

static bool is_stack(const struct fsdpck_tensor *t)
{
    return t->ndim == 3 && t->nelem && t->shape[0] <= MOST_EXPERTS &&
           fsdpck_dtype_info(t->dtype)->kind == FSDPCK_KIND_FLOAT && fsdpck_expert_is_name(fsdpck_weight_name(t));
}

static bool has_stacks(const struct fsdpck_source *src)
{
    for (size_t i = 0; i < src->tensors.count; i++)
        if (is_stack(&source_tensors(src)[i]))
            return true;
    return false;
}

/* *is: the experts have inputs before outputs. */
static int read_family(const struct fsdpck_source *src, bool *is, struct fsdpck_error *err)
{
    char *config = fsdpck_weight_config(src, NULL), *text = NULL;
    struct fsdpck_moe moe;
    uint64_t nbytes;
    *is = false;
    if (!config)
        return 0;
    int rc = fsdpck_read_file(src->io, config, FSDPCK_CONFIG_MAX_NBYTES, &text, &nbytes, err);
    if (!rc)
        rc = fsdpck_moe_read(config, text, nbytes, &moe, err);
    if (!rc)
        *is = fsdpck_moe_is_turned(&moe);
    free(text);
    free(config);
    return rc;
}

static int add_rows(struct fsdpck_layout *l, size_t ordinal, struct fsdpck_error *err)
{
    static const uint32_t dims[2] = { 2, 1 };
    const struct fsdpck_tensor *t = &source_tensors(fsdpck_layout_inner(l))[ordinal];
    const uint64_t n = t->shape[0], nin = t->shape[1], nout = t->shape[2], shape[2] = { n * nout, nin },
                   size[2] = { nout, nin };
    struct fsdpck_layout_piece *pieces = calloc(n, sizeof *pieces);
    uint64_t(*offsets)[2] = calloc(n, sizeof *offsets), (*from)[3] = calloc(n, sizeof *from);
    int rc = pieces && offsets && from ? 0 : fsdpck_error_nomem(err, n * sizeof *pieces);
    for (uint64_t e = 0; e < n && !rc; e++) {
        offsets[e][0] = e * nout;
        from[e][0] = e;
        pieces[e] = (struct fsdpck_layout_piece){ t->alias_of >= 0 ? (size_t)t->alias_of : ordinal, offsets[e], size,
                                                  from[e], dims };
    }
    if (!rc)
        rc = fsdpck_layout_add(l, t->name, t->dtype, 2, shape, pieces, n, err);
    free(pieces);
    free(offsets);
    free(from);
    return rc;
}

int fsdpck_experts_rows(struct fsdpck_source *src, struct fsdpck_error *err)
{
    struct fsdpck_layout *layout;
    bool is = false;
    int rc = has_stacks(src) ? read_family(src, &is, err) : 0;
    if (rc || !is)
        return rc;
    const size_t n = src->tensors.count;
    rc = fsdpck_layout_begin(src, &layout, err);
    for (size_t i = 0; i < n && !rc; i++)
        rc = is_stack(&source_tensors(fsdpck_layout_inner(layout))[i]) ? add_rows(layout, i, err)
                                                                       : fsdpck_layout_pass(layout, i, NULL, err);
    return rc;
}
