/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a known family that are missing, and those whose shapes contradict config.json. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "doctor/checks.h"
#include "doctor/layers.h"
#include "doctor/numbers.h"
#include "doctor/parts.h"

/* Tensors below one prefix: layers, or the model. */
struct room {
    const char *prefix;  /* "model.layers." */
    uint64_t first, end; /* layers; end 0: the prefix is that of no layers */
    unsigned kind;       /* of every layer here: LAYER_MTP, or 0 */
    const struct doctor_part *table;
    bool shapes; /* look at shapes; else at what is missing */
};

/* What is seen of each layer. */
struct seen {
    unsigned *kinds; /* (nlayers) */
    uint64_t *found; /* (nlayers) a bit for each row of the table */
    uint64_t nlayers;
};

/* A row whose tensors have another shape than the table's. */
struct odd {
    const struct doctor_tensor *first;
    uint64_t ntensors;
};

/* Leaves of quantized modules are parts as well, and biases are rows of their own. */
static bool is_part(const char *name, const char *part, bool *weight)
{
    const size_t n = strlen(part);
    if (strncmp(name, part, n) != 0)
        return false;
    *weight = name[n] == '\0' || strcmp(name + n, ".weight") == 0;
    return *weight || (name[n] == '.' && !strchr(name + n + 1, '.') && strcmp(name + n, ".bias") != 0 &&
                       strcmp(name + n, ".e_score_correction_bias") != 0);
}

static bool is_odd(const struct doctor_known *k, const struct doctor_part *p, const struct doctor_tensor *t)
{
    const uint64_t rows = k->dims[p->rows], cols = k->dims[p->cols];
    const uint32_t ndim = p->cols == DIM_NONE ? 1 : 2;
    if (p->rows == DIM_NONE || !rows || (p->cols != DIM_NONE && !cols) || !doctor_has_own_shape(t))
        return false;
    return t->ndim != ndim || t->shape[0] != rows || (ndim == 2 && t->shape[1] != cols);
}

/* What differs from a base that was given is said by the checks that compare. */
static bool is_compared(const struct doctor *d, const char *name)
{
    return d->base && fsdpck_doctor_find(d->base, name);
}

static void blame_shape(struct doctor *d, const struct doctor_known *k, const struct doctor_part *p,
                        const struct odd *odd)
{
    const struct doctor_tensor *t = odd->first, *base = d->base ? fsdpck_doctor_find(d->base, t->name) : NULL;
    const char *rows = fsdpck_doctor_dim_keys(k, p->rows), *cols = fsdpck_doctor_dim_keys(k, p->cols);
    struct doctor_words w;
    if (base && !is_odd(k, p, base))
        return;
    fsdpck_doctor_say_shape(t, w.found, sizeof w.found);
    size_t used = strlen(w.found);
    if (odd->ntensors > 1)
        snprintf(w.found + used, sizeof w.found - used, ", and %" PRIu64 " such tensor%s of other layers as odd",
                 odd->ntensors - 1, fsdpck_plural(odd->ntensors - 1));
    if (p->cols == DIM_NONE)
        doctor_say(w.expected, "%" PRIu64, k->dims[p->rows]);
    else
        doctor_say(w.expected, "%" PRIu64 " x %" PRIu64, k->dims[p->rows], k->dims[p->cols]);
    used = strlen(w.expected);
    snprintf(w.expected + used, sizeof w.expected - used, ", from %s%s%s of config.json", rows ? rows : "",
             rows && cols ? ", " : "", cols ? cols : "");
    doctor_say(w.mend, "take config.json and the weights from the same model");
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, doctor_files(d->model)[t->file].name, t->name, &w);
}

/* ---- what is there ---- */

static bool find_place(const struct room *r, const struct doctor_tensor *t, uint64_t *layer, const char **rest)
{
    const size_t n = strlen(r->prefix);
    if (r->end)
        return fsdpck_doctor_split(t->name, r->prefix, layer, rest) && *layer >= r->first && *layer < r->end;
    *layer = r->first;
    *rest = t->name + n;
    return strncmp(t->name, r->prefix, n) == 0;
}

static bool holds(const struct doctor_known *k, const struct doctor_part *p, unsigned kind)
{
    return (p->when & ~(k->traits | kind)) == 0;
}

