/* SPDX-License-Identifier: Apache-2.0 */
/* See side_table.h. */
#include "view/side_table.h"

#include <stdio.h>
#include <string.h>

#include "hf/config.h"

/* ---- families ---- */

bool fsdpck_side_has_family(const struct fsdpck_side *side, const char *model_type)
{
    for (const char *const *f = side->families; *f; f++)
        if (strcmp(*f, model_type) == 0)
            return true;
    return false;
}

int fsdpck_side_check_family(const struct fsdpck_side *side, const char *model_type, const char *config,
                             struct fsdpck_error *err)
{
    char none[100];
    size_t n = 0;
    if (fsdpck_side_has_family(side, model_type))
        return 0;
    while (side->families[n])
        n++;
    snprintf(none, sizeof none, "none whose weights --names knows as %s holds them", side->program);
    return fsdpck_config_refuse_family(config, model_type, none, side->families, n, sizeof *side->families, err);
}

/* ---- names ---- */

static bool is_for(const struct fsdpck_side_row *row, const struct fsdpck_moe *model)
{
    const bool known = !model || !row->only || strncmp(model->model_type, row->only, strlen(row->only)) == 0;
    return known && !(model && model->whole_q && row->rows == FSDPCK_ROWS_Q_KV_A);
}

/* Scales of blocks are renamed, joined and cut as their weights, but where rows or dimensions of those change places.
 */
static bool matches(const struct fsdpck_side *side, const struct fsdpck_side_row *row, const char *pattern,
                    const char *name, struct fsdpck_side_match *out)
{
    const char *rest = fsdpck_name_after(pattern, name, &out->layer);
    const bool scales = side->scales && !row->rotated && !row->turned;
    out->row = row;
    out->scale = rest && scales && strcmp(rest, FSDPCK_SCALE_SUFFIX) == 0;
    return rest && (!*rest || out->scale);
}

bool fsdpck_side_find(const struct fsdpck_side *side, const struct fsdpck_moe *model, const char *name, bool held,
                      struct fsdpck_side_match *out)
{
    for (size_t i = 0; i < side->nrows; i++) {
        const struct fsdpck_side_row *row = &side->rows[i];
        const char *const *names = held ? row->held : row->other;
        if (!is_for(row, model) || (held && row->old))
            continue;
        for (int p = 0; p < FSDPCK_SIDE_MAX_PARTS && names[p]; p++)
            if (matches(side, row, names[p], name, out))
                return true;
    }
    return false;
}

bool fsdpck_side_is_name(const struct fsdpck_side *side, const char *name)
{
    struct fsdpck_side_match m;
    return fsdpck_side_find(side, NULL, name, false, &m) && m.layer.ndigits > 0 && !m.row->published;
}

static bool is_in_module(const char *pattern, const char *name)
{
    struct fsdpck_layer_number layer;
    char module[128];
    snprintf(module, sizeof module, "%.*s", (int)(strrchr(pattern, '.') - pattern + 1), pattern);
    return fsdpck_name_after(module, name, &layer) != NULL;
}

/* Whether the side lays it out anew. What lies beside fused experts belongs to them, as their scales do. */
static bool is_laid_out(const struct fsdpck_side_row *row)
{
    return row->rows != FSDPCK_ROWS_ALL || row->turned || (row->held[0] && fsdpck_expert_is_name(row->held[0]));
}

static bool is_in_modules(const char *const *patterns, const char *name)
{
    for (int p = 0; p < FSDPCK_SIDE_MAX_PARTS && patterns[p]; p++)
        if (is_in_module(patterns[p], name))
            return true;
    return false;
}

bool fsdpck_side_is_beside(const struct fsdpck_side *side, const struct fsdpck_moe *model, const char *name)
{
    for (size_t i = 0; i < side->nrows; i++) {
        const struct fsdpck_side_row *row = &side->rows[i];
        if (is_for(row, model) && is_laid_out(row) &&
            (is_in_modules(row->held, name) || is_in_modules(row->other, name)))
            return true;
    }
    return false;
}
