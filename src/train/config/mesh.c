/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of sharding_strategy, dp_replicate_size, dp_shard_size and reshard_after_forward, of fsdp and of the
 * objects of fsdp.policy. */
#include "config/mesh.h"

#include <stdio.h>

bool mesh_is_of_hosts(const struct train_config *config)
{
    return mesh_is_hybrid(config->fsdp.strategy) && !config->fsdp.dp_replicate_size && !config->fsdp.dp_shard_size;
}

static const char *name_of(const struct train_config *config, char word[TRAIN_WORD_NBYTES])
{
    return train_config_word("fsdp.sharding_strategy", config->fsdp.strategy, word);
}

enum { KEY_NBYTES = 64 };

/* The name of a key, "fsdp.dp_shard_size" or "fsdp.policy[2].dp_shard_size". */
static const char *key_of(const struct mesh_request *req, const char *key, char name[KEY_NBYTES])
{
    if (req->object == MESH_OF_RUN)
        snprintf(name, KEY_NBYTES, "fsdp.%s", key);
    else
        snprintf(name, KEY_NBYTES, "fsdp.policy[%d].%s", req->object, key);
    return name;
}

static int check_divisor(const struct mesh_request *req, const char *key, uint64_t size, struct fsdpck_error *err)
{
    char name[KEY_NBYTES];
    if (!size || req->nranks % size == 0)
        return 0;
    fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "key '%s': %llu does not divide the %u rank%s of this run",
                     key_of(req, key, name), (unsigned long long)size, req->nranks, fsdpck_plural(req->nranks));
    fsdpck_error_hint(err, "choose a divisor of %u, or another number of ranks", req->nranks);
    return err->code;
}

/* Both sizes, where both are given. */
static int check_product(const struct mesh_request *req, struct fsdpck_error *err)
{
    const uint64_t replicas = req->config->fsdp.dp_replicate_size, shards = req->config->fsdp.dp_shard_size;
    char first[KEY_NBYTES], second[KEY_NBYTES];
    if (!replicas || !shards || replicas * shards == req->nranks)
        return 0;
    fsdpck_error_set(
        err, FSDPCK_ERR_USAGE, NULL, "keys '%s' and '%s': %llu times %llu is %llu, and this run has %u rank%s",
        key_of(req, "dp_replicate_size", first), key_of(req, "dp_shard_size", second), (unsigned long long)replicas,
        (unsigned long long)shards, (unsigned long long)(replicas * shards), req->nranks, fsdpck_plural(req->nranks));
    fsdpck_error_hint(err, "leave one of them out: it follows from the other and the number of ranks");
    return err->code;
}

/* The other strategies have a mesh of their own, which given sizes must repeat. */
static int fixed_mesh(const struct mesh_request *req, struct mesh *out, struct fsdpck_error *err)
{
    const uint64_t replicas = req->config->fsdp.dp_replicate_size, shards = req->config->fsdp.dp_shard_size;
    const bool whole = req->config->fsdp.strategy == TRAIN_NO_SHARD;
    char word[TRAIN_WORD_NBYTES], size[KEY_NBYTES], strategy[KEY_NBYTES];
    *out = (struct mesh){ .nreplicas = whole ? req->nranks : 1, .nshards = whole ? 1 : req->nranks };
    if ((!replicas || replicas == out->nreplicas) && (!shards || shards == out->nshards))
        return 0;
    const bool is_shards = shards && shards != out->nshards;
    fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "key '%s' is %llu, and %s %s on %u rank%s means %u",
                     key_of(req, is_shards ? "dp_shard_size" : "dp_replicate_size", size),
                     (unsigned long long)(is_shards ? shards : replicas), key_of(req, "sharding_strategy", strategy),
                     name_of(req->config, word), req->nranks, fsdpck_plural(req->nranks),
                     is_shards ? out->nshards : out->nreplicas);
    fsdpck_error_hint(err, "HYBRID_SHARD and HYBRID_SHARD_ZERO2 are the strategies with replicas of shard groups");
    return err->code;
}

/* With no size given, a host is a shard group. */
static int host_is_group(const struct mesh_request *req, uint64_t *shards, struct fsdpck_error *err)
{
    const uint32_t nranks = req->nranks, nlocal = req->nlocal;
    char word[TRAIN_WORD_NBYTES], name[KEY_NBYTES];
    *shards = nlocal;
    if (nlocal && nranks % nlocal == 0 && (nlocal > 1 || nranks == 1))
        return 0;
    key_of(req, "sharding_strategy", name);
    if (nlocal)
        fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                         "key '%s': %s takes the ranks of a host as a shard group; this host has %u of %u", name,
                         name_of(req->config, word), nlocal, nranks);
    else
        fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                         "key '%s': %s takes the ranks of a host as a shard group; the launcher does not say how many "
                         "this host has",
                         name, name_of(req->config, word));
    fsdpck_error_hint(err, "%s sets the number of ranks of a group", key_of(req, "dp_shard_size", name));
    return err->code;
}