static void see_kinds(const struct doctor_model *m, const struct room *r, struct seen *s)
{
    const char *rest;
    uint64_t layer;
    for (size_t i = 0; i < m->tensors.count; i++)
        if (find_place(r, &doctor_tensors(m)[i], &layer, &rest)) {
            if (s->kinds[layer - r->first] == 0)
                s->kinds[layer - r->first] = r->kind;
            s->kinds[layer - r->first] |= fsdpck_doctor_layer_kind(rest) | 1u << 31; /* the layer is there */
        }
}

static void see_parts(struct doctor *d, const struct doctor_known *k, const struct room *r, struct seen *s)
{
    struct odd odd[DOCTOR_MAX_PARTS] = { 0 };
    const char *rest;
    uint64_t layer;
    bool weight;
    for (size_t i = 0; i < d->model->tensors.count; i++) {
        const struct doctor_tensor *t = &doctor_tensors(d->model)[i];
        if (!find_place(r, t, &layer, &rest))
            continue;
        for (size_t p = 0; r->table[p].name; p++) {
            if (!is_part(rest, r->table[p].name, &weight) || !holds(k, &r->table[p], s->kinds[layer - r->first]))
                continue;
            s->found[layer - r->first] |= UINT64_C(1) << p;
            if (weight && is_odd(k, &r->table[p], t) && odd[p].ntensors++ == 0)
                odd[p].first = t;
        }
    }
    for (size_t p = 0; r->table[p].name; p++)
        if (odd[p].ntensors && r->shapes)
            blame_shape(d, k, &r->table[p], &odd[p]);
}

/* ---- what is missing ---- */

static bool is_tensor(const char *part)
{
    static const char *const leaves[] = { ".bias", "_bias", ".sinks", ".A_log" };
    for (size_t i = 0; i < sizeof leaves / sizeof *leaves; i++)
        if (strlen(part) > strlen(leaves[i]) && strcmp(part + strlen(part) - strlen(leaves[i]), leaves[i]) == 0)
            return true;
    return false;
}

static void blame_missing(struct doctor *d, const struct doctor_known *k, const struct room *r, const char *part,
                          const char *suffix, const bool *there, uint64_t nlayers)
{
    struct doctor_words w;
    char subject[400], list[300] = "";
    uint64_t first = 0;
    const uint64_t n = fsdpck_doctor_list_missing(there, r->first, nlayers, list, sizeof list);
    while (n && there[first])
        first++;
    if (n == 0)
        return;
    if (!r->end)
        snprintf(subject, sizeof subject, "%s%s%s", r->prefix, part, suffix);
    else
        snprintf(subject, sizeof subject, "%s%" PRIu64 ".%s%s", r->prefix, r->first + first, part, suffix);
    if (is_compared(d, subject))
        return;
    if (n > 1)
        doctor_say(w.found, "no such tensor in %" PRIu64 " layers: %s", n, list);
    else
        doctor_say(w.found, "no such tensor");
    doctor_say(w.expected, "one%s, as a %s has it", n > 1 ? " in each of them" : "", k->model_type);
    fsdpck_doctor_advise_base(d, &w, "");
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, "", subject, &w);
}

/* A layer must have attention of one kind, and an MLP or experts. */
static void find_missing_kinds(struct doctor *d, const struct doctor_known *k, const struct room *r,
                               const struct seen *s, bool *there)
{
    static const struct {
        unsigned any;
        const char *name;
    } wanted[] = { { LAYER_ATTENTION | LAYER_LINEAR, "self_attn.…" }, { LAYER_DENSE | LAYER_EXPERTS, "mlp.…" } };
    for (size_t i = 0; i < 2; i++) {
        for (uint64_t l = 0; l < s->nlayers; l++)
            there[l] = !s->kinds[l] || s->kinds[l] & wanted[i].any;
        blame_missing(d, k, r, wanted[i].name, "", there, s->nlayers);
    }
}

