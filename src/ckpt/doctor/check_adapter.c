/* SPDX-License-Identifier: Apache-2.0 */
/* A PEFT adapter: its pairs, its ranks, and the base that it is for. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "base/suffix.h"
#include "doctor/checks.h"

static const char suffix_a[] = DOCTOR_LORA_A, suffix_b[] = DOCTOR_LORA_B;

static void blame(struct doctor *d, const struct doctor_tensor *t, const struct doctor_words *w)
{
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, doctor_files(d->model)[t->file].name, t->name, w);
}

/* Returns the tensor with another suffix in place of its own, or NULL. */
static const struct doctor_tensor *partner(const struct doctor_model *m, const char *name, const char *suffix,
                                           const char *other)
{
    char wanted[2048];
    size_t n = strlen(name) - strlen(suffix);
    int used = snprintf(wanted, sizeof wanted, "%.*s%s", (int)n, name, other);
    return used > 0 && (size_t)used < sizeof wanted ? fsdpck_doctor_find(m, wanted) : NULL;
}

static void check_pair(struct doctor *d, const struct doctor_tensor *t, const char *suffix, const char *other)
{
    const struct doctor_tensor *o = partner(d->model, t->name, suffix, other);
    struct doctor_words w;
    doctor_say(w.mend, "save the adapter again: without its fellow the tensor does nothing, or loading fails");
    if (!o) {
        doctor_say(w.found, "no tensor '…%s' beside it", other);
        doctor_say(w.expected, "both matrices of the pair");
    } else if (suffix == suffix_a && t->ndim == 2 && o->ndim == 2 && t->shape[0] != o->shape[1]) {
        doctor_say(w.found, "rank %" PRIu64 ", but its fellow '…%s' has rank %" PRIu64, t->shape[0], other,
                   o->shape[1]);
        doctor_say(w.expected, "one rank");
    } else if (t->ndim != 2) {
        doctor_say(w.found, "%" PRIu32 " dimension%s", t->ndim, fsdpck_plural(t->ndim));
        doctor_say(w.expected, "a matrix");
    } else {
        return;
    }
    blame(d, t, &w);
}

/* Convolutions have more dimensions, and are PEFT's too. */
bool fsdpck_doctor_pairs(struct doctor *d)
{
    bool any = false;
    for (size_t i = 0; i < d->model->tensors.count; i++) {
        const struct doctor_tensor *t = &doctor_tensors(d->model)[i];
        bool a = ends_with(t->name, suffix_a), b = ends_with(t->name, suffix_b);
        if ((!a && !b) || t->ndim > 2 || t->nbytes == 0) /* without elements: a check of its own */
            continue;
        any = true;
        check_pair(d, t, a ? suffix_a : suffix_b, a ? suffix_b : suffix_a);
    }
    return any;
}

static const struct doctor_tensor *find_target(struct doctor *d, const char *name)
{
    static const char prefix[] = "base_model.model.";
    const char *inner = strncmp(name, prefix, strlen(prefix)) == 0 ? name + strlen(prefix) : name;
    const struct doctor_tensor *t = partner(d->base, inner, suffix_a, ".weight");
    return t ? t : partner(d->base, inner, suffix_a, ".base_layer.weight");
}

static bool is_plain(const struct doctor_tensor *t)
{
    return t->ndim == 2 && (t->dtype == FSDPCK_FLOAT32 || t->dtype == FSDPCK_FLOAT16 || t->dtype == FSDPCK_BFLOAT16);
}

static bool differs(const struct doctor_tensor *a, const struct doctor_tensor *b, const struct doctor_tensor *target)
{
    return is_plain(target) && a->ndim == 2 && b && b->ndim == 2 &&
           (a->shape[1] != target->shape[1] || b->shape[0] != target->shape[0]);
}

static void blame_base(struct doctor *d, uint64_t n, const struct doctor_tensor *t, const struct doctor_words *said)
{
    struct doctor_words w = *said;
    doctor_say(w.mend, "give the base that the adapter was trained on (base_model_name_or_path: %.300s)",
               json_string_value(json_object_get(d->model->json[DOCTOR_ADAPTER], "base_model_name_or_path"))
                   ? json_string_value(json_object_get(d->model->json[DOCTOR_ADAPTER], "base_model_name_or_path"))
                   : "not said");
    if (n)
        blame(d, t, &w);
}

/* Experts are fused or not in both, under names that differ then. */
static bool is_of_experts(const struct doctor_model *base, const char *name)
{
    return strstr(name, ".experts.") && fsdpck_doctor_find_part(base, ".experts.");
}

/* ---- the same modules under another prefix ---- */

/* Text models have "model.layers.", those with images "model.language_model.layers." or
 * "language_model.model.layers.". */
