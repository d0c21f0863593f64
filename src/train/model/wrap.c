/* SPDX-License-Identifier: Apache-2.0 */
/* Joins blocks into units. */
#include "model/wrap.h"

#include <stdlib.h>
#include <string.h>

#include "model/family.h"

/* True if a block is gathered with the one before it. nelem: size of the unit so far. */
static bool joins(const struct group_policy *before, const struct group_policy *p, uint64_t nelem)
{
    return p->object == before->object &&
           (p->wrap == TRAIN_NO_WRAP || (p->wrap == TRAIN_SIZE_BASED_WRAP && nelem < p->min_num_params));
}

/* True if both groups are whole blocks. */
static bool are_whole(const struct layout *l, uint32_t before, uint32_t g)
{
    return !layout_is_cut(l, layout_block_of(l, before)) && !layout_is_cut(l, layout_block_of(l, g));
}

static void join(const struct layout *l, const uint64_t *nelem, struct wrap *out)
{
    uint64_t sum = 0;
    uint32_t unit = 0;
    for (uint32_t g = 1; g < l->ngroups; g++) {
        const bool begins = g == 1 || layout_is_end(l, g) || !are_whole(l, g - 1, g) ||
                            !joins(&out->policy[g - 1], &out->policy[g], sum);
        unit += begins;
        sum = begins ? nelem[g] : sum + nelem[g];
        out->unit[g] = unit;
    }
    out->nunits = unit + 1;
}

int wrap_make(const struct train_config *config, const struct layout *l, struct wrap *out, struct fsdpck_error *err)
{
    uint64_t *nelem = calloc(l->ngroups, sizeof *nelem);
    *out = (struct wrap){ .unit = calloc(l->ngroups, sizeof *out->unit) };
    int rc = nelem && out->unit ? policy_make(config, l, &out->policy, err)
                                : fsdpck_error_nomem(err, l->ngroups * sizeof *nelem);
    for (size_t i = 0; i < l->nparams && !rc; i++)
        nelem[l->params[i].group] += (uint64_t)(l->params[i].nrow * l->params[i].ncol);
    if (rc)
        wrap_free(out);
    else
        join(l, nelem, out);
    free(nelem);
    return rc;
}

void wrap_free(struct wrap *w)
{
    free(w->unit);
    free(w->policy);
    *w = (struct wrap){ 0 };
}

int wrap_check(const struct train_config *config, const struct model *m, struct fsdpck_error *err)
{
    const char *block = m->family ? m->family->block : "Flux2TransformerBlock",
               *other = m->family ? block : "Flux2SingleTransformerBlock";
    for (size_t i = 0; i < config->fsdp.nwrap_classes; i++) {
        const char *name = config->fsdp.wrap_classes[i];
        if (strcmp(name, block) == 0 || strcmp(name, other) == 0)
            continue;
        fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                         "key 'fsdp.transformer_layer_cls_to_wrap': '%.100s' is not the class of this model's blocks, "
                         "which is '%s'",
                         name, block);
        return FSDPCK_ERR_USAGE;
    }
    return 0;
}
