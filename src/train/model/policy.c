/* SPDX-License-Identifier: Apache-2.0 */
/* The values of the objects of fsdp.policy for the groups that they match. */
#include "model/policy.h"

#include <stdio.h>
#include <stdlib.h>

#include "config/policy_keys.h"

static bool is_whole_step(enum train_sharding strategy)
{
    return strategy == TRAIN_SHARD_GRAD_OP || strategy == TRAIN_HYBRID_SHARD_ZERO2;
}

/* The strategy of the same mesh that reshards. */
static enum train_sharding resharding(enum train_sharding strategy)
{
    return strategy == TRAIN_SHARD_GRAD_OP        ? TRAIN_FULL_SHARD
           : strategy == TRAIN_HYBRID_SHARD_ZERO2 ? TRAIN_HYBRID_SHARD
                                                  : strategy;
}

/* A strategy in an object replaces fsdp.reshard_after_forward false, and resharding in an object replaces a strategy
 * that does not reshard. */
static struct group_policy describe(const struct train_config *config, int32_t object)
{
    static const struct train_policy nothing;
    const struct train_policy *p = object < 0 ? &nothing : &config->fsdp.policy[object];
    const struct train_config values = config_policy_over(config, p);
    const bool strategy = p->given[TRAIN_POLICY_STRATEGY], reshard = p->given[TRAIN_POLICY_RESHARD];
    const uint64_t within =
        strategy && !reshard && !values.fsdp.reshard_after_forward ? 1 : values.fsdp.reshard_after_forward;
    struct group_policy out = { .object = object,
                                .of_block = object,
                                .strategy = values.fsdp.strategy,
                                .checkpointing = values.fsdp.checkpointing,
                                .wrap = values.fsdp.wrap,
                                .dtype = values.dtype.param == TRAIN_BF16 ? KERN_BF16 : KERN_F32,
                                .reduce = values.dtype.reduce == TRAIN_BF16 ? KERN_BF16 : KERN_F32,
                                .offloads = values.fsdp.offload_optimizer,
                                .min_num_params = values.fsdp.min_num_params,
                                .forward_prefetch = (uint32_t)values.fsdp.forward_prefetch,
                                .backward_prefetch = (uint32_t)values.fsdp.backward_prefetch };
    if (reshard && !strategy && within)
        out.strategy = resharding(out.strategy);
    out.stays = out.strategy == TRAIN_NO_SHARD || is_whole_step(out.strategy) || !within;
    out.keeps = !out.stays && within > 1;
    return out;
}

/* True if an object says that the group is resharded. */
static bool asks_to_reshard(const struct train_config *config, const struct group_policy *p)
{
    const bool *given = p->object < 0 ? NULL : config->fsdp.policy[p->object].given;
    return given && !p->stays && (given[TRAIN_POLICY_STRATEGY] || given[TRAIN_POLICY_RESHARD]);
}

/* Embedding and head can share a buffer, but not if they share a weight. The last norm computes with the head. */
static void settle_ends(const struct train_config *config, const struct layout *l, struct group_policy *all)
{
    struct group_policy *first = &all[0], *last = &all[l->ngroups - 1];
    last->dtype = layout_is_tied(l) ? first->dtype : last->dtype;
    if (!layout_is_tied(l) && asks_to_reshard(config, first) && asks_to_reshard(config, last))
        return;
    first->stays = last->stays = true;
    first->keeps = last->keeps = false;
}

/* Types and recomputation are those of the whole block. */
static int describe_block(const struct train_config *config, const struct layout *l, uint32_t block,
                          struct group_policy *all, struct fsdpck_error *err)
{
    int32_t object;
    int rc = policy_match_block(config, l, block, &object, err);
    const struct group_policy whole = describe(config, rc ? POLICY_NONE : object);
    for (int part = 0; part < LAYOUT_PARTS && !rc; part++) {
        struct group_policy *p = &all[l->blocks[block].groups[part]];
        struct policy_match match;
        rc = policy_match_part(config, l, block, (enum layout_part)part, &match, err);
        if (rc)
            break;
        *p = describe(config, match.object);
        p->of_block = object;
        p->checkpointing = whole.checkpointing;
        p->dtype = whole.dtype;
        p->reduce = whole.reduce;
    }
    return rc;
}