static int hybrid_mesh(const struct mesh_request *req, struct mesh *out, struct fsdpck_error *err)
{
    uint64_t replicas = req->config->fsdp.dp_replicate_size, shards = req->config->fsdp.dp_shard_size;
    char word[TRAIN_WORD_NBYTES], name[KEY_NBYTES];
    const bool is_shards = shards > 0;
    int rc = 0;
    if (mesh_is_of_hosts(req->config))
        rc = host_is_group(req, &shards, err);
    if (rc)
        return rc;
    shards = shards ? shards : req->nranks / replicas;
    *out = (struct mesh){ .nreplicas = req->nranks / (uint32_t)shards, .nshards = (uint32_t)shards };
    if (shards > 1 || req->nranks == 1)
        return 0;
    fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "key '%s': %s with shard groups of one rank cuts nothing",
                     key_of(req, is_shards ? "dp_shard_size" : "dp_replicate_size", name), name_of(req->config, word));
    fsdpck_error_hint(err, "%s NO_SHARD has all parameters on every rank", key_of(req, "sharding_strategy", name));
    return err->code;
}

/* The number in fsdp.reshard_after_forward and those in the objects of fsdp.policy must be one number: there is one
 * memory for the parts. */
static int check_within(const struct train_config *config, struct fsdpck_error *err)
{
    uint64_t within = config->fsdp.reshard_after_forward > 1 ? config->fsdp.reshard_after_forward : 0;
    char key[KEY_NBYTES] = "fsdp.reshard_after_forward";
    for (size_t i = 0; i < config->fsdp.npolicy; i++) {
        const struct train_policy *p = &config->fsdp.policy[i];
        if (!p->given[TRAIN_POLICY_RESHARD] || p->reshard_after_forward < 2)
            continue;
        if (within && p->reshard_after_forward != within)
            return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                    "key 'fsdp.policy[%zu].reshard_after_forward' is %llu, and %s is %llu; the number "
                                    "of ranks is the same for all groups",
                                    i, (unsigned long long)p->reshard_after_forward, key, (unsigned long long)within);
        if (!within)
            snprintf(key, sizeof key, "fsdp.policy[%zu].reshard_after_forward", i);
        within = p->reshard_after_forward;
    }
    return 0;
}

/* An object may give the number to groups of a strategy that keeps what it gathers, which then reshard. */
static int choose_kept(const struct mesh_request *req, struct mesh *mesh, struct fsdpck_error *err)
{
    const struct train_config *config = req->config;
    const uint64_t within = config->fsdp.reshard_after_forward > 1 ? config->fsdp.reshard_after_forward : 0;
    const bool of_run = req->object == MESH_OF_RUN;
    const bool given = of_run || config->fsdp.policy[req->object].given[TRAIN_POLICY_RESHARD];
    bool reshards = config->fsdp.strategy == TRAIN_FULL_SHARD || config->fsdp.strategy == TRAIN_HYBRID_SHARD;
    char word[TRAIN_WORD_NBYTES], name[KEY_NBYTES], strategy[KEY_NBYTES];
    if (!of_run && given)
        reshards = config->fsdp.strategy != TRAIN_NO_SHARD;
    if (!within || (!given && !reshards))
        return 0;
    snprintf(name, sizeof name, "fsdp.reshard_after_forward");
    if (given)
        key_of(req, "reshard_after_forward", name);
    if (!reshards) {
        fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "key '%s' is %llu, and %s %s does not reshard", name,
                         (unsigned long long)within, key_of(req, "sharding_strategy", strategy), name_of(config, word));
        fsdpck_error_hint(err, "FULL_SHARD and HYBRID_SHARD do");
        return err->code;
    }
    if (mesh->nshards % within) {
        fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "key '%s': %llu does not divide the %u rank%s of a shard group%s",
                         name, (unsigned long long)within, mesh->nshards, fsdpck_plural(mesh->nshards),
                         given ? "" : " of an object of fsdp.policy");
        fsdpck_error_hint(err, "choose a divisor, or true%s", given ? "" : ", or give the object a number of its own");
        return err->code;
    }
    mesh->nkept = within < mesh->nshards ? (uint32_t)within : 0; /* within the whole group is the same as true */
    return 0;
}

int mesh_choose(const struct mesh_request *req, struct mesh *out, struct fsdpck_error *err)
{
    *out = (struct mesh){ 1, req->nranks, 0 };
    int rc = check_product(req, err);
    if (!rc)
        rc = check_divisor(req, "dp_replicate_size", req->config->fsdp.dp_replicate_size, err);
    if (!rc)
        rc = check_divisor(req, "dp_shard_size", req->config->fsdp.dp_shard_size, err);
    if (!rc)
        rc = mesh_is_hybrid(req->config->fsdp.strategy) ? hybrid_mesh(req, out, err) : fixed_mesh(req, out, err);
    if (!rc)
        rc = check_within(req->config, err);
    return rc ? rc : choose_kept(req, out, err);
}
