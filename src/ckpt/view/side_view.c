/* SPDX-License-Identifier: Apache-2.0 */
/* Renames, joins and cuts by the table of a side. */
#include "view/side_view.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "hf/weight_names.h"
#include "view/side_parts.h"

/* ---- names ---- */

bool fsdpck_source_is_side(const struct fsdpck_source *src, const struct fsdpck_side *side)
{
    char name[FSDPCK_SIDE_NAME_NBYTES];
    for (size_t i = 0; i < src->tensors.count; i++) {
        fsdpck_text_rename(&side->text, &fsdpck_text_alone, fsdpck_weight_name(&source_tensors(src)[i]), name,
                           sizeof name);
        if (fsdpck_side_is_name(side, name))
            return true;
    }
    return false;
}

static bool has_text(const struct fsdpck_source *src, const struct fsdpck_text_names *names)
{
    for (size_t i = 0; i < src->tensors.count; i++)
        if (fsdpck_text_has(names, fsdpck_weight_name(&source_tensors(src)[i])))
            return true;
    return false;
}

static int count(const char *const *names)
{
    int n = 0;
    while (n < FSDPCK_SIDE_MAX_PARTS && names[n])
        n++;
    return n;
}

static void look_at(const struct fsdpck_side_mover *m, const struct fsdpck_tensor *t, struct fsdpck_side_found *f)
{
    f->t = t;
    fsdpck_text_rename(m->has, &fsdpck_text_alone, fsdpck_weight_name(t), f->name, sizeof f->name);
}

/* Layers beyond those of config.json, for multi-token prediction, keep their names. */
static bool find(const struct fsdpck_side_mover *m, struct fsdpck_side_found *f, bool held)
{
    return fsdpck_side_find(m->side, m->model, f->name, held, &f->match) &&
           (f->match.layer.ndigits == 0 || f->match.layer.value < m->model->nlayers) &&
           (!f->match.scale || m->model->block[0] > 0);
}

/* ---- what a source must have ---- */

static bool is_in_layer(const struct fsdpck_side_mover *m, const char *name)
{
    uint64_t layer;
    return (!m->to && strncmp(name, "layers.", 7) == 0) ||
           (fsdpck_weight_in_layer(name, &layer) && layer < m->model->nlayers);
}

static int refuse_both(const struct fsdpck_side_mover *m, const char *by_side, const char *held)
{
    fsdpck_error_set(m->err, FSDPCK_ERR_UNSUPPORTED, m->src->path,
                     "has a name that %s gives, and '%.200s' has none: is this model as %s has it, or as it is "
                     "published?",
                     m->side->program, held, m->side->program);
    return fsdpck_side_refuse(m, FSDPCK_ERR_UNSUPPORTED, by_side);
}

static bool is_renamed(const struct fsdpck_side_row *row)
{
    return !row->held[0] || !row->other[0] || strcmp(row->held[0], row->other[0]) != 0;
}

static int check_tensor(const struct fsdpck_side_mover *m, const struct fsdpck_tensor *t, const char **by_side,
                        const char **held)
{
    struct fsdpck_side_found f;
    look_at(m, t, &f);
    const bool of_side = fsdpck_side_is_name(m->side, f.name);
    const bool of_held = !of_side && find(m, &f, true) && f.match.layer.ndigits > 0 && is_renamed(f.match.row);
    *by_side = of_side ? t->name : *by_side;
    *held = of_held ? t->name : *held;
    if (*by_side && *held)
        return refuse_both(m, *by_side, *held);
    if (find(m, &f, true) || find(m, &f, false) || !is_in_layer(m, f.name) ||
        !(m->side->whole || fsdpck_side_is_beside(m->side, m->model, f.name)))
        return 0;
    fsdpck_error_set(m->err, FSDPCK_ERR_UNSUPPORTED, m->src->path, "--names does not know what %s makes of it in a %s",
                     m->side->program, m->model->model_type);
    fsdpck_error_hint(m->err,
                      m->side->whole && !m->to
                          ? "releases of %s differ in names: its own scripts convert those of its release"
                          : "quantized weights need --dequantize bf16 too",
                      m->side->program);
    return fsdpck_side_refuse(m, FSDPCK_ERR_UNSUPPORTED, t->name);
}

static int check_source(const struct fsdpck_side_mover *m)
{
    const char *by_side = NULL, *held = NULL;
    int rc = 0;
    for (size_t i = 0; i < m->src->tensors.count && !rc; i++)
        if (!fsdpck_weight_is_state(&source_tensors(m->src)[i]))
            rc = check_tensor(m, &source_tensors(m->src)[i], &by_side, &held);
    return rc;
}

/* ---- all tensors ---- */

