/* SPDX-License-Identifier: Apache-2.0 */
/* Neighbouring parts of a block are one group if the same object of fsdp.policy matches both, and neither it nor
 * auto_wrap_policy asks for smaller ones. */
#include "model/layout_cut.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/policy_keys.h"
#include "model/family.h"
#include "model/policy_match.h"

/* The largest group that a part may belong to. */
static enum match_level largest(const struct train_config *config, const struct policy_match *match)
{
    const enum train_wrap wrap = match->object < 0
                                     ? config->fsdp.wrap
                                     : config_policy_over(config, &config->fsdp.policy[match->object]).fsdp.wrap;
    const enum match_level by_wrap = wrap == TRAIN_LINEAR_WRAP       ? MATCH_PART
                                     : wrap == TRAIN_HALF_BLOCK_WRAP ? MATCH_HALF
                                                                     : MATCH_BLOCK;
    return match->level > by_wrap ? match->level : by_wrap;
}

/* True if a group ends before this part of a block. */
static bool begins(const struct train_config *config, const struct policy_match *before, const struct policy_match *p,
                   enum layout_part part)
{
    const enum match_level level = largest(config, p);
    return before->object != p->object || before->level != p->level || level == MATCH_PART ||
           (level == MATCH_HALF && part == PART_GATE_UP);
}

static int cut_block(const struct train_config *config, struct layout *l, uint32_t block, uint32_t *group,
                     struct fsdpck_error *err)
{
    struct policy_match match[LAYOUT_PARTS];
    struct layout_block *b = &l->blocks[block];
    int rc = 0;
    ++*group;
    for (int part = 0; part < LAYOUT_PARTS && !rc; part++) {
        const bool joined = part == 0 || !l->mlp[0] || (part == PART_DOWN && b->sparse);
        rc = l->mlp[0] ? policy_match_part(config, l, block, (enum layout_part)part, &match[part], err) : 0;
        *group += !rc && !joined && begins(config, &match[part - 1], &match[part], (enum layout_part)part);
        b->groups[part] = *group;
    }
    return rc;
}

/* The module of the experts and their router, or of the only MLP. */
static void name_mlp(const struct model *m, char name[24])
{
    const char *router = m->family->modules.router;
    snprintf(name, 24, "%.*s", router ? (int)strcspn(router, ".") : 3, router ? router : "mlp");
}

int layout_cut(const struct model *m, const struct train_config *config, struct layout *l, struct fsdpck_error *err)
{
    const size_t n = (size_t)m->nlayer;
    uint32_t group = 0;
    int rc = 0;
    l->blocks = calloc(n + 1, sizeof *l->blocks);
    if (!l->blocks)
        return fsdpck_error_nomem(err, n * sizeof *l->blocks);
    l->nblocks = (uint32_t)n;
    if (m->family)
        name_mlp(m, l->mlp);
    for (uint32_t i = 0; i < n && !rc; i++) {
        l->blocks[i].sparse = m->family && m->sparse[i];
        rc = cut_block(config, l, i, &group, err);
    }
    l->ngroups = group + 2;
    return rc;
}
