/* SPDX-License-Identifier: Apache-2.0 */
/* Experts that are fused, one tensor for all of a layer: their number, their orientation, and whether the family is
 * published so. */
#include <inttypes.h>
#include <string.h>

#include "base/ioutil.h"
#include "base/suffix.h"
#include "doctor/checks.h"
#include "doctor/layers.h"
#include "doctor/parts.h"

/* ---- fused experts ---- */

/* Families that are published with their experts fused, and whether [experts, in, out]. */
static const struct {
    const char *model_type;
    bool transposed;
    enum fsdpck_severity severity; /* of the other orientation */
} fused_families[] = {
    { "qwen3_5_moe", false, FSDPCK_SEVERITY_ERROR },
    { "qwen3_5_moe_text", false, FSDPCK_SEVERITY_ERROR },
    { "gpt_oss", true, FSDPCK_SEVERITY_ERROR },
    { "llama4", true, FSDPCK_SEVERITY_ERROR },
    { "llama4_text", true, FSDPCK_SEVERITY_ERROR },
    { "qwen3_vl_moe", true, FSDPCK_SEVERITY_WARNING },
    { "qwen3_vl_moe_text", true, FSDPCK_SEVERITY_WARNING },
};

/* A fused tensor, by what its name ends with. Codes of MXFP4 have another shape, and are only looked for. */
enum fused { NOT_FUSED, GATE_UP, DOWN };

static enum fused kind_of(const char *name, bool *codes)
{
    static const struct {
        const char *suffix;
        enum fused kind;
        bool codes;
    } suffixes[] = {
        { ".experts.gate_up_proj", GATE_UP, false },       { ".experts.down_proj", DOWN, false },
        { ".experts.gate_up_proj_blocks", GATE_UP, true }, { ".experts.down_proj_blocks", DOWN, true },
        { ".experts.gate_up_proj.weight", GATE_UP, true }, { ".experts.down_proj.weight", DOWN, true },
    };
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        if (ends_with(name, suffixes[i].suffix)) {
            *codes = suffixes[i].codes;
            return suffixes[i].kind;
        }
    return NOT_FUSED;
}

static void blame_fused(struct doctor *d, enum fsdpck_severity severity, const struct doctor_tensor *t,
                        const struct doctor_words *w)
{
    fsdpck_doctor_report(d, severity, doctor_files(d->model)[t->file].name, t->name, w);
}

/* ---- mixed, halved ---- */

/* Returns the bytes of the name up to "experts.", with it. */
static size_t stem_nbytes(const struct doctor_tensor *t)
{
    return (size_t)(strstr(t->name, ".experts.") - t->name) + strlen(".experts.");
}

/* A layer whose experts are stored one by one too: a loader uses one of the two. Returns the other kind's first. */
static const struct doctor_tensor *find_single(const struct doctor_model *m, const struct doctor_tensor *fused)
{
    const size_t n = stem_nbytes(fused);
    for (size_t i = 0; i < m->tensors.count; i++) {
        const char *name = doctor_tensors(m)[i].name;
        if (strncmp(name, fused->name, n) == 0 && name[n] >= '0' && name[n] <= '9')
            return &doctor_tensors(m)[i];
    }
    return NULL;
}

static void blame_mixed(struct doctor *d, const struct doctor_tensor *t)
{
    struct doctor_words w;
    doctor_say(w.found, "this layer's experts fused, and one by one too");
    doctor_say(w.expected, "one of the two: a loader uses one, and does not say which");
    doctor_say(w.mend,
               "if the single ones were trained, leave out '*.experts.gate_up_proj,*.experts.down_proj'; else: fsdpck "
               "export '%.600s' OUT --exclude '*.experts.[0-9]*'",
               d->model->in_quotes);
    blame_fused(d, FSDPCK_SEVERITY_ERROR, t, &w);
}

