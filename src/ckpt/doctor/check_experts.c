/* SPDX-License-Identifier: Apache-2.0 */
/* Routed experts that are stored one by one: that each layer has all of them, each with every projection, in the sizes
 * that config.json states. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "doctor/checks.h"
#include "doctor/layers.h"
#include "doctor/numbers.h"
#include "doctor/parts.h"

enum { MAX_EXPERTS = 4096, MAX_PROJECTIONS = 8, MAX_CELLS = 1 << 24 };

/* The experts of all layers below one prefix. */
struct experts {
    const char *prefix;              /* "model.layers." */
    uint64_t nlayers, count;         /* count: of each layer, by config.json */
    char names[MAX_PROJECTIONS][40]; /* "mlp.experts.#.gate_proj" without its middle: "gate_proj" */
    size_t nnames;
    bool *there;        /* (nlayers, nnames max, count) */
    uint64_t *highest;  /* (nlayers) number + 1; 0: the layer has no single experts */
    const char *module; /* "mlp.experts." */
};

static const char *const modules[] = { "mlp.experts.", "block_sparse_moe.experts.", "feed_forward.experts." };

/* Splits "mlp.experts.3.up_proj.weight". *projection points at "up_proj.weight". */
static bool split_expert(const char *rest, const char **module, uint64_t *expert, const char **projection)
{
    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++)
        if (fsdpck_doctor_split(rest, modules[i], expert, projection)) {
            *module = modules[i];
            return true;
        }
    return false;
}

static bool find_projection(struct experts *x, const char *name, size_t *out)
{
    const size_t nbytes = strcspn(name, ".");
    for (*out = 0; *out < x->nnames; ++*out)
        if (strlen(x->names[*out]) == nbytes && strncmp(x->names[*out], name, nbytes) == 0)
            return true;
    if (x->nnames == MAX_PROJECTIONS || nbytes >= sizeof x->names[0])
        return false;
    snprintf(x->names[x->nnames++], sizeof x->names[0], "%.*s", (int)nbytes, name);
    return true;
}

static bool *cells_of(const struct experts *x, uint64_t layer, size_t projection)
{
    return x->there + (layer * MAX_PROJECTIONS + projection) * x->count;
}

static void see(const struct doctor_model *m, struct experts *x)
{
    const char *rest, *projection;
    uint64_t layer, expert;
    size_t p;
    for (size_t i = 0; i < m->tensors.count; i++) {
        if (!fsdpck_doctor_split(doctor_tensors(m)[i].name, x->prefix, &layer, &rest) || layer >= x->nlayers ||
            !split_expert(rest, &x->module, &expert, &projection))
            continue;
        if (expert + 1 > x->highest[layer])
            x->highest[layer] = expert + 1;
        if (expert < x->count && find_projection(x, projection, &p))
            cells_of(x, layer, p)[expert] = true;
    }
}

/* ---- what is missing ---- */

static bool lack_the_same(const struct experts *x, uint64_t layer)
{
    for (size_t p = 1; p < x->nnames; p++)
        if (memcmp(cells_of(x, layer, p), cells_of(x, layer, 0), x->count) != 0)
            return false;
    return true;
}

static void blame_missing(struct doctor *d, const struct experts *x, uint64_t layer, const bool *there,
                          const char *projection)
{
    struct doctor_words w;
    char subject[300], list[300] = "";
    const uint64_t n = fsdpck_doctor_list_missing(there, 0, x->count, list, sizeof list);
    if (n == 0)
        return;
    doctor_say(w.found, "no tensor of %" PRIu64 " expert%s: %s", n, fsdpck_plural(n), list);
    doctor_say(w.expected, "experts 0 to %" PRIu64 ", as config.json says", x->count - 1);
    fsdpck_doctor_advise_base(d, &w, "");
    snprintf(subject, sizeof subject, "%s%" PRIu64 ".%sN%s%s", x->prefix, layer, x->module, *projection ? "." : "",
             projection);
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, "", subject, &w);
}

static void blame_surplus(struct doctor *d, const struct experts *x, uint64_t layer)
{
    struct doctor_words w;
    char subject[300];
    doctor_say(w.found, "experts up to %" PRIu64, x->highest[layer] - 1);
    doctor_say(w.expected, "experts 0 to %" PRIu64 ", as config.json says", x->count - 1);
    doctor_say(w.mend, "put the right number into config.json");
    snprintf(subject, sizeof subject, "%s%" PRIu64 ".%sN", x->prefix, layer, x->module);
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, "", subject, &w);
}

static void check_layer(struct doctor *d, const struct experts *x, uint64_t layer)
{
    const bool same = lack_the_same(x, layer);
    for (size_t p = 0; p < (same ? 1 : x->nnames); p++)
        blame_missing(d, x, layer, cells_of(x, layer, p), same ? "" : x->names[p]);
    if (x->highest[layer] > x->count)
        blame_surplus(d, x, layer);
}

