/* SPDX-License-Identifier: Apache-2.0 */
/* The number of decoder layers, and of layers for multi-token prediction, against config.json. */
#include <inttypes.h>

#include "base/ioutil.h"
#include "doctor/checks.h"
#include "doctor/layers.h"
#include "doctor/numbers.h"

struct layer_set {
    const char *prefix;
    uint64_t wanted; /* num_hidden_layers */
    uint64_t end;    /* highest number + 1 */
    bool there[DOCTOR_MAX_LAYERS];
};

static bool find_layers(const struct doctor_model *m, struct layer_set *s)
{
    uint64_t index;
    const char *rest;
    *s = (struct layer_set){ .prefix = fsdpck_doctor_layer_prefix(m) };
    if (!s->prefix || !fsdpck_doctor_count(m, "num_hidden_layers", &s->wanted) || s->wanted > DOCTOR_MAX_LAYERS)
        return false;
    for (size_t i = 0; i < m->tensors.count; i++)
        if (fsdpck_doctor_split(doctor_tensors(m)[i].name, s->prefix, &index, &rest) && index < DOCTOR_MAX_LAYERS) {
            s->there[index] = true;
            s->end = index + 1 > s->end ? index + 1 : s->end;
        }
    return true;
}

/* Layers beyond num_hidden_layers are for multi-token prediction where config.json counts them, or where they have that
 * module's norms. */
static bool are_for_mtp(const struct doctor_model *m, const struct layer_set *s)
{
    static const char *const parts[] = { ".enorm.", ".hnorm.", ".eh_proj.", ".shared_head." };
    uint64_t n;
    if (fsdpck_doctor_count(m, "num_nextn_predict_layers", &n) && s->end - s->wanted <= n)
        return true;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (fsdpck_doctor_find_part(m, parts[i]))
            return true;
    return false;
}

bool fsdpck_doctor_layers(struct doctor *d)
{
    struct layer_set s;
    struct doctor_words w;
    char missing[300] = "", subject[400];
    if (!find_layers(d->model, &s))
        return false;
    uint64_t n = fsdpck_doctor_list_missing(s.there, 0, s.wanted, missing, sizeof missing);
    fsdpck_doctor_advise_base(d, &w, "");
    if (n) {
        doctor_say(w.found, "no tensor of %" PRIu64 " layer%s: %s", n, fsdpck_plural(n), missing);
        doctor_say(w.expected, "layers 0 to %" PRIu64 ", as num_hidden_layers says", s.wanted - 1);
        snprintf(subject, sizeof subject, "%sN", s.prefix);
        fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, "", subject, &w);
    }
    if (s.end > s.wanted && !are_for_mtp(d->model, &s)) {
        doctor_say(w.found, "%" PRIu64 ", but the weights have layers up to %" PRIu64, s.wanted, s.end - 1);
        doctor_say(w.expected, "%" PRIu64, s.end);
        doctor_say(w.mend, "put the right number into config.json");
        fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, "config.json", "num_hidden_layers", &w);
    }
    return true;
}

/* Programs that draft tokens read such layers only where config.json counts them. */
static void check_uncounted(struct doctor *d, const struct layer_set *s)
{
    struct doctor_words w;
    const uint64_t n = s->end - s->wanted;
    doctor_say(w.found, "none, but %" PRIu64 " layer%s for multi-token prediction in the weights", n, fsdpck_plural(n));
    doctor_say(w.expected, "%" PRIu64 ": programs that draft tokens with such layers do not look for them", n);
    doctor_say(w.mend, "put \"num_nextn_predict_layers\": %" PRIu64 " into config.json", n);
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_WARNING, "config.json", "num_nextn_predict_layers", &w);
}

static void blame_mtp(struct doctor *d, const struct layer_set *s, const char *key, uint64_t wanted, uint64_t found)
{
    struct doctor_words w;
    char other[100];
    if (found)
        doctor_say(w.found, "%" PRIu64 ", but tensors of only %" PRIu64 " layer%s for multi-token prediction", wanted,
                   found, fsdpck_plural(found));
    else
        doctor_say(w.found, "%" PRIu64 ", but no tensor of a layer for multi-token prediction", wanted);
    doctor_say(w.expected, "tensors '%s%" PRIu64 ".…' or 'mtp.…'", s->prefix, s->wanted + found);
    snprintf(other, sizeof other, "set %s to %" PRIu64 ", or take the tensors from the base: ", key, found);
    fsdpck_doctor_advise_base(d, &w, other);
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, "config.json", key, &w);
}

bool fsdpck_doctor_mtp(struct doctor *d)
{
    static const char *const keys[] = { "num_nextn_predict_layers", "mtp_num_hidden_layers" };
    struct layer_set s;
    char prefix[100];
    uint64_t wanted = 0, beside;
    size_t key = 0;
    if (!find_layers(d->model, &s))
        return false;
    const uint64_t behind = s.end > s.wanted ? s.end - s.wanted : 0;
    const bool apart = fsdpck_doctor_mtp_prefix(d->model, prefix, sizeof prefix, &beside);
    while (key < 2 && !fsdpck_doctor_count(d->model, keys[key], &wanted))
        key++;
    if (key == 2 && behind && are_for_mtp(d->model, &s))
        check_uncounted(d, &s);
    if (key == 2 || (!apart && !behind &&
                     (fsdpck_doctor_find_part(d->model, "nextn") || fsdpck_doctor_find_part(d->model, "mtp_"))))
        return true; /* no such key, or names of other families */
    const uint64_t found = apart && !beside ? wanted : behind + beside;
    if (found < wanted)
        blame_mtp(d, &s, keys[key], wanted, found);
    return true;
}