static int pass(const struct fsdpck_side_mover *m, const struct fsdpck_side_found *f, size_t ordinal, bool known)
{
    char name[FSDPCK_SIDE_NAME_NBYTES];
    if (known)
        fsdpck_side_fill(m, f, fsdpck_side_to(m, f->match.row)[0], name);
    else if (m->has == m->gets || strlen(f->t->name) > FSDPCK_SIDE_NAME_NBYTES / 2) /* the other name may be longer */
        return fsdpck_layout_pass(m->layout, ordinal, fsdpck_weight_name(f->t), m->err);
    else
        fsdpck_text_rename(m->has, m->gets, fsdpck_weight_name(f->t), name, sizeof name);
    return fsdpck_layout_pass(m->layout, ordinal, name, m->err);
}

static int add_tensor(struct fsdpck_side_mover *m, size_t ordinal)
{
    struct fsdpck_side_found f;
    look_at(m, &source_tensors(m->inner)[ordinal], &f);
    const bool known = !fsdpck_weight_is_state(f.t) && find(m, &f, m->to);
    if (fsdpck_weight_is_state(f.t) || (known && !fsdpck_side_to(m, f.match.row)[0])) {
        m->nleft++;
        return 0;
    }
    const int nfrom = known ? count(fsdpck_side_from(m, f.match.row)) : 0,
              nto = known ? count(fsdpck_side_to(m, f.match.row)) : 0;
    const bool turned = known && f.match.row->turned;
    if (!known || (nfrom == 1 && nto == 1 && !turned))
        return pass(m, &f, ordinal, known);
    if (f.t->ndim < 1 || f.t->ndim > FSDPCK_SIDE_MAX_NDIM || (turned && f.t->ndim < FSDPCK_SIDE_MAX_NDIM)) {
        fsdpck_error_set(m->err, FSDPCK_ERR_FORMAT, m->src->path, "has %u dimensions; wanted %s%d", f.t->ndim,
                         turned ? "" : "1 to ", FSDPCK_SIDE_MAX_NDIM);
        return fsdpck_side_refuse(m, FSDPCK_ERR_FORMAT, f.t->name);
    }
    f.dim = f.t->ndim >= 2 ? f.t->ndim - 2 : 0;
    if (m->to)
        f.dim = fsdpck_side_turn(&f, f.dim);
    return nfrom > 1 ? fsdpck_side_join(m, &f, nfrom) : fsdpck_side_cut(m, &f, nto);
}

static void note(const struct fsdpck_side_mover *m)
{
    char line[256];
    snprintf(line, sizeof line, "%s: the weights are named and laid out as %s has them, and are taken as %s has them",
             m->model->model_type, m->to ? "transformers" : m->side->program,
             m->to ? m->side->program : "transformers");
    if (m->src->opt.note)
        m->src->opt.note(m->src->opt.ctx, line);
}

/* A text part that is a model of its own, beside a config.json of the whole model, keeps its names. torchtitan's names
 * do not tell the two apart: config.json does. */
static void choose_text(struct fsdpck_side_mover *m)
{
    const struct fsdpck_text_names *published = fsdpck_moe_text(m->model), *by_side = &m->side->text;
    const bool with_images = m->model->with_images && (m->to            ? has_text(m->src, published)
                                                       : m->side->whole ? true
                                                                        : has_text(m->src, by_side));
    if (!with_images)
        published = by_side = &fsdpck_text_alone;
    m->has = m->to ? published : by_side;
    m->gets = m->to ? by_side : published;
}

int fsdpck_source_set_side(struct fsdpck_source *src, const struct fsdpck_side *side, bool to,
                           const struct fsdpck_moe *model, const char *config, struct fsdpck_error *err)
{
    struct fsdpck_side_mover m = { .src = src, .side = side, .model = model, .to = to, .err = err };
    const size_t ntensors = src->tensors.count, nitems = src->items.count;
    int rc = fsdpck_side_check_family(side, model->model_type, config, err);
    if (!rc && !model->nlayers)
        rc = fsdpck_error_set(err, FSDPCK_ERR_FORMAT, config, "lacks num_hidden_layers, which --names needs");
    choose_text(&m);
    if (!rc)
        rc = check_source(&m);
    if (rc || fsdpck_source_is_side(src, side) == to)
        return rc;
    note(&m);
    rc = fsdpck_layout_begin(src, &m.layout, err);
    if (rc)
        return rc;
    m.inner = fsdpck_layout_inner(m.layout);
    for (size_t i = 0; i < ntensors && !rc; i++)
        rc = add_tensor(&m, i);
    src->items.count = 0;
    if (!rc)
        fsdpck_weight_note_left_out(src, m.nleft, nitems);
    return rc;
}
