/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this folder share: the parameters that DeepSpeed has laid out in flat partitions, and the tensors
 * of the source that are made of them. Layout: DeepSpeed 0.19, utils/zero_to_fp32.py and runtime/zero. */
#ifndef CKPT_DEEPSPEED_H
#define CKPT_DEEPSPEED_H

#include "torch/deepspeed/set.h"
#include "torch/pt/file.h"

/* What a rank's flat tensors hold of each parameter: kind 0 are the fp32 weights, the others the optimizer's states. */
enum { DS_WEIGHTS = 0, DS_MAX_KINDS = 8 };
enum { DS_MAX_VALUES = 64 }; /* others of a group, as its step: each parameter of the group gets all of them */

/* A tensor of the source, made of a parameter's elements. */
struct ds_target {
    uint32_t tensor; /* ordinal in the catalogue */
    uint32_t kind;
    size_t next; /* in the list of its parameter; SIZE_MAX: the last one */
};

struct ds_param {
    const char *name;
    uint32_t ndim;
    const uint64_t *shape;
    uint64_t nelem;
    size_t group;            /* of the optimizer */
    uint64_t offset;         /* ZeRO-1, 2: of its first element in the group */
    bool frozen;             /* not in the optimizer */
    bool joined;             /* sliced: the shape is that of the whole parameter, which its first file has given */
    enum fsdpck_dtype dtype; /* of the weights; set once their first piece is known */
    size_t targets, shared;  /* the first ones; SIZE_MAX: none */
    uint32_t kinds;          /* universal: bit k: its folder holds kind k; 0: not read yet */
};

/* A name under which modules share a parameter. */
struct ds_shared {
    const char *name;
    size_t next; /* of the same parameter; SIZE_MAX: the last one */
};

struct deepspeed {
    struct fsdpck_pt_reading r;
    struct ds_set set;
    struct fsdpck_arena scratch;
    struct fsdpck_vec params, targets, shared; /* struct ds_param, struct ds_target, struct ds_shared */
    struct fsdpck_names by_name;               /* of params */
    struct fsdpck_names in_module;             /* universal: all names of the module */
    size_t ngroups;
    struct fsdpck_vec group_nelem;   /* uint64_t: elements of each group that one rank holds, by rank 0's file */
    struct fsdpck_vec group_steps;   /* double: the optimizer's steps of each group, by rank 0's file; -1: not stated */
    const char *kinds[DS_MAX_KINDS]; /* (nkinds) keys of the optimizer's states; [DS_WEIGHTS] is not used */
    uint32_t nkinds;
    size_t kind_sets[DS_MAX_KINDS]; /* (nkind_sets) universal: parameters that hold different kinds */
    size_t nkind_sets;
    int64_t steps; /* global_steps of rank 0's file; -1: not stated */
};

/* Whether files lay out the parameters. Those of experts are in partitions of other groups of ranks, which no file
 * describes: of a mixture, only the weights of the module are read. */
static inline bool ds_has_params(const struct deepspeed *d)
{
    return (d->set.nranks && !d->set.nexperts) || d->set.universal;
}
/* Whether the fp32 weights are the only whole ones, so that they are the model too. */
static inline bool ds_master_is_model(const struct deepspeed *d)
{
    return d->set.stage3 || d->set.sliced;
}
static inline struct ds_param *ds_params(const struct deepspeed *d)
{
    return d->params.data;
}

/* ---- flat.c ---- */

/* A flat tensor of the open file. */
struct ds_flat {
    enum fsdpck_dtype dtype;
    uint64_t nelem;
    struct fsdpck_stored_box at; /* of its first element */
};

/* Fails the reading of the open file: `what` is a format for one sentence. */
int fsdpck_ds_fail(struct deepspeed *d, int code, const char *name, const char *what, ...) FSDPCK_PRINTF(4, 5);
/* Finds a dense tensor; name: for messages. */
int fsdpck_ds_dense(struct deepspeed *d, const char *name, fsdpck_node n, struct fsdpck_tensor_node *t,
                    struct ds_flat *out);
/* Finds a dense tensor of one dimension. */
int fsdpck_ds_flat(struct deepspeed *d, const char *name, fsdpck_node n, struct ds_flat *out);
/* Adds a parameter; copies all. */
int fsdpck_ds_add_param(struct deepspeed *d, const char *name, const uint64_t *shape, uint32_t ndim, size_t group,
                        bool frozen);
/* Adds the tensors that are made of a parameter's elements: master.NAME, model.NAME if ds_master_is_model(), and both
 * for each name that shares it; or optim.state.NAME.KEY. */
int fsdpck_ds_add_weights(struct deepspeed *d, size_t param, enum fsdpck_dtype dtype);
int fsdpck_ds_add_state(struct deepspeed *d, size_t param, uint32_t kind);
/* Says that elements [begin, begin + n) of the parameter are those from `from` on of flat. */
int fsdpck_ds_add_range(struct deepspeed *d, const struct ds_param *p, uint32_t kind, uint64_t begin, uint64_t n,
                        const struct ds_flat *flat, uint64_t from);
/* The key of a leaf below "optim.state.NAME": tensors and other values. */
int fsdpck_ds_add_scalar(struct deepspeed *d, const struct ds_param *p, const char *key, fsdpck_node n);

/* Lists a state of the optimizer as kind d->nkinds. */
int fsdpck_ds_add_kind(struct deepspeed *d, const char *key);
/* Keeps the settings of the groups, 'param_groups' of a dict of the open file, if it has any. */
int fsdpck_ds_add_param_groups(struct deepspeed *d, fsdpck_node dict);

/* ---- states.c, partitions.c, universal.c ---- */

/* Reads the model_states file of a rank: what the parameters are, and weights that are stored as tensors. */
int fsdpck_ds_read_states(struct deepspeed *d, uint32_t rank);
/* Reads a file of experts' weights. */
int fsdpck_ds_read_expert(struct deepspeed *d, uint32_t i);
/* Reads the optim_states file of a rank: its partitions. Rank 0 comes first. */
int fsdpck_ds_read_partitions(struct deepspeed *d, uint32_t rank);
/* Reads the folders of all parameters, after the model states. */
int fsdpck_ds_read_universal(struct deepspeed *d);
/* Opens a file of the set; role as for fsdpck_pt_file_open(). */
int fsdpck_ds_open(struct deepspeed *d, const char *name, uint32_t rank);

#endif
