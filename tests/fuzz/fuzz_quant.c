/* SPDX-License-Identifier: Apache-2.0 */
/* Quantized weights: a model (fuzz_model.h) is dequantized, quantized to a form that its bytes choose, both, and
 * packed as the trainer holds it, as it is stored and in that form. */
#include <fsdpck/packed.h>

#include "fuzz.h"
#include "fuzz_model.h"

enum way { DEQUANTIZED, QUANTIZED, QUANTIZED_AGAIN, HELD, HELD_QUANTIZED };

struct choice {
    enum way way;
    const char *form;
};

static int present(struct fsdpck_source *src, const void *ctx, struct fsdpck_error *err)
{
    const struct choice *c = ctx;
    if (c->way >= HELD)
        return fsdpck_source_hold(src, c->way == HELD ? "as stored" : c->form, err);
    int rc = c->way == QUANTIZED ? 0 : fsdpck_source_dequantize(src, FSDPCK_BFLOAT16, NULL, err);
    return rc || c->way == DEQUANTIZED ? rc : fsdpck_source_quantize(src, c->form, NULL, 0, err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    static const char *const forms[] = { "fp8-block", "mxfp4", "nvfp4", "nf4" };
    struct memory_io m;
    unsigned sum = 0;
    for (size_t i = 0; i < nbytes; i++)
        sum = sum * 31 + data[i];
    memory_io_init(&m);
    const bool whole = fuzz_model_add(&m, data, nbytes);
    for (int way = DEQUANTIZED; whole && way <= HELD_QUANTIZED; way++)
        fuzz_model_check(&m, present, &(struct choice){ (enum way)way, forms[sum >> 8 & 3] });
    FUZZ_CHECK(m.nopen == 0);
    return 0;
}
