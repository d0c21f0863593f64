/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors whose precision contradicts what the model computes with them. */
#include <inttypes.h>
#include <string.h>

#include "base/suffix.h"
#include "doctor/checks.h"

static const struct {
    const char *suffix, *why;
} exact[] = {
    { ".e_score_correction_bias", "the router adds it to its scores, and rounding chooses other experts" },
    { ".weight_scale_inv", "each scale multiplies a block of the weight, whose values rounding moves together" },
};

bool fsdpck_doctor_precision(struct doctor *d)
{
    bool any = false;
    for (size_t k = 0; k < sizeof exact / sizeof *exact; k++) {
        const struct doctor_tensor *first = NULL;
        struct doctor_words w;
        uint64_t n = 0;
        for (size_t i = 0; i < d->model->tensors.count; i++) {
            const struct doctor_tensor *t = &doctor_tensors(d->model)[i];
            if (!ends_with(t->name, exact[k].suffix))
                continue;
            any = true;
            if ((t->dtype == FSDPCK_BFLOAT16 || t->dtype == FSDPCK_FLOAT16) && n++ == 0)
                first = t;
        }
        if (!n)
            continue;
        doctor_say(w.found, "%s in %" PRIu64 " tensor%s of this name", fsdpck_dtype_info(first->dtype)->name, n,
                   fsdpck_plural(n));
        doctor_say(w.expected, "float32: %s", exact[k].why);
        doctor_say(w.mend, "take these tensors from the model that this one was cast from");
        fsdpck_doctor_report(d, FSDPCK_SEVERITY_NOTE, doctor_files(d->model)[first->file].name, first->name, &w);
    }
    return any;
}
