/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that read weights: values that are no numbers, tensors that are zero, adapters without effect. Run with
 * --deep. */
#include <inttypes.h>
#include <string.h>

#include "base/suffix.h"
#include "doctor/checks.h"
#include "doctor/reads.h"

/* ---- the bits of one tensor ---- */

/* An element is no number if (bits & mask) == pattern, and zero if it has none of the bits `magnitude`. */
struct bits {
    uint64_t mask, pattern, magnitude;
};

struct scan {
    uint32_t item_nbytes;
    struct bits bits;
    uint64_t nbad; /* NaN, and infinity where the dtype has it */
    bool zero;     /* no element but zeros */
};

/* Scales of MXFP4 and MXFP8 are exponents, of which 255 stands for NaN. */
static bool is_exponent(const struct doctor_tensor *t)
{
    return t->dtype == FSDPCK_FLOAT8_E8M0FNU ||
           (t->dtype == FSDPCK_UINT8 && (ends_with(t->name, "_scales") || ends_with(t->name, ".weight_scale") ||
                                         ends_with(t->name, ".weight_scale_inv")));
}

/* Returns false for codes and integers: any bits are a value. */
static bool bits_of(const struct doctor_tensor *t, struct bits *out)
{
    static const struct {
        enum fsdpck_dtype dtype;
        struct bits bits;
    } table[] = {
        { FSDPCK_FLOAT64, { 0x7ff0000000000000, 0x7ff0000000000000, 0x7fffffffffffffff } },
        { FSDPCK_FLOAT32, { 0x7f800000, 0x7f800000, 0x7fffffff } },
        { FSDPCK_FLOAT16, { 0x7c00, 0x7c00, 0x7fff } },
        { FSDPCK_BFLOAT16, { 0x7f80, 0x7f80, 0x7fff } },
        { FSDPCK_FLOAT8_E4M3FN, { 0x7f, 0x7f, 0x7f } },
        { FSDPCK_FLOAT8_E5M2, { 0x7c, 0x7c, 0x7f } },
        { FSDPCK_FLOAT8_E4M3FNUZ, { 0xff, 0x80, 0x7f } },
        { FSDPCK_FLOAT8_E5M2FNUZ, { 0xff, 0x80, 0x7f } },
    };
    *out = (struct bits){ 0xff, 0xff, 0xff };
    if (is_exponent(t))
        return true;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].dtype == t->dtype) {
            *out = table[i].bits;
            return true;
        }
    return false;
}

#define SCAN(type) \
    for (uint64_t i = 0; i < nelem; i++) { \
        type x; \
        memcpy(&x, data + i * sizeof x, sizeof x); \
        nbad += (x & (type)b.mask) == (type)b.pattern; \
        any |= x & (type)b.magnitude; \
    } \
    break

static bool scan_piece(void *ctx, const uint8_t *data, uint64_t nelem)
{
    struct scan *s = ctx;
    const struct bits b = s->bits;
    uint64_t nbad = 0, any = 0;
    switch (s->item_nbytes) {
    case 1: SCAN(uint8_t);
    case 2: SCAN(uint16_t);
    case 4: SCAN(uint32_t);
    default: SCAN(uint64_t);
    }
    s->nbad += nbad;
    s->zero = s->zero && !any;
    return true;
}

/* Returns false if the tensor has no bits that could be wrong, or could not be read. */
static bool scan(struct doctor *d, struct doctor_reads *r, const struct doctor_tensor *t, struct scan *out)
{
    *out = (struct scan){ .item_nbytes = fsdpck_dtype_info(t->dtype)->nbytes, .zero = true };
    return t->nbytes > 0 && bits_of(t, &out->bits) &&
           fsdpck_doctor_read(d, r, t->name, 0, t->nbytes / out->item_nbytes, scan_piece, out);
}

/* ---- all tensors ---- */

/* Tensors of one defect. */
struct found {
    const struct doctor_tensor *first;
    uint64_t ntensors, nelem; /* nelem: bad ones, in the first tensor */
};

static void add(struct found *f, const struct doctor_tensor *t, uint64_t nelem)
{
    if (f->ntensors++ == 0) {
        f->first = t;
        f->nelem = nelem;
    }
}