/* A layer that has a router and no experts in any form, where others have them. */
static void check_without(struct doctor *d, const struct experts *x, uint64_t layer)
{
    char router[200], fused[200], subject[300];
    struct doctor_words w;
    snprintf(fused, sizeof fused, "%s%" PRIu64 ".%s", x->prefix, layer, x->module);
    snprintf(router, sizeof router, "%s%" PRIu64 ".%.*sgate.weight", x->prefix, layer,
             (int)(strlen(x->module) - strlen("experts.")), x->module);
    if (!fsdpck_doctor_find(d->model, router) || fsdpck_doctor_find_part(d->model, fused))
        return;
    doctor_say(w.found, "a router, and no tensor of an expert");
    doctor_say(w.expected, "experts 0 to %" PRIu64 ", as config.json says", x->count - 1);
    fsdpck_doctor_advise_base(d, &w, "");
    snprintf(subject, sizeof subject, "%sN", fused);
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, "", subject, &w);
}

static bool check_prefix(struct doctor *d, const char *prefix, uint64_t nlayers, uint64_t count)
{
    struct experts x = { .prefix = prefix, .nlayers = nlayers, .count = count };
    bool any = false;
    if (nlayers == 0 || nlayers * MAX_PROJECTIONS * count > MAX_CELLS)
        return false;
    x.there = calloc(nlayers * MAX_PROJECTIONS * count, sizeof *x.there);
    x.highest = calloc(nlayers, sizeof *x.highest);
    if (x.there && x.highest)
        see(d->model, &x);
    else
        fsdpck_error_nomem(d->err, nlayers * MAX_PROJECTIONS * count);
    for (uint64_t l = 0; x.nnames && l < nlayers; l++) {
        any = true;
        if (x.highest[l])
            check_layer(d, &x, l);
        else
            check_without(d, &x, l);
    }
    free(x.there);
    free(x.highest);
    return any;
}

/* ---- sizes ---- */

/* True if a projection is [hidden, inner]; otherwise it is [inner, hidden]. */
static bool is_down(const char *projection)
{
    return strncmp(projection, "down_proj.", 10) == 0 || strncmp(projection, "w2.", 3) == 0;
}

static void check_sizes(struct doctor *d, const char *prefix)
{
    struct doctor_known k;
    const struct doctor_tensor *first = NULL;
    const char *rest, *projection, *module, *odd = NULL;
    uint64_t layer, expert, n = 0;
    struct doctor_words w;
    if (!fsdpck_doctor_known_read(d->model, &k) || !k.dims[DIM_EXPERT_INNER])
        return;
    const uint64_t inner = k.dims[DIM_EXPERT_INNER], hidden = k.dims[DIM_HIDDEN];
    for (size_t i = 0; i < d->model->tensors.count; i++) {
        const struct doctor_tensor *t = &doctor_tensors(d->model)[i];
        if (!doctor_has_own_shape(t) || t->ndim != 2 || !fsdpck_doctor_split(t->name, prefix, &layer, &rest) ||
            !split_expert(rest, &module, &expert, &projection) || !strstr(projection, ".weight") ||
            strchr(projection, '.')[7] != '\0')
            continue;
        const bool down = is_down(projection);
        if ((t->shape[0] != (down ? hidden : inner) || t->shape[1] != (down ? inner : hidden)) && n++ == 0) {
            first = t;
            odd = projection;
        }
    }
    if (!n)
        return;
    fsdpck_doctor_say_shape(first, w.found, 200);
    const size_t used = strlen(w.found);
    snprintf(w.found + used, sizeof w.found - used,
             "; %" PRIu64 " tensor%s of experts in other sizes than config.json's", n, fsdpck_plural(n));
    doctor_say(w.expected, "%" PRIu64 " x %" PRIu64 ", from hidden_size, %s of config.json",
               is_down(odd) ? hidden : inner, is_down(odd) ? inner : hidden, k.expert_inner);
    doctor_say(w.mend, "take config.json and the weights from the same model");
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, doctor_files(d->model)[first->file].name, first->name, &w);
}

bool fsdpck_doctor_experts(struct doctor *d)
{
    const char *prefix = fsdpck_doctor_layer_prefix(d->model);
    const uint64_t count = fsdpck_doctor_experts_count(d->model);
    uint64_t nlayers, nmtp = 0;
    char mtp[100], layers[120];
    if (!count || count > MAX_EXPERTS || !prefix || !fsdpck_doctor_count(d->model, "num_hidden_layers", &nlayers) ||
        nlayers > DOCTOR_MAX_LAYERS || fsdpck_doctor_wrapped(d->model))
        return false;
    fsdpck_doctor_count(d->model, "num_nextn_predict_layers", &nmtp);
    bool any = check_prefix(d, prefix, nmtp < DOCTOR_MAX_LAYERS ? nlayers + nmtp : nlayers, count);
    if (fsdpck_doctor_mtp_prefix(d->model, mtp, sizeof mtp, &nmtp) && nmtp <= DOCTOR_MAX_LAYERS) {
        snprintf(layers, sizeof layers, "%slayers.", mtp);
        any = check_prefix(d, layers, nmtp, count) || any;
        check_sizes(d, layers);
    }
    check_sizes(d, prefix);
    return any;
}