static const char *const stems[] = { "base_model.model.model.language_model.", "base_model.model.language_model.model.",
                                     "base_model.model.model." };
enum { NSTEMS = sizeof stems / sizeof *stems };

/* Returns the stem under which every pair has a weight in the base, and in *from the one that the pairs have; or NULL.
 */
static const char *find_stem(struct doctor *d, const char **from)
{
    for (size_t to = 0; to < NSTEMS; to++) {
        bool all = true;
        *from = NULL;
        for (size_t i = 0; i < d->model->tensors.count && all; i++) {
            const char *name = doctor_tensors(d->model)[i].name;
            char other[1024];
            size_t s = 0;
            if (!ends_with(name, suffix_a))
                continue;
            while (s < NSTEMS && strncmp(name, stems[s], strlen(stems[s])) != 0)
                s++;
            all = s < NSTEMS && s != to && (!*from || *from == stems[s]);
            if (!all)
                break;
            *from = stems[s];
            snprintf(other, sizeof other, "%s%.900s", stems[to], name + strlen(stems[s]));
            all = find_target(d, other) || is_of_experts(d->base, other);
        }
        if (all && *from)
            return stems[to];
    }
    return NULL;
}

static void blame_stem(struct doctor *d, uint64_t n, const struct doctor_tensor *t, const char *from, const char *to)
{
    struct doctor_words w;
    doctor_say(w.found, "%" PRIu64 " pairs for modules below '%s'", n, from + strlen("base_model.model."));
    doctor_say(w.expected, "'%s', as the base has them: vLLM applies nothing, and says nothing",
               to + strlen("base_model.model."));
    doctor_say(w.mend, "fsdpck export-lora '%s' OUT --rename '%s=%s'", d->model->in_quotes, from, to);
    blame(d, t, &w);
}

bool fsdpck_doctor_adapter_base(struct doctor *d)
{
    const struct doctor_tensor *missing = NULL, *other = NULL, *other_target = NULL;
    uint64_t npairs = 0, nmissing = 0, nother = 0;
    struct doctor_words w = { 0 };
    const char *from, *to;
    for (size_t i = 0; i < d->model->tensors.count; i++) {
        const struct doctor_tensor *t = &doctor_tensors(d->model)[i];
        if (!ends_with(t->name, suffix_a))
            continue;
        const struct doctor_tensor *target = find_target(d, t->name);
        npairs++;
        if (!target && !is_of_experts(d->base, t->name) && nmissing++ == 0)
            missing = t;
        if (target && differs(t, partner(d->model, t->name, suffix_a, suffix_b), target) && nother++ == 0) {
            other = t;
            other_target = target;
        }
    }
    if (nmissing == npairs && npairs && (to = find_stem(d, &from))) {
        blame_stem(d, npairs, missing, from, to);
        return true;
    }
    doctor_say(w.found, "%" PRIu64 " of %" PRIu64 " pairs for modules that the base does not have", nmissing, npairs);
    doctor_say(w.expected, "a weight of the base for each: loaders skip such a pair without a word, or refuse");
    blame_base(d, nmissing, missing, &w);
    if (nother) {
        doctor_say(w.found, "%" PRIu64 " of %" PRIu64 " pairs of other sizes than the base's weights", nother, npairs);
        doctor_say(w.expected, "%" PRIu64 " outputs and %" PRIu64 " inputs for this one", other_target->shape[0],
                   other_target->shape[1]);
        blame_base(d, nother, other, &w);
    }
    return npairs > 0;
}

/* A path on this machine, and not the name of a model on the hub, "someone/model". */
static bool is_path(const char *name)
{
    const char *slash = strchr(name, '/');
    return *name == '/' || *name == '~' || strncmp(name, "./", 2) == 0 || strncmp(name, "../", 3) == 0 ||
           (slash && strchr(slash + 1, '/'));
}

bool fsdpck_doctor_base_path(struct doctor *d)
{
    const char *base = json_string_value(json_object_get(d->model->json[DOCTOR_ADAPTER], "base_model_name_or_path"));
    struct doctor_words w;
    if (!base || !is_path(base))
        return false;
    char *beside = fsdpck_path_join(d->model->path, base, d->err); /* some write it relative to the adapter */
    const bool there = fsdpck_is_directory(d->model->io, base) || (beside && fsdpck_is_directory(d->model->io, beside));
    free(beside);
    if (there)
        return true;
    doctor_say(w.found, "'%.400s', where no folder is", base);
    doctor_say(w.expected, "the base's folder, or its name on the hub: PEFT loads the base from there");
    doctor_say(w.mend, "put the base's name into adapter_config.json");
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_WARNING, "adapter_config.json", "base_model_name_or_path", &w);
    return true;
}
