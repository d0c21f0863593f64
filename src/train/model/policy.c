/* SPDX-License-Identifier: Apache-2.0 */
/* Matches the objects of fsdp.policy with groups. */
#include "model/policy.h"

#include <stdio.h>
#include <stdlib.h>

#include "config/policy_keys.h"
#include "config/target.h"

void policy_group_path(const struct layout *l, uint32_t group, char path[POLICY_PATH])
{
    const uint32_t ndouble = l->flux2 ? (uint32_t)l->flux2->ndouble : 0;
    if (layout_is_end(l, group))
        snprintf(path, POLICY_PATH, "%s",
                 l->flux2 ? (group ? "norm_out" : "x_embedder") : (group ? "model.norm" : "model.embed_tokens"));
    else if (!l->flux2)
        snprintf(path, POLICY_PATH, "model.layers.%u", group - 1);
    else if (group <= ndouble)
        snprintf(path, POLICY_PATH, "transformer_blocks.%u", group - 1);
    else
        snprintf(path, POLICY_PATH, "single_transformer_blocks.%u", group - 1 - ndouble);
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
    if (!layout_is_end(l, group))
        return none;
    if (l->flux2)
        return group ? last : first;
    return group && !layout_is_tied(l) ? head : none;
}

/* Returns 1 if the object matches the group by one of its paths, 0 if not. */
static int matches(const struct train_config *config, size_t object, const struct layout *l, uint32_t group,
                   struct fsdpck_error *err)
{
    const struct train_policy *policy = &config->fsdp.policy[object];
    char key[60], path[POLICY_PATH];
    const struct target_modules modules = { key, policy->regex, policy->names, policy->nnames };
    snprintf(key, sizeof key, "fsdp.policy[%zu].modules", object);
    policy_group_path(l, group, path);
    int rc = target_matches(&modules, path, err);
    for (const char *const *other = other_paths(l, group); *other && !rc; other++)
        rc = target_matches(&modules, *other, err);
    return rc;
}

static int find_object(const struct train_config *config, const struct layout *l, uint32_t group, int32_t *object,
                       struct fsdpck_error *err)
{
    *object = POLICY_NONE;
    for (size_t i = 0; i < config->fsdp.npolicy; i++) {
        int rc = matches(config, i, l, group, err);
        if (rc < 0)
            return rc;
        if (rc) {
            *object = (int32_t)i;
            return 0;
        }
    }
    return 0;
}

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
                                .strategy = values.fsdp.strategy,
                                .checkpointing = values.fsdp.checkpointing,
                                .wrap = values.fsdp.wrap,
                                .dtype = values.dtype.param == TRAIN_BF16 ? KERN_BF16 : KERN_F32,
                                .reduce = values.dtype.reduce == TRAIN_BF16 ? KERN_BF16 : KERN_F32,
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

int policy_make(const struct train_config *config, const struct layout *l, struct group_policy **out,
                struct fsdpck_error *err)
{
    struct group_policy *all = calloc(l->ngroups, sizeof *all);
    int rc = all ? 0 : fsdpck_error_nomem(err, l->ngroups * sizeof *all);
    *out = NULL;
    for (uint32_t g = 0; g < l->ngroups && !rc; g++) {
        int32_t object;
        rc = find_object(config, l, g, &object, err);
        if (!rc)
            all[g] = describe(config, object);
    }
    if (rc) {
        free(all);
        return rc;
    }
    settle_ends(config, l, all);
    *out = all;
    return 0;
}

/* --- what is refused --- */

/* The groups that an object matches first. */
struct matched {
    uint32_t ngroups, nblocks, nresharded;
    size_t ntrained; /* parameters */
};

static struct matched count(const struct layout *l, const struct group_policy *all, size_t object)
{
    struct matched out = { 0 };
    for (uint32_t g = 0; g < l->ngroups; g++) {
        if (all[g].object != (int32_t)object)
            continue;
        out.ngroups++;
        out.nblocks += !layout_is_end(l, g);
        out.nresharded += !all[g].stays;
    }
    for (size_t i = 0; i < l->nparams; i++)
        out.ntrained += l->params[i].trainable && all[l->params[i].group].object == (int32_t)object;
    return out;
}

#define FAIL(...) fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, __VA_ARGS__)

static int refuse_modules(const struct train_config *config, const struct layout *l, size_t object,
                          struct fsdpck_error *err)
{
    int rc = 0;
    for (uint32_t g = 0; g < l->ngroups && !rc; g++)
        rc = matches(config, object, l, g, err);
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
                          "a block is gathered whole; the groups are model.embed_tokens, model.layers.0 to "
                          "model.layers.%u, and %s",
                          l->ngroups - 3, layout_is_tied(l) ? "model.norm (lm_head is model.embed_tokens)" : "lm_head");
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

/* Keys that do nothing for the groups of the object. */
static int check_effect(const struct train_config *config, const struct layout *l, const struct group_policy *all,
                        size_t object, struct fsdpck_error *err)
{
    const struct train_policy *p = &config->fsdp.policy[object];
    const struct matched m = count(l, all, object);
    const struct group_policy wanted = describe(config, (int32_t)object);
    static const enum train_policy_key of_blocks[] = { TRAIN_POLICY_CHECKPOINTING, TRAIN_POLICY_WRAP,
                                                       TRAIN_POLICY_MIN_PARAMS };
    for (size_t i = 0; i < sizeof of_blocks / sizeof *of_blocks && !m.nblocks; i++)
        if (p->given[of_blocks[i]])
            return FAIL("key 'fsdp.policy[%zu].%s' is for blocks, and modules matches none", object,
                        config_policy_name(of_blocks[i]));
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
    if (p->given[TRAIN_POLICY_REDUCE_DTYPE] && !m.ntrained)
        return FAIL("key 'fsdp.policy[%zu].reduce_dtype' has no effect: its groups train nothing", object);
    if (wanted.strategy == TRAIN_NO_SHARD) /* of the whole run: its report of keys without effect names this one */
        return config_policy_strategies(config) ? check_whole(config, object, err) : 0;
    if (p->given[TRAIN_POLICY_BACKWARD_PREFETCH] && !m.nresharded)
        return FAIL("key 'fsdp.policy[%zu].backward_prefetch' has no effect: its groups stay in memory after the "
                    "forward pass",
                    object);
    return 0;
}

int policy_check(const struct train_config *config, const struct layout *l, struct fsdpck_error *err)
{
    struct group_policy *all;
    int rc = policy_make(config, l, &all, err);
    for (size_t i = 0; i < config->fsdp.npolicy && !rc; i++) {
        if (!count(l, all, i).ngroups)
            rc = refuse_modules(config, l, i, err);
        if (!rc)
            rc = check_strategy(config, i, err);
        if (!rc)
            rc = check_effect(config, l, all, i, err);
    }
    free(all);
    return rc;
}
