/* SPDX-License-Identifier: Apache-2.0 */
/* A model against the one that it was made from: names, shapes, dtypes and keys of config.json. */
#include <inttypes.h>
#include <string.h>

#include "base/ioutil.h"
#include "doctor/checks.h"

/* Names of `a` that `b` lacks. */
static uint64_t count_only_in(const struct doctor_model *a, const struct doctor_model *b,
                              const struct doctor_tensor **first)
{
    uint64_t n = 0;
    for (size_t i = 0; i < a->tensors.count; i++)
        if (!fsdpck_doctor_find(b, doctor_tensors(a)[i].name) && n++ == 0)
            *first = &doctor_tensors(a)[i];
    return n;
}

bool fsdpck_doctor_base_names(struct doctor *d)
{
    const struct doctor_model *m = d->model, *base = d->base;
    const struct doctor_tensor *lost = NULL, *added = NULL;
    struct doctor_words w;
    uint64_t nlost = count_only_in(base, m, &lost), nadded = count_only_in(m, base, &added);
    if (nlost) {
        doctor_say(w.found, "%" PRIu64 " of the base's %zu tensors missing", nlost, base->tensors.count);
        doctor_say(w.expected, "every tensor of the base");
        fsdpck_doctor_advise_base(d, &w, "");
        fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, "", lost->name, &w);
    }
    if (nadded) {
        doctor_say(w.found, "%" PRIu64 " tensor%s that the base does not have", nadded, fsdpck_plural(nadded));
        doctor_say(w.expected, "the names of the base");
        doctor_say(w.mend, "see which: fsdpck diff '%s' '%.400s'", base->in_quotes, m->in_quotes);
        fsdpck_doctor_report(d, FSDPCK_SEVERITY_WARNING, doctor_files(m)[added->file].name, added->name, &w);
    }
    return true;
}

static bool same_shape(const struct doctor_tensor *a, const struct doctor_tensor *b)
{
    return a->ndim == b->ndim && (a->ndim == 0 || memcmp(a->shape, b->shape, a->ndim * sizeof *a->shape) == 0);
}

/* A vocabulary that was resized with its config.json, which base-config compares. */
static bool is_resized(const struct doctor_model *m, const struct doctor_tensor *t, const struct doctor_tensor *base)
{
    uint64_t rows;
    return (strstr(t->name, "embed_tokens.") || strstr(t->name, "lm_head.")) && t->ndim == base->ndim && t->ndim > 0 &&
           fsdpck_doctor_count(m, "vocab_size", &rows) && t->shape[0] == rows &&
           memcmp(t->shape + 1, base->shape + 1, (t->ndim - 1) * sizeof *t->shape) == 0;
}

/* Tensors of quantized weights have other dtypes and shapes than those they were made from. */
bool fsdpck_doctor_base_shapes(struct doctor *d)
{
    const struct doctor_tensor *first = NULL, *wanted = NULL;
    struct doctor_words w;
    uint64_t n = 0;
    for (size_t i = 0; i < d->model->tensors.count; i++) {
        const struct doctor_tensor *t = &doctor_tensors(d->model)[i], *b = fsdpck_doctor_find(d->base, t->name);
        bool real = fsdpck_dtype_info(t->dtype)->kind == FSDPCK_KIND_FLOAT && fsdpck_dtype_info(t->dtype)->nbytes > 1;
        if (b && real && !same_shape(t, b) && !is_resized(d->model, t, b) && n++ == 0) {
            first = t;
            wanted = b;
        }
    }
    if (n == 0)
        return true;
    fsdpck_doctor_say_shape(first, w.found, 200);
    size_t used = strlen(w.found);
    snprintf(w.found + used, sizeof w.found - used, "; %" PRIu64 " tensor%s of other shapes than the base's", n,
             fsdpck_plural(n));
    fsdpck_doctor_say_shape(wanted, w.expected, sizeof w.expected);
    doctor_say(w.mend, "see which: fsdpck diff '%s' '%.400s'", d->base->in_quotes, d->model->in_quotes);
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, doctor_files(d->model)[first->file].name, first->name, &w);
    return true;
}

