/* SPDX-License-Identifier: Apache-2.0 */
/* Paths are compared as those of lora.target_modules are. */
#include "model/policy_match.h"

#include <stdio.h>

#include "config/target.h"

enum { PART_LAYERS = 3 };

/* The linear layers of each part of a dense block; of a sparse one only those of attention. */
static const char *const linears[LAYOUT_PARTS][PART_LAYERS + 1] = {
    [PART_QKV] = { "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj" },
    [PART_O] = { "self_attn.o_proj" },
    [PART_GATE_UP] = { "mlp.gate_proj", "mlp.up_proj" },
    [PART_DOWN] = { "mlp.down_proj" }
};

void policy_end_path(const struct layout *l, uint32_t group, char path[POLICY_PATH])
{
    snprintf(path, POLICY_PATH, "%s",
             l->flux2 ? (group ? "norm_out" : "x_embedder") : (group ? "model.norm" : "model.embed_tokens"));
}

void policy_block_path(const struct layout *l, uint32_t block, char path[POLICY_PATH])
{
    const uint32_t ndouble = l->flux2 ? (uint32_t)l->flux2->ndouble : 0;
    if (!l->flux2)
        snprintf(path, POLICY_PATH, "model.layers.%u", block);
    else if (block < ndouble)
        snprintf(path, POLICY_PATH, "transformer_blocks.%u", block);
    else
        snprintf(path, POLICY_PATH, "single_transformer_blocks.%u", block - ndouble);
}

const char *policy_parts_name(const struct layout *l, enum layout_part first, enum layout_part last, char name[64])
{
    static const char *const parts[LAYOUT_PARTS] = { "self_attn.{q,k,v}_proj", "self_attn.o_proj", "mlp.{gate,up}_proj",
                                                     "mlp.down_proj" };
    const char *const from = first == PART_GATE_UP && last == PART_DOWN ? l->mlp
                             : first == PART_QKV && last >= PART_O      ? "self_attn"
                                                                        : parts[first];
    const bool one = first == last || (last - first == 1 && (last == PART_O || last == PART_DOWN));
    if (one)
        return from;
    snprintf(name, 64, "%s to %s", from, last == PART_DOWN ? l->mlp : parts[last]);
    return name;
}

static int matches(const struct train_config *config, size_t object, const char *path, struct fsdpck_error *err)
{
    const struct train_policy *policy = &config->fsdp.policy[object];
    char key[60];
    const struct target_modules modules = { key, policy->regex, policy->names, policy->nnames };
    snprintf(key, sizeof key, "fsdp.policy[%zu].modules", object);
    return target_matches(&modules, path, err);
}

/* The other modules of the groups at both ends. */
static const char *const *other_paths(const struct layout *l, uint32_t group)
{
    static const char *const none[] = { NULL }, *const head[] = { "lm_head", NULL },
                             *const last[] = { "proj_out", NULL },
                             *const first[] = { "context_embedder",
                                                "time_guidance_embed",
                                                "double_stream_modulation_img",
                                                "double_stream_modulation_txt",
                                                "single_stream_modulation",
                                                NULL };
    if (l->flux2)
        return group ? last : first;
    return group && !layout_is_tied(l) ? head : none;
}

static int matches_end(const struct train_config *config, size_t object, const struct layout *l, uint32_t group,
                       struct fsdpck_error *err)
{
    char path[POLICY_PATH];
    policy_end_path(l, group, path);
    int rc = matches(config, object, path, err);
    for (const char *const *other = other_paths(l, group); *other && !rc; other++)
        rc = matches(config, object, *other, err);
    return rc;
}

static int matches_block(const struct train_config *config, size_t object, const struct layout *l, uint32_t block,
                         struct fsdpck_error *err)
{
    char path[POLICY_PATH];
    policy_block_path(l, block, path);
    return matches(config, object, path, err);
}

static int matches_in_block(const struct train_config *config, size_t object, uint32_t block, const char *module,
                            struct fsdpck_error *err)
{
    char path[POLICY_PATH];
    snprintf(path, sizeof path, "model.layers.%u.%s", block, module);
    return matches(config, object, path, err);
}

/* Like the others, and sets *level. */
static int matches_part(const struct train_config *config, size_t object, const struct layout *l, uint32_t block,
                        enum layout_part part, enum match_level *level, struct fsdpck_error *err)
{
    const bool attention = part < PART_GATE_UP;
    *level = MATCH_BLOCK;
    int rc = matches_block(config, object, l, block, err);
    if (rc || !l->mlp[0])
        return rc;
    *level = MATCH_HALF;
    rc = matches_in_block(config, object, block, attention ? "self_attn" : l->mlp, err);
    if (rc || (l->blocks[block].sparse && !attention))
        return rc;
    *level = MATCH_PART;
    for (const char *const *linear = linears[part]; *linear && !rc; linear++)
        rc = matches_in_block(config, object, block, *linear, err);
    return rc;
}

typedef int matches_fn(const struct train_config *config, size_t object, const struct layout *l, uint32_t number,
                       struct fsdpck_error *err);

static int find_first(const struct train_config *config, const struct layout *l, uint32_t number, matches_fn *fn,
                      int32_t *object, struct fsdpck_error *err)
{
    int rc = 0;
    *object = POLICY_NONE;
    for (size_t i = 0; i < config->fsdp.npolicy && !rc; i++) {
        rc = fn(config, i, l, number, err);
        *object = rc > 0 ? (int32_t)i : POLICY_NONE;
    }
    return rc < 0 ? rc : 0;
}

int policy_match_end(const struct train_config *config, const struct layout *l, uint32_t group, int32_t *object,
                     struct fsdpck_error *err)
{
    return find_first(config, l, group, matches_end, object, err);
}

int policy_match_block(const struct train_config *config, const struct layout *l, uint32_t block, int32_t *object,
                       struct fsdpck_error *err)
{
    return find_first(config, l, block, matches_block, object, err);
}

int policy_match_part(const struct train_config *config, const struct layout *l, uint32_t block, enum layout_part part,
                      struct policy_match *out, struct fsdpck_error *err)
{
    int rc = 0;
    *out = (struct policy_match){ POLICY_NONE, MATCH_BLOCK };
    for (size_t i = 0; i < config->fsdp.npolicy && !rc; i++) {
        enum match_level level;
        rc = matches_part(config, i, l, block, part, &level, err);
        if (rc > 0)
            *out = (struct policy_match){ (int32_t)i, level };
    }
    return rc < 0 ? rc : 0;
}

int policy_matches_some(const struct train_config *config, size_t object, const struct layout *l,
                        struct fsdpck_error *err)
{
    enum match_level level;
    int rc = matches_end(config, object, l, 0, err);
    if (!rc)
        rc = matches_end(config, object, l, l->ngroups - 1, err);
    for (uint32_t block = 0; block < l->nblocks && !rc; block++)
        for (int part = 0; part < LAYOUT_PARTS && !rc; part++)
            rc = matches_part(config, object, l, block, (enum layout_part)part, &level, err);
    return rc;
}