static void find_missing(struct doctor *d, const struct doctor_known *k, const struct room *r, const struct seen *s,
                         bool *there)
{
    for (size_t p = 0; r->table[p].name; p++) {
        for (uint64_t l = 0; l < s->nlayers; l++)
            there[l] = (r->end && !s->kinds[l]) || s->found[l] >> p & 1 || !holds(k, &r->table[p], s->kinds[l]);
        blame_missing(d, k, r, r->table[p].name, is_tensor(r->table[p].name) ? "" : ".weight", there, s->nlayers);
    }
    if (r->end)
        find_missing_kinds(d, k, r, s, there);
}

static void check_room(struct doctor *d, const struct doctor_known *k, const struct room *r)
{
    struct seen s = { .nlayers = r->end ? r->end - r->first : 1 };
    bool *there = calloc(s.nlayers, sizeof *there);
    s.kinds = calloc(s.nlayers, sizeof *s.kinds);
    s.found = calloc(s.nlayers, sizeof *s.found);
    if (there && s.kinds && s.found) {
        see_kinds(d->model, r, &s);
        see_parts(d, k, r, &s);
        if (!r->shapes)
            find_missing(d, k, r, &s, there);
    } else {
        fsdpck_error_nomem(d->err, s.nlayers * sizeof *s.found);
    }
    free(there);
    free(s.kinds);
    free(s.found);
}

/* ---- the whole ---- */

/* Layers that vLLM joined, and wrappers in names, which have a check of their own. */
static bool has_other_names(const struct doctor_model *m)
{
    return fsdpck_doctor_find_part(m, "qkv_proj") || fsdpck_doctor_find_part(m, "gate_up_proj.weight") ||
           fsdpck_doctor_find_part(m, "w13_weight") || fsdpck_doctor_wrapped(m);
}

static void check_head(struct doctor *d, const struct doctor_known *k)
{
    static const struct doctor_part head = { "lm_head", 0, DIM_VOCABULARY, DIM_HIDDEN };
    static const char *const names[] = { "lm_head.weight", "language_model.lm_head.weight" };
    for (size_t i = 0; i < 2; i++) {
        struct odd odd = { fsdpck_doctor_find(d->model, names[i]), 1 };
        if (odd.first && is_odd(k, &head, odd.first))
            blame_shape(d, k, &head, &odd);
    }
}

/* Visits the model, its layers, and those for multi-token prediction, behind the others or beside the model. */
static bool check_rooms(struct doctor *d, bool shapes)
{
    const char *prefix = fsdpck_doctor_layer_prefix(d->model);
    const struct doctor_part *in_layer = fsdpck_doctor_layer_parts_table;
    char model[100], mtp[100], layers[120];
    struct doctor_known k;
    uint64_t n, nmtp = 0;
    if (!prefix || !fsdpck_doctor_known_read(d->model, &k) || has_other_names(d->model) ||
        fsdpck_doctor_is_fragment(d->model) || !fsdpck_doctor_count(d->model, "num_hidden_layers", &n) ||
        n > DOCTOR_MAX_LAYERS)
        return false;
    snprintf(model, sizeof model, "%.*s", (int)(strlen(prefix) - strlen("layers.")), prefix);
    check_room(d, &k, &(struct room){ .prefix = model, .table = fsdpck_doctor_model_parts, .shapes = shapes });
    if (shapes)
        check_head(d, &k);
    check_room(d, &k, &(struct room){ .prefix = prefix, .end = n, .table = in_layer, .shapes = shapes });
    if (fsdpck_doctor_count(d->model, "num_nextn_predict_layers", &nmtp) && nmtp <= DOCTOR_MAX_LAYERS)
        check_room(d, &k, &(struct room){ prefix, n, n + nmtp, LAYER_MTP, in_layer, shapes });
    if (fsdpck_doctor_mtp_prefix(d->model, mtp, sizeof mtp, &nmtp) && nmtp && nmtp <= DOCTOR_MAX_LAYERS) {
        snprintf(layers, sizeof layers, "%slayers.", mtp);
        check_room(d, &k, &(struct room){ .prefix = mtp, .table = fsdpck_doctor_mtp_parts, .shapes = shapes });
        check_room(d, &k, &(struct room){ .prefix = layers, .end = nmtp, .table = in_layer, .shapes = shapes });
    }
    return true;
}

bool fsdpck_doctor_layer_parts(struct doctor *d)
{
    return check_rooms(d, false);
}

bool fsdpck_doctor_shapes(struct doctor *d)
{
    return check_rooms(d, true);
}