static void report(struct doctor *d, enum fsdpck_severity severity, const struct doctor_tensor *t,
                   const struct doctor_words *w)
{
    fsdpck_doctor_report(d, severity, doctor_files(d->model)[t->file].name, t->name, w);
}

/* Masks hold infinities on purpose. */
static bool may_be_infinite(const struct doctor_tensor *t)
{
    return strstr(t->name, "mask") != NULL;
}

/* A module without effect; biases may well be zero, and so may norms that add 1. */
static bool is_matrix(const struct doctor_tensor *t)
{
    return t->ndim >= 2 && !strstr(t->name, "bias") && !is_exponent(t);
}

bool fsdpck_doctor_values(struct doctor *d)
{
    struct doctor_reads r;
    struct found bad = { 0 }, zero = { 0 };
    struct doctor_words w;
    struct scan s;
    const bool is_model = d->model->json[DOCTOR_CONFIG] && !doctor_is_adapter(d->model);
    bool decided = fsdpck_doctor_reads_begin(d, d->model, &r);
    for (size_t i = 0; decided && i < d->model->tensors.count && !d->err->code; i++) {
        const struct doctor_tensor *t = &doctor_tensors(d->model)[i];
        if (!scan(d, &r, t, &s))
            continue;
        if (s.nbad && !may_be_infinite(t))
            add(&bad, t, s.nbad);
        if (s.zero && is_model && is_matrix(t))
            add(&zero, t, 0);
    }
    fsdpck_doctor_reads_end(&r);
    if (bad.ntensors) {
        doctor_say(w.found, "NaN or infinity in %" PRIu64 " tensor%s; %" PRIu64 " of the values of this one",
                   bad.ntensors, fsdpck_plural(bad.ntensors), bad.nelem);
        doctor_say(w.expected, "numbers: what is computed from such a weight is NaN");
        doctor_say(w.mend, "take an earlier checkpoint, or save or convert again from the source of these weights");
        report(d, FSDPCK_SEVERITY_ERROR, bad.first, &w);
    }
    if (zero.ntensors) {
        doctor_say(w.found, "nothing but zeros in %" PRIu64 " matri%s", zero.ntensors,
                   zero.ntensors == 1 ? "x" : "ces");
        doctor_say(w.expected, "trained weights: saves that lose a shard leave such tensors");
        fsdpck_doctor_advise_base(
            d, &w, "if they should not be zero, leave them out with --exclude, and take them from the base: ");
        report(d, FSDPCK_SEVERITY_WARNING, zero.first, &w);
    }
    return decided;
}

/* ---- adapters ---- */

/* B begins as zero: where it still is, the pair adds nothing. */
bool fsdpck_doctor_untrained(struct doctor *d)
{
    struct doctor_reads r;
    struct found zero = { 0 };
    struct doctor_words w;
    struct scan s;
    uint64_t npairs = 0;
    bool decided = fsdpck_doctor_reads_begin(d, d->model, &r);
    for (size_t i = 0; decided && i < d->model->tensors.count && !d->err->code; i++) {
        const struct doctor_tensor *t = &doctor_tensors(d->model)[i];
        if (!ends_with(t->name, DOCTOR_LORA_B) || !scan(d, &r, t, &s))
            continue;
        npairs++;
        if (s.zero)
            add(&zero, t, 0);
    }
    fsdpck_doctor_reads_end(&r);
    if (zero.ntensors) {
        const bool all = zero.ntensors == npairs;
        doctor_say(w.found, "nothing but zeros in lora_B of %" PRIu64 " of %" PRIu64 " pairs", zero.ntensors, npairs);
        doctor_say(w.expected, "%s",
                   all ? "trained pairs: the model with this adapter is the model without it"
                       : "trained pairs: these modules stay as they are in the base");
        doctor_say(w.mend, "save the adapter from the trained model, after its weights are gathered");
        report(d, all ? FSDPCK_SEVERITY_ERROR : FSDPCK_SEVERITY_NOTE, zero.first, &w);
    }
    return decided && npairs > 0;
}
