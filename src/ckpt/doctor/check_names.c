/* SPDX-License-Identifier: Apache-2.0 */
/* Names of tensors that no loader of a model expects: wrappers of trainers, left-overs of training. */
#include <inttypes.h>
#include <string.h>

#include <fsdpck/select.h>

#include "base/ioutil.h"
#include "base/suffix.h"
#include "doctor/checks.h"

/* rename: of fsdpck export. inside: the name may stand anywhere; else only at the beginning. */
static const struct wrapper {
    const char *text, *to, *rename;
    bool inside;
} wrappers[] = {
    { "_fsdp_wrapped_module.", "", "*_fsdp_wrapped_module.=", true },
    { "_checkpoint_wrapped_module.", "", "*_checkpoint_wrapped_module.=", true },
    { "_orig_mod.", "", "*_orig_mod.=", true },
    { ".base_layer.", ".", "*.base_layer.=.", true },
    { ".modules_to_save.default.", ".", "*.modules_to_save.default.=.", true },
    { "base_model.model.", "", "base_model.model.=", false },
    { "module.", "", "module.=", false },
    { "model.model.", "model.", "model.model.=model.", false },
    { "language_model.model.model.", "language_model.model.", "language_model.model.model.=language_model.model.",
      false },
    { "model.language_model.language_model.", "model.language_model.",
      "model.language_model.language_model.=model.language_model.", false },
};
enum { NWRAPPERS = sizeof wrappers / sizeof *wrappers };

static const char *find_wrapper(const struct wrapper *w, const char *name)
{
    return w->inside ? strstr(name, w->text) : strncmp(name, w->text, strlen(w->text)) == 0 ? name : NULL;
}

static const struct doctor_tensor *find_wrapped(const struct doctor_model *m, const struct wrapper *w, uint64_t *n)
{
    const struct doctor_tensor *first = NULL;
    *n = 0;
    for (size_t i = 0; i < m->tensors.count; i++)
        if (find_wrapper(w, doctor_tensors(m)[i].name) && ++*n == 1)
            first = &doctor_tensors(m)[i];
    return first;
}

bool fsdpck_doctor_wrapped(const struct doctor_model *m)
{
    uint64_t n;
    for (size_t i = 0; i < NWRAPPERS; i++)
        if (find_wrapped(m, &wrappers[i], &n))
            return true;
    return false;
}

/* One command that removes all wrappers. */
static void say_rename(const struct doctor *d, const bool there[NWRAPPERS], struct doctor_words *w)
{
    doctor_say(w->mend, "fsdpck export '%.600s' OUT", d->model->in_quotes);
    for (size_t i = 0; i < NWRAPPERS; i++) {
        const size_t used = strlen(w->mend);
        if (there[i])
            snprintf(w->mend + used, sizeof w->mend - used, " --rename '%s'", wrappers[i].rename);
    }
    const size_t used = strlen(w->mend);
    if (fsdpck_doctor_find_part(d->model, ".original_module."))
        snprintf(w->mend + used, sizeof w->mend - used, " --exclude '*.original_module.*'");
}

bool fsdpck_doctor_wrappers(struct doctor *d)
{
    bool there[NWRAPPERS];
    struct doctor_words w;
    uint64_t n;
    if (fsdpck_doctor_find_part(d->model, ".lora_A."))
        return false; /* an adapter that lost its configuration: the left-overs tell it */
    for (size_t i = 0; i < NWRAPPERS; i++)
        there[i] = find_wrapped(d->model, &wrappers[i], &n) != NULL;
    say_rename(d, there, &w);
    for (size_t i = 0; i < NWRAPPERS; i++) {
        const struct doctor_tensor *first = find_wrapped(d->model, &wrappers[i], &n);
        if (!first)
            continue;
        const char *at = find_wrapper(&wrappers[i], first->name);
        doctor_say(w.found, "%" PRIu64 " name%s with the %s '%s'", n, fsdpck_plural(n),
                   wrappers[i].inside ? "wrapper" : "prefix", wrappers[i].text);
        doctor_say(w.expected, "'%.*s%s%.400s'", (int)(at - first->name), first->name, wrappers[i].to,
                   at + strlen(wrappers[i].text));
        fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, doctor_files(d->model)[first->file].name, first->name, &w);
    }
    return true;
}