static bool has_other_half(const struct doctor_model *m, const struct doctor_tensor *t, enum fused kind)
{
    const size_t n = stem_nbytes(t);
    bool codes;
    for (size_t i = 0; i < m->tensors.count; i++) {
        const char *name = doctor_tensors(m)[i].name;
        if (strncmp(name, t->name, n) == 0 && kind_of(name, &codes) == (kind == DOWN ? GATE_UP : DOWN))
            return true;
    }
    return false;
}

static void blame_half(struct doctor *d, const struct doctor_tensor *t, enum fused kind)
{
    struct doctor_words w;
    char subject[400];
    doctor_say(w.found, "no such tensor beside '%.300s'", t->name);
    doctor_say(w.expected, "gate_up_proj and down_proj in every layer with fused experts");
    fsdpck_doctor_advise_base(d, &w, "");
    snprintf(subject, sizeof subject, "%.*s%s", (int)stem_nbytes(t), t->name,
             kind == DOWN ? "gate_up_proj" : "down_proj");
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, "", subject, &w);
}

/* ---- shapes ---- */

struct sizes {
    uint64_t count, hidden, inner; /* 0: config.json does not say */
    const char *type;
};

/* Gets the sizes of a layer's experts with outputs before inputs. */
static void wanted_shape(const struct sizes *s, enum fused kind, uint64_t out[2])
{
    out[0] = kind == GATE_UP ? 2 * s->inner : s->hidden;
    out[1] = kind == GATE_UP ? s->hidden : s->inner;
}

static void blame_orientation(struct doctor *d, const struct sizes *s, const struct doctor_tensor *t,
                              enum fsdpck_severity severity)
{
    struct doctor_words w;
    fsdpck_doctor_say_shape(t, w.found, sizeof w.found);
    doctor_say(w.expected,
               "%" PRIu64 " x %" PRIu64 " x %" PRIu64 ", as a %s is published: loaders such as vLLM's do not look at "
               "the shape",
               t->shape[0], t->shape[2], t->shape[1], s->type);
    doctor_say(w.mend, "transpose the last two dimensions of every experts.gate_up_proj and experts.down_proj");
    blame_fused(d, severity, t, &w);
}

static void blame_size(struct doctor *d, const struct doctor_tensor *t, const uint64_t shape[2])
{
    struct doctor_words w;
    fsdpck_doctor_say_shape(t, w.found, sizeof w.found);
    doctor_say(w.expected,
               "matrices of %" PRIu64 " x %" PRIu64 ", from hidden_size and the experts' size of config.json", shape[0],
               shape[1]);
    doctor_say(w.mend, "take config.json and the weights from the same model");
    blame_fused(d, FSDPCK_SEVERITY_ERROR, t, &w);
}

/* Returns whether the shape is right, or nothing tells. */
static bool check_shape(struct doctor *d, const struct sizes *s, const struct doctor_tensor *t, enum fused kind)
{
    struct doctor_words w;
    uint64_t turned[2];
    if (s->count && t->shape[0] != s->count) {
        doctor_say(w.found, "%" PRIu64 " experts", t->shape[0]);
        doctor_say(w.expected, "%" PRIu64 ", as config.json says", s->count);
        doctor_say(w.mend, "take config.json and the weights from the same model");
        blame_fused(d, FSDPCK_SEVERITY_ERROR, t, &w);
        return false;
    }
    for (size_t i = 0; s->type && i < sizeof fused_families / sizeof *fused_families; i++) {
        if (strcmp(s->type, fused_families[i].model_type) != 0 || !s->hidden)
            continue;
        const bool in_first = fused_families[i].transposed;
        const uint32_t at = (kind == GATE_UP) == in_first ? 1 : 2, other = 3 - at; /* dimensions of hidden_size */
        wanted_shape(s, kind, turned);
        if (t->shape[at] != s->hidden && t->shape[other] == s->hidden)
            blame_orientation(d, s, t, fused_families[i].severity);
        else if (s->inner && (t->shape[1] != turned[in_first] || t->shape[2] != turned[!in_first]))
            blame_size(d, t, (const uint64_t[2]){ turned[in_first], turned[!in_first] });
        else
            return true;
        return false;
    }
    return true;
}

