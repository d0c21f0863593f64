/* SPDX-License-Identifier: Apache-2.0 */
/* Turns the fused experts of a family that is published with inputs before outputs, and held the other way. */
#include <inttypes.h>
#include <stdio.h>

#include "hf/weight_names.h"
#include "view/experts_view.h"

enum { NAME_NBYTES = 256 };

static bool is_fused(const struct fsdpck_moe *moe, const struct fsdpck_tensor *t)
{
    struct fsdpck_expert x;
    char name[NAME_NBYTES];
    fsdpck_text_rename(fsdpck_moe_text(moe), &fsdpck_text_alone, fsdpck_weight_name(t), name, sizeof name);
    fsdpck_expert_parse(moe, name, &x);
    return x.form == FSDPCK_EXPERT_FUSED;
}

static int turn(struct fsdpck_layout *l, size_t ordinal, struct fsdpck_error *err)
{
    static const uint64_t zeros[3];
    static const uint32_t dims[3] = { 0, 2, 1 };
    const struct fsdpck_tensor *all = source_tensors(fsdpck_layout_inner(l)), *t = &all[ordinal];
    const uint64_t shape[3] = { t->shape[0], t->shape[2], t->shape[1] };
    const struct fsdpck_layout_piece piece = { t->alias_of >= 0 ? (size_t)t->alias_of : ordinal, zeros, shape, zeros,
                                               dims };
    return fsdpck_layout_add(l, fsdpck_weight_name(t), t->dtype, 3, shape, &piece, 1, err);
}

static void note(const struct fsdpck_source *src, const struct fsdpck_moe *moe, bool published)
{
    char line[256];
    snprintf(line, sizeof line, "%s: the %" PRIu64 " experts of a layer have %s, and are taken %s", moe->model_type,
             moe->nexperts,
             published ? "outputs before inputs, as transformers holds them" : "inputs before outputs, as published",
             published ? "as published" : "as transformers holds them");
    if (src->opt.note)
        src->opt.note(src->opt.ctx, line);
}

int fsdpck_experts_turn(struct fsdpck_source *src, const struct fsdpck_moe *moe, bool published,
                        struct fsdpck_error *err)
{
    const size_t n = src->tensors.count, nitems = src->items.count;
    struct fsdpck_layout *layout;
    size_t nleft = 0;
    note(src, moe, published);
    int rc = fsdpck_layout_begin(src, &layout, err);
    for (size_t i = 0; i < n && !rc; i++) {
        const struct fsdpck_tensor *t = &source_tensors(fsdpck_layout_inner(layout))[i];
        nleft += fsdpck_weight_is_state(t);
        if (!fsdpck_weight_is_state(t))
            rc = is_fused(moe, t) ? turn(layout, i, err) : fsdpck_layout_pass(layout, i, fsdpck_weight_name(t), err);
    }
    src->items.count = 0;
    if (!rc)
        fsdpck_weight_note_left_out(src, nleft, nitems);
    return rc;
}