/* Globs of the names of tensors that are not weights. */
static const struct leftover {
    const char *glob, *what;
    enum fsdpck_severity severity;
} leftovers[] = {
    { "*._extra_state*", "state of Transformer Engine, which is no weight", FSDPCK_SEVERITY_WARNING },
    { "*optimizer.*", "state of an optimizer", FSDPCK_SEVERITY_WARNING },
    { "*.exp_avg", "state of an optimizer", FSDPCK_SEVERITY_WARNING },
    { "*.exp_avg_sq", "state of an optimizer", FSDPCK_SEVERITY_WARNING },
    { "scaler.*", "state of a loss scaler", FSDPCK_SEVERITY_WARNING },
    { "*.original_module.*", "a module as it was before PEFT trained a copy of it", FSDPCK_SEVERITY_WARNING },
    { "*.attn.bias", "a causal mask, which loaders make themselves", FSDPCK_SEVERITY_NOTE },
    { "*.attn.masked_bias", "the value of a causal mask, which loaders know themselves", FSDPCK_SEVERITY_NOTE },
    { "*rotary_emb.inv_freq", "a table that loaders compute themselves and ignore here", FSDPCK_SEVERITY_NOTE },
};

static void check_leftover(struct doctor *d, const struct leftover *l)
{
    const struct doctor_tensor *first = NULL;
    struct doctor_words w;
    for (size_t i = 0; i < d->model->tensors.count && !first; i++)
        if (fsdpck_glob_match(l->glob, doctor_tensors(d->model)[i].name))
            first = &doctor_tensors(d->model)[i];
    if (!first)
        return;
    doctor_say(w.found, "%s", l->what);
    doctor_say(w.expected, "only the model's weights");
    doctor_say(w.mend, "fsdpck export '%s' OUT --exclude '%s'", d->model->in_quotes, l->glob);
    fsdpck_doctor_report(d, l->severity, doctor_files(d->model)[first->file].name, first->name, &w);
}

bool fsdpck_doctor_leftovers(struct doctor *d)
{
    for (size_t i = 0; i < sizeof leftovers / sizeof *leftovers; i++)
        check_leftover(d, &leftovers[i]);
    const struct doctor_tensor *t = fsdpck_doctor_find_part(d->model, ".lora_A.");
    struct doctor_words w;
    if (t) {
        doctor_say(w.found, "an adapter's tensor in a model without adapter_config.json");
        doctor_say(w.expected, "merged weights, or an adapter's folder");
        doctor_say(w.mend, "put the adapter's adapter_config.json beside it, then: fsdpck merge-lora BASE '%s' OUT",
                   d->model->in_quotes);
        fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, doctor_files(d->model)[t->file].name, t->name, &w);
    }
    return true;
}

bool fsdpck_doctor_empty(struct doctor *d)
{
    const struct doctor_tensor *first = NULL;
    struct doctor_words w;
    uint64_t n = 0;
    for (size_t i = 0; i < d->model->tensors.count; i++)
        if (doctor_tensors(d->model)[i].nbytes == 0 && ends_with(doctor_tensors(d->model)[i].name, ".weight") &&
            n++ == 0)
            first = &doctor_tensors(d->model)[i];
    if (n == 0)
        return true;
    doctor_say(w.found, "%llu weight%s without elements, as a save under ZeRO-3 without gathering leaves them",
               (unsigned long long)n, fsdpck_plural(n));
    doctor_say(w.expected, "the whole weight");
    doctor_say(w.mend, "save again with the weights gathered (stage3_gather_16bit_weights_on_model_save)");
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, doctor_files(d->model)[first->file].name, first->name, &w);
    return true;
}