static int describe_all(const struct train_config *config, const struct layout *l, struct group_policy *all,
                        struct fsdpck_error *err)
{
    const uint32_t ends[] = { 0, l->ngroups - 1 };
    int rc = 0;
    for (int i = 0; i < 2 && !rc; i++) {
        int32_t object;
        rc = policy_match_end(config, l, ends[i], &object, err);
        all[ends[i]] = describe(config, rc ? POLICY_NONE : object);
    }
    for (uint32_t i = 0; i < l->nblocks && !rc; i++)
        rc = describe_block(config, l, i, all, err);
    return rc;
}

int policy_make(const struct train_config *config, const struct layout *l, struct group_policy **out,
                struct fsdpck_error *err)
{
    struct group_policy *all = calloc(l->ngroups, sizeof *all);
    int rc = all ? describe_all(config, l, all, err) : fsdpck_error_nomem(err, l->ngroups * sizeof *all);
    *out = NULL;
    if (rc) {
        free(all);
        return rc;
    }
    settle_ends(config, l, all);
    *out = all;
    return 0;
}

/* The order of gathers depends on what is recomputed in a block that is cut, and is fixed before memory is known. */
void policy_recompute(const struct group_policy *all, struct layout *l)
{
    for (uint32_t i = 0; i < l->nblocks; i++) {
        const enum train_recompute chosen = all[layout_first_group(l, i)].checkpointing;
        l->blocks[i].checkpointing =
            chosen == TRAIN_RECOMPUTE_AUTO && layout_is_cut(l, i) ? TRAIN_RECOMPUTE_BLOCK : chosen;
    }
}

/* --- what is refused --- */

/* The groups that an object matches first, and those of blocks that it matches first as a whole. */
struct matched {
    uint32_t ngroups, nblocks, nends, nresharded;
    size_t ntrained; /* parameters of these blocks and ends */
    size_t nstates;  /* parameters of these groups that are trained */
};

static struct matched count(const struct layout *l, const struct group_policy *all, size_t object)
{
    struct matched out = { 0 };
    for (uint32_t g = 0; g < l->ngroups; g++) {
        out.nends += layout_is_end(l, g) && all[g].object == (int32_t)object;
        out.nblocks += !layout_is_end(l, g) && all[g].of_block == (int32_t)object;
        out.ngroups += all[g].object == (int32_t)object;
        out.nresharded += all[g].object == (int32_t)object && !all[g].stays;
    }
    for (size_t i = 0; i < l->nparams; i++) {
        const struct group_policy *p = &all[l->params[i].group];
        out.ntrained += l->params[i].trainable && p->of_block == (int32_t)object;
        out.nstates += l->params[i].trainable && p->object == (int32_t)object;
    }
    return out;
}

#define FAIL(...) fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, __VA_ARGS__)

static int refuse_modules(const struct train_config *config, const struct layout *l, size_t object,
                          struct fsdpck_error *err)
{
    int rc = policy_matches_some(config, object, l, err);
    if (rc < 0)
        return rc;
    if (rc)
        return FAIL("key 'fsdp.policy[%zu]' has no effect: objects before it match all of its groups", object);
    FAIL("key 'fsdp.policy[%zu].modules' matches no group of parameters", object);
    if (l->flux2)
        fsdpck_error_hint(err,
                          "a block is gathered whole; the groups are x_embedder (with all other embedders and "
                          "modulations), transformer_blocks.0 to transformer_blocks.%lld, single_transformer_blocks.0 "
                          "to single_transformer_blocks.%lld, and proj_out",
                          (long long)l->flux2->ndouble - 1, (long long)l->flux2->nsingle - 1);
    else
        fsdpck_error_hint(err,
                          "the groups are model.embed_tokens, model.layers.0 to model.layers.%u, and %s; those of a "
                          "part of a block are self_attn and %s, or linear layers",
                          l->nblocks - 1, layout_is_tied(l) ? "model.norm (lm_head is model.embed_tokens)" : "lm_head",
                          l->mlp);
    return err->code;
}