/* ---- the family's form ---- */

static bool is_published_fused(const char *type)
{
    for (size_t i = 0; type && i < sizeof fused_families / sizeof *fused_families; i++)
        if (strcmp(type, fused_families[i].model_type) == 0)
            return true;
    return false;
}

/* vLLM and others look for the names of the published form alone. */
static void blame_form(struct doctor *d, const struct doctor_tensor *t, const char *type, bool fused)
{
    struct doctor_words w;
    doctor_say(w.found, "experts %s", fused ? "fused, as transformers holds them" : "one by one");
    doctor_say(w.expected, "them %s, as a %s is published: other loaders look for these names alone",
               fused ? "one by one" : "fused", type);
    doctor_say(w.mend, "fsdpck export '%s' OUT --names hf", d->model->in_quotes);
    blame_fused(d, FSDPCK_SEVERITY_WARNING, t, &w);
}

static const struct doctor_tensor *find_any_single(const struct doctor_model *m)
{
    const char *prefix = fsdpck_doctor_layer_prefix(m), *rest, *projection;
    uint64_t layer, expert;
    for (size_t i = 0; prefix && i < m->tensors.count; i++)
        if (fsdpck_doctor_split(doctor_tensors(m)[i].name, prefix, &layer, &rest) &&
            fsdpck_doctor_split(rest, "mlp.experts.", &expert, &projection))
            return &doctor_tensors(m)[i];
    return NULL;
}

/* Of families whose form is known: gpt-oss and Llama-4 have no other that a program would read. */
static bool check_form(struct doctor *d, const struct doctor_tensor *fused, const char *type)
{
    struct doctor_known known;
    const struct doctor_tensor *single = fused ? NULL : find_any_single(d->model);
    if (!type || !fsdpck_doctor_known_read(d->model, &known))
        return false;
    if (fused && !is_published_fused(type))
        blame_form(d, fused, type, true);
    else if (single && is_published_fused(type) && d->model->json[DOCTOR_CONFIG] &&
             !fsdpck_doctor_key(d->model, "quantization_config"))
        blame_form(d, single, type, false);
    return true;
}

/* ---- the whole ---- */

static void read_sizes(const struct doctor_model *m, struct sizes *s)
{
    struct doctor_known known;
    *s = (struct sizes){ .count = fsdpck_doctor_experts_count(m),
                         .type = json_string_value(json_object_get(m->json[DOCTOR_CONFIG], "model_type")) };
    fsdpck_doctor_count(m, "hidden_size", &s->hidden);
    if (fsdpck_doctor_known_read(m, &known))
        s->inner = known.dims[DIM_EXPERT_INNER];
}

/* The first of each defect tells the story of all layers. */
bool fsdpck_doctor_fused_experts(struct doctor *d)
{
    const struct doctor_tensor *first = NULL;
    bool shaped = true, whole = !fsdpck_doctor_is_fragment(d->model), mixed = false, codes;
    const char *prefix = fsdpck_doctor_layer_prefix(d->model), *rest;
    uint64_t layer;
    bool any = false;
    struct sizes s;
    read_sizes(d->model, &s);
    for (size_t i = 0; i < d->model->tensors.count; i++) {
        const struct doctor_tensor *t = &doctor_tensors(d->model)[i];
        const enum fused kind = kind_of(t->name, &codes);
        if (kind == NOT_FUSED || (!codes && t->ndim != 3))
            continue;
        any = true;
        if (!first && prefix && fsdpck_doctor_split(t->name, prefix, &layer, &rest))
            first = t;
        if (!mixed && (mixed = find_single(d->model, t) != NULL))
            blame_mixed(d, t);
        if (whole && !mixed && !(whole = has_other_half(d->model, t, kind)))
            blame_half(d, t, kind);
        if (shaped && !mixed && !codes && t->nbytes)
            shaped = check_shape(d, &s, t, kind);
    }
    const bool known = !mixed && check_form(d, first, s.type);
    return any || known;
}
