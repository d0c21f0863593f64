/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters of routed experts: the dialects whose shapes do not tell what they mean, or that common loaders skip. */
#include <fsdpck/lora.h>
#include <inttypes.h>
#include <string.h>

#include "base/suffix.h"
#include "doctor/checks.h"
#include "doctor/parts.h"
#include "lora/config.h"

static const char config_file[] = FSDPCK_LORA_CONFIG_NAME;

/* Such a tensor serves all experts of a layer: its rows are those of all, not the rank, and target_modules does not
 * name it. */
bool fsdpck_doctor_is_fused_pair(const char *name)
{
    return ends_with(name, ".experts" DOCTOR_LORA_A) || ends_with(name, ".experts.base_layer" DOCTOR_LORA_A);
}

static void blame(struct doctor *d, enum fsdpck_severity severity, const struct doctor_tensor *t,
                  const struct doctor_words *w)
{
    fsdpck_doctor_report(d, severity, doctor_files(d->model)[t->file].name, t->name, w);
}

static const struct doctor_tensor *find_fused(const struct doctor_model *m)
{
    for (size_t i = 0; i < m->tensors.count; i++)
        if (fsdpck_doctor_is_fused_pair(doctor_tensors(m)[i].name))
            return &doctor_tensors(m)[i];
    return NULL;
}

/* Adapters of fused experts: what their shapes do not tell, the writer's release does. */
static bool check_writer(struct doctor *d)
{
    const struct doctor_tensor *t = find_fused(d->model);
    const char *version = json_string_value(json_object_get(d->model->json[DOCTOR_ADAPTER], "peft_version"));
    struct doctor_words w;
    if (!t)
        return false;
    if (json_array_size(json_object_get(d->model->json[DOCTOR_ADAPTER], "target_parameters")) == 0) {
        doctor_say(w.found, "an adapter of fused experts, and no target_parameters in %s", config_file);
        doctor_say(w.expected, "the parameters' names there: the tensors' names do not say which is whose");
        doctor_say(w.mend, "put the target_parameters that were trained into %s", config_file);
        blame(d, FSDPCK_SEVERITY_ERROR, t, &w);
    } else if (version && fsdpck_lora_writer_swaps(version)) {
        doctor_say(w.found, "an adapter of fused experts by PEFT %.40s, which swapped inputs and outputs", version);
        doctor_say(w.expected, "one by PEFT 0.19.1 or later: newer PEFT and vLLM read this one wrong, or refuse it");
        doctor_say(w.mend, "merge it, or save it again, with the PEFT that wrote it");
        blame(d, FSDPCK_SEVERITY_ERROR, t, &w);
    } else if (!version) {
        doctor_say(w.found, "an adapter of fused experts, and no peft_version in %s", config_file);
        doctor_say(w.expected, "the writer's release: PEFT stores B with the expert's number fastest, Unsloth until "
                               "September 2026 slowest, in the same shapes");
        doctor_say(w.mend, "put the peft_version of the writer into %s", config_file);
        blame(d, FSDPCK_SEVERITY_WARNING, t, &w);
    }
    return true;
}

/* ---- three dimensions ---- */

/* SGLang and Megatron-Bridge give each expert a matrix of one tensor. */
static bool check_stacked(struct doctor *d)
{
    struct doctor_words w;
    for (size_t i = 0; i < d->model->tensors.count; i++) {
        const struct doctor_tensor *t = &doctor_tensors(d->model)[i];
        if (t->ndim != 3 || !strstr(t->name, ".experts.") || !ends_with(t->name, DOCTOR_LORA_A))
            continue;
        doctor_say(w.found, "an adapter of experts in three dimensions, as SGLang and Megatron-Bridge hold it");
        doctor_say(w.expected, "PEFT's layout, or a pair for each expert: PEFT and vLLM skip these tensors");
        doctor_say(w.mend, "for other programs: fsdpck merge-lora BASE '%s' OUT", d->model->in_quotes);
        blame(d, d->consumer ? FSDPCK_SEVERITY_ERROR : FSDPCK_SEVERITY_NOTE, t, &w);
        return true;
    }
    return false;
}

bool fsdpck_doctor_expert_adapter(struct doctor *d)
{
    const bool stacked = check_stacked(d);
    return check_writer(d) || stacked;
}

/* ---- inputs and outputs ---- */

/* PEFT takes Llama-4's inputs for outputs, in the base and in the adapter. */
static bool is_turned(const struct doctor_known *k)
{
    return strncmp(k->model_type, "llama4", strlen("llama4")) == 0;
}

static bool fits(uint64_t in, uint64_t out, const struct doctor_known *k, bool swapped)
{
    const uint64_t hidden = k->dims[DIM_HIDDEN], inner = k->dims[DIM_EXPERT_INNER];
    if (swapped) {
        const uint64_t other = in;
        in = out;
        out = other;
    }
    return (in == hidden && out == 2 * inner) || (in == inner && out == hidden);
}

static void blame_sizes(struct doctor *d, const struct doctor_tensor *a, uint64_t out, const struct doctor_known *k,
                        bool swapped)
{
    const uint64_t hidden = k->dims[DIM_HIDDEN], inner = k->dims[DIM_EXPERT_INNER];
    struct doctor_words w;
    doctor_say(w.found, "%" PRIu64 " inputs and %" PRIu64 " outputs%s", a->shape[1], out,
               swapped ? ": they are swapped, as PEFT before 0.19.1 wrote them" : "");
    doctor_say(w.expected,
               "%" PRIu64 " and %" PRIu64 " for gate_up_proj, or %" PRIu64 " and %" PRIu64
               " for down_proj, as the base has: loaders fail, or read it wrong",
               hidden, 2 * inner, inner, hidden);
    if (swapped)
        doctor_say(w.mend,
                   "put the writer's release into peft_version of %s, then: fsdpck merge-lora '%s' '%.400s' OUT",
                   config_file, d->base->in_quotes, d->model->in_quotes);
    else
        doctor_say(w.mend, "give the base that the adapter was trained on");
    blame(d, FSDPCK_SEVERITY_ERROR, a, &w);
}

/* Compares the sizes of fused pairs with those of the experts. Skips adapters of releases that are known to swap A and
 * B, which another check reports; sizes that fit both orders count as right. Returns true if it compared a pair. */
bool fsdpck_doctor_expert_sizes(struct doctor *d)
{
    const char *version = json_string_value(json_object_get(d->model->json[DOCTOR_ADAPTER], "peft_version"));
    struct doctor_known k;
    char name[1024];
    bool any = false;
    if (!fsdpck_doctor_known_read(d->base, &k) || !k.dims[DIM_EXPERT_INNER] || is_turned(&k) ||
        (version && fsdpck_lora_writer_swaps(version)))
        return false;
    for (size_t i = 0; i < d->model->tensors.count; i++) {
        const struct doctor_tensor *a = &doctor_tensors(d->model)[i];
        const size_t stem = strlen(a->name) - strlen(DOCTOR_LORA_A);
        if (!fsdpck_doctor_is_fused_pair(a->name) || a->ndim != 2 || stem > 900)
            continue;
        snprintf(name, sizeof name, "%.*s" DOCTOR_LORA_B, (int)stem, a->name);
        const struct doctor_tensor *b = fsdpck_doctor_find(d->model, name);
        if (!b || b->ndim != 2)
            continue;
        any = true;
        if (fits(a->shape[1], b->shape[0], &k, false))
            continue;
        blame_sizes(d, a, b->shape[0], &k, fits(a->shape[1], b->shape[0], &k, true));
        break; /* one tells the story of all */
    }
    return any;
}