static int check_strategy(const struct train_config *config, size_t object, struct fsdpck_error *err)
{
    const struct train_policy *p = &config->fsdp.policy[object];
    char word[TRAIN_WORD_NBYTES];
    if (!p->given[TRAIN_POLICY_STRATEGY])
        return 0;
    train_config_word("fsdp.sharding_strategy", p->strategy, word);
    if ((is_whole_step(p->strategy) || p->strategy == TRAIN_NO_SHARD) && p->given[TRAIN_POLICY_RESHARD] &&
        p->reshard_after_forward)
        return FAIL("key 'fsdp.policy[%zu].reshard_after_forward': the object's sharding_strategy %s does not reshard",
                    object, word);
    return 0;
}

/* Keys of gathers do nothing for groups that are whole on every rank. */
static int check_whole(const struct train_config *config, size_t object, struct fsdpck_error *err)
{
    static const enum train_policy_key of_gathers[] = { TRAIN_POLICY_RESHARD, TRAIN_POLICY_WRAP,
                                                        TRAIN_POLICY_MIN_PARAMS, TRAIN_POLICY_FORWARD_PREFETCH,
                                                        TRAIN_POLICY_BACKWARD_PREFETCH };
    for (size_t i = 0; i < sizeof of_gathers / sizeof *of_gathers; i++)
        if (config->fsdp.policy[object].given[of_gathers[i]])
            return FAIL("key 'fsdp.policy[%zu].%s' has no effect: its groups are not gathered, as NO_SHARD has them "
                        "whole on every rank",
                        object, config_policy_name(of_gathers[i]));
    return 0;
}

/* Keys of whole blocks, and those that ends may have too. */
static int check_block_keys(const struct train_policy *p, size_t object, const struct matched *m,
                            struct fsdpck_error *err)
{
    static const enum train_policy_key keys[] = { TRAIN_POLICY_CHECKPOINTING, TRAIN_POLICY_WRAP,
                                                  TRAIN_POLICY_MIN_PARAMS, TRAIN_POLICY_PARAM_DTYPE,
                                                  TRAIN_POLICY_REDUCE_DTYPE };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const bool of_ends = keys[i] == TRAIN_POLICY_PARAM_DTYPE || keys[i] == TRAIN_POLICY_REDUCE_DTYPE;
        if (p->given[keys[i]] && !m->nblocks && !(of_ends && m->nends))
            return FAIL("key 'fsdp.policy[%zu].%s' is for blocks%s, and modules matches none", object,
                        config_policy_name(keys[i]), of_ends ? " and ends of the model" : "");
    }
    return 0;
}

/* Keys of gathers, in an object whose blocks are all cut into groups that objects before it match. */
static int check_left(const struct train_policy *p, size_t object, struct fsdpck_error *err)
{
    for (int key = 0; key < TRAIN_POLICY_KEYS; key++)
        if (p->given[key] && key != TRAIN_POLICY_CHECKPOINTING && key != TRAIN_POLICY_PARAM_DTYPE &&
            key != TRAIN_POLICY_REDUCE_DTYPE)
            return FAIL("key 'fsdp.policy[%zu].%s' has no effect: objects before it match all parts of its blocks",
                        object, config_policy_name((enum train_policy_key)key));
    return 0;
}

static int check_trained(const struct train_policy *p, size_t object, const struct matched *m, struct fsdpck_error *err)
{
    const bool state = p->given[TRAIN_POLICY_OFFLOAD] && !m->nstates,
               gradients = p->given[TRAIN_POLICY_REDUCE_DTYPE] && !m->ntrained;
    if (!state && !gradients)
        return 0;
    return FAIL("key 'fsdp.policy[%zu].%s' has no effect: its groups train nothing", object,
                config_policy_name(state ? TRAIN_POLICY_OFFLOAD : TRAIN_POLICY_REDUCE_DTYPE));
}

