/* SPDX-License-Identifier: Apache-2.0 */
/* Presents the weights of a model as a trainer holds a frozen base: dequantized, quantized, or packed as they are
 * stored. */
#include <fsdpck/packed.h>

#include <string.h>

#include "engine/source_impl.h"
#include "quant/hold.h"
#include "quant/pack_view.h"
#include "quant/targets.h"
#include "view/experts_rows.h"

static int hold(struct fsdpck_source *src, const char *how, struct fsdpck_error *err)
{
    const struct fsdpck_quant_target_form *form = fsdpck_quant_target_form(how);
    bool packed = false;
    if (strcmp(how, FSDPCK_HOLD_DEQUANTIZED) == 0) {
        int rc = fsdpck_source_dequantize(src, FSDPCK_BFLOAT16, NULL, err);
        src->held = src->dequantized ? FSDPCK_HOLD_DEQUANTIZED : NULL;
        return rc;
    }
    if (!form && strcmp(how, FSDPCK_HOLD_AS_STORED) != 0)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                "a base is held as stored, bf16, fp8-block, mxfp4, nvfp4 or nf4, not '%s'", how);
    int rc = form ? fsdpck_experts_rows(src, err) : 0;
    if (!rc && form)
        rc = fsdpck_source_quantize(src, how, NULL, 0, err);
    if (!rc)
        rc = fsdpck_source_pack(src, &packed, err);
    src->held = form ? form->name : packed ? FSDPCK_HOLD_AS_STORED : NULL;
    return rc;
}

int fsdpck_source_hold(struct fsdpck_source *src, const char *how, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    void (*note)(void *ctx, const char *line) = src->opt.note;
    src->opt.note = NULL; /* notes of the views speak of options of fsdpck */
    int rc = hold(src, how, err ? err : &own);
    src->opt.note = note;
    return rc;
}

const char *fsdpck_source_held(const struct fsdpck_source *src)
{
    return src->held;
}