/* Floating-point weights of another dtype than the base's: cast on the way, or trained in another one. */
bool fsdpck_doctor_base_dtypes(struct doctor *d)
{
    const struct doctor_tensor *first = NULL, *wanted = NULL;
    struct doctor_words w;
    uint64_t n = 0;
    if (fsdpck_doctor_key(d->model, "quantization_config") || fsdpck_doctor_key(d->base, "quantization_config"))
        return false;
    for (size_t i = 0; i < d->model->tensors.count; i++) {
        const struct doctor_tensor *t = &doctor_tensors(d->model)[i], *b = fsdpck_doctor_find(d->base, t->name);
        if (b && t->dtype != b->dtype && n++ == 0) {
            first = t;
            wanted = b;
        }
    }
    if (n == 0)
        return true;
    doctor_say(w.found, "%s; %" PRIu64 " tensor%s of other dtypes than the base's",
               fsdpck_dtype_info(first->dtype)->name, n, fsdpck_plural(n));
    doctor_say(w.expected, "%s, if it was not cast on purpose", fsdpck_dtype_info(wanted->dtype)->name);
    doctor_say(w.mend, "see which: fsdpck diff '%s' '%.400s'", d->base->in_quotes, d->model->in_quotes);
    fsdpck_doctor_report(d,
                         first->dtype == FSDPCK_FLOAT16 && wanted->dtype == FSDPCK_BFLOAT16 ? FSDPCK_SEVERITY_WARNING
                                                                                            : FSDPCK_SEVERITY_NOTE,
                         doctor_files(d->model)[first->file].name, first->name, &w);
    return true;
}

/* ---- config.json ---- */

static const struct {
    const char *key, *why;
    enum fsdpck_severity severity;
    bool lost; /* a key that only the base has is another value too: it has no default */
} kept[] = {
    { "model_type", "loaders choose the code by it", FSDPCK_SEVERITY_WARNING, true },
    { "tie_word_embeddings", "it decides which weights are the head", FSDPCK_SEVERITY_WARNING, false },
    { "rope_theta", "positions turn at other rates", FSDPCK_SEVERITY_WARNING, false },
    { "rope_scaling", "positions turn at other rates", FSDPCK_SEVERITY_WARNING, false },
    { "rope_parameters", "positions turn at other rates", FSDPCK_SEVERITY_WARNING, false },
    { "rms_norm_eps", "norms compute other values", FSDPCK_SEVERITY_WARNING, false },
    { "architectures", "loaders choose the class by it", FSDPCK_SEVERITY_NOTE, true },
    { "vocab_size", "the vocabulary has another size", FSDPCK_SEVERITY_NOTE, false },
    { "eos_token_id", "generation ends at another token", FSDPCK_SEVERITY_NOTE, true },
    { "quantization_config", "loaders take the weights for what it says", FSDPCK_SEVERITY_NOTE, true },
};

/* A key that is null says as much as one that is absent. */
static const json_t *stated(const struct doctor_model *m, const char *key)
{
    const json_t *v = fsdpck_doctor_key(m, key);
    return json_is_null(v) ? NULL : v;
}

static bool is_kept(const struct doctor *d, const char *key)
{
    const json_t *a = stated(d->model, key), *b = stated(d->base, key);
    return a == b || (a && b && doctor_same_json(a, b));
}

/* Longer contexts need other positions than the base was trained with. */
static void check_length(struct doctor *d)
{
    uint64_t own, base;
    struct doctor_words w;
    if (!fsdpck_doctor_count(d->model, "max_position_embeddings", &own) ||
        !fsdpck_doctor_count(d->base, "max_position_embeddings", &base) || own <= base || !is_kept(d, "rope_scaling") ||
        !is_kept(d, "rope_parameters") || !is_kept(d, "rope_theta"))
        return;
    doctor_say(w.found, "%" PRIu64 ", and the base's rope", own);
    doctor_say(w.expected,
               "%" PRIu64 ", as the base has, or a rope_scaling for more: positions beyond were not trained", base);
    doctor_say(w.mend, "put %" PRIu64 " into config.json, if it was not trained on longer texts", base);
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_WARNING, "config.json", "max_position_embeddings", &w);
}

/* A key that one of the two lacks has a default, which is not known here. */
bool fsdpck_doctor_base_config(struct doctor *d)
{
    const json_t *own = d->model->json[DOCTOR_CONFIG], *base = d->base->json[DOCTOR_CONFIG];
    if (!own || !base)
        return false;
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        const json_t *a = stated(d->model, kept[i].key), *b = stated(d->base, kept[i].key);
        struct doctor_words w;
        if (!b || (!a && !kept[i].lost) || (a && doctor_same_json(a, b)))
            continue;
        doctor_say(w.found, "%s",
                   a ? "another value than in the base's config.json"
                     : "no such key, which the base's config.json has");
        doctor_say(w.expected, "the base's value, if it was not changed on purpose: %s", kept[i].why);
        doctor_say(w.mend, "compare both: diff '%s/config.json' '%.400s/config.json'", d->base->in_quotes,
                   d->model->in_quotes);
        fsdpck_doctor_report(d, kept[i].severity, "config.json", kept[i].key, &w);
    }
    check_length(d);
    return true;
}