/* Keys that do nothing for the groups of the object. */
static int check_effect(const struct train_config *config, const struct layout *l, const struct group_policy *all,
                        size_t object, struct fsdpck_error *err)
{
    const struct train_policy *p = &config->fsdp.policy[object];
    const struct matched m = count(l, all, object);
    const struct group_policy wanted = describe(config, (int32_t)object);
    int rc = check_block_keys(p, object, &m, err);
    if (rc)
        return rc;
    if (!m.ngroups)
        return check_left(p, object, err);
    if (p->given[TRAIN_POLICY_MIN_PARAMS] && wanted.wrap != TRAIN_SIZE_BASED_WRAP)
        return FAIL("key 'fsdp.policy[%zu].min_num_params' has no effect: auto_wrap_policy is not SIZE_BASED_WRAP",
                    object);
    if (!m.nresharded && asks_to_reshard(config, &wanted)) {
        FAIL("key 'fsdp.policy[%zu]': %s", object,
             layout_is_tied(l) ? "model.embed_tokens is used at both ends of the model, and stays in memory"
                               : "embedding and head stay in memory unless both are resharded");
        if (!layout_is_tied(l))
            fsdpck_error_hint(err, "\"modules\": [\"%s\", \"%s\"] is both; they share a buffer then",
                              l->flux2 ? "x_embedder" : "embed_tokens", l->flux2 ? "proj_out" : "lm_head");
        return err->code;
    }
    if (p->given[TRAIN_POLICY_PARAM_DTYPE] && all[l->ngroups - 1].object == (int32_t)object &&
        all[l->ngroups - 1].dtype != wanted.dtype) {
        FAIL("key 'fsdp.policy[%zu].param_dtype': model.norm has the type of lm_head, which is model.embed_tokens",
             object);
        fsdpck_error_hint(err, "an object with \"modules\": [\"embed_tokens\"] gives it to both");
        return err->code;
    }
    rc = check_trained(p, object, &m, err);
    if (rc)
        return rc;
    if (wanted.strategy == TRAIN_NO_SHARD) /* of the whole run: its report of keys without effect names this one */
        return config_policy_strategies(config) ? check_whole(config, object, err) : 0;
    if (p->given[TRAIN_POLICY_BACKWARD_PREFETCH] && !m.nresharded)
        return FAIL("key 'fsdp.policy[%zu].backward_prefetch' has no effect: its groups stay in memory after the "
                    "forward pass",
                    object);
    return 0;
}

static bool cuts(enum train_wrap wrap)
{
    return wrap == TRAIN_HALF_BLOCK_WRAP || wrap == TRAIN_LINEAR_WRAP;
}

static int refuse_cuts(const struct train_config *config, struct fsdpck_error *err)
{
    char key[60] = "fsdp.auto_wrap_policy";
    bool any = cuts(config->fsdp.wrap);
    for (size_t i = 0; i < config->fsdp.npolicy && !any; i++) {
        any = config->fsdp.policy[i].given[TRAIN_POLICY_WRAP] && cuts(config->fsdp.policy[i].wrap);
        snprintf(key, sizeof key, "fsdp.policy[%zu].auto_wrap_policy", i);
    }
    return any ? FAIL("key '%s': a block of a FLUX.2 transformer is not cut, but gathered whole", key) : 0;
}

int policy_check(const struct train_config *config, const struct layout *l, struct fsdpck_error *err)
{
    struct group_policy *all;
    int rc = policy_make(config, l, &all, err);
    if (!rc && !l->mlp[0])
        rc = refuse_cuts(config, err);
    for (size_t i = 0; i < config->fsdp.npolicy && !rc; i++) {
        const struct matched m = count(l, all, i);
        if (!m.ngroups && !m.nblocks)
            rc = refuse_modules(config, l, i, err);
        if (!rc)
            rc = check_strategy(config, i, err);
        if (!rc)
            rc = check_effect(config, l, all, i, err);
    }
    free(all);
    return rc;
}
