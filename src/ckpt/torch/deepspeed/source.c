/* SPDX-License-Identifier: Apache-2.0 */
/* A DeepSpeed checkpoint as a source. Its trees: model, the weights that the run computes with; master, the fp32
 * weights; optim, the optimizer's states by the names of the parameters. Nothing of it is executed. */
#include <stdlib.h>

#include "base/ioutil.h"
#include "hf/assets.h"
#include "torch/deepspeed/deepspeed.h"
#include "torch/pt/names.h"

static const struct fsdpck_source_ops ops = {
    .kind = "deepspeed",
    .extents = fsdpck_dcp_extents,
    .verify = fsdpck_pt_verify,
    .read_item = fsdpck_pt_read_item,
    .close = fsdpck_pt_close,
};

/* DeepSpeed's own values are named in the pickles, and none is used. */
static const char *const allowed[] = {
    FSDPCK_PT_NAMES,
    "deepspeed.runtime.fp16.loss_scaler LossScaler",
    "deepspeed.runtime.fp16.loss_scaler DynamicLossScaler",
    "deepspeed.runtime.zero.config ZeroStageEnum",
    "deepspeed.utils.tensor_fragment fragment_address",
    "argparse Namespace",
    NULL,
};

int fsdpck_ds_open(struct deepspeed *d, const char *name, uint32_t rank)
{
    const struct fsdpck_pt_rank_file role = { .rank = d->set.nranks ? (int64_t)rank : -1, .nranks = d->set.nranks };
    char *path = fsdpck_path_join(d->set.folder, name, d->r.err);
    int rc = path ? fsdpck_pt_file_open(&d->r, path, name, &role) : FSDPCK_ERR_NOMEM;
    free(path);
    return rc;
}

static int read_all(struct deepspeed *d)
{
    int rc = 0;
    for (uint32_t rank = 0; !rc && rank < d->set.nstates; rank++)
        rc = fsdpck_ds_read_states(d, rank);
    if (!rc && d->set.universal)
        rc = fsdpck_ds_read_universal(d);
    for (uint32_t i = 0; !rc && i < d->set.nexperts; i++)
        rc = fsdpck_ds_read_expert(d, i);
    for (uint32_t rank = 0; !rc && rank < d->set.nranks && ds_has_params(d); rank++)
        rc = fsdpck_ds_read_partitions(d, rank);
    if (!rc && d->set.nexperts && d->r.src->opt.note)
        d->r.src->opt.note(d->r.src->opt.ctx, "only the weights of this mixture of experts are read: its fp32 weights "
                                              "and the optimizer's state are cut by expert parallelism");
    return rc ? rc : fsdpck_pt_finish(&d->r);
}

int fsdpck_open_deepspeed(struct fsdpck_source *src, struct fsdpck_error *err)
{
    struct deepspeed d = { .params = FSDPCK_VEC(struct ds_param),
                           .targets = FSDPCK_VEC(struct ds_target),
                           .shared = FSDPCK_VEC(struct ds_shared),
                           .group_nelem = FSDPCK_VEC(uint64_t),
                           .group_steps = FSDPCK_VEC(double),
                           .nkinds = DS_WEIGHTS + 1 };
    src->ops = &ops;
    int rc = fsdpck_pt_begin(&d.r, src, err);
    d.r.allowed = allowed;
    if (!rc)
        rc = fsdpck_ds_set_list(&d.set, src, err);
    if (!rc)
        rc = read_all(&d);
    if (!rc)
        rc = fsdpck_assets_scan(src, src->path, err);
    src->nranks = d.set.nranks;
    fsdpck_pt_end(&d.r);
    fsdpck_ds_set_free(&d.set);
    fsdpck_names_free(&d.by_name);
    fsdpck_names_free(&d.in_module);
    fsdpck_vec_free(&d.params);
    fsdpck_vec_free(&d.targets);
    fsdpck_vec_free(&d.shared);
    fsdpck_vec_free(&d.group_nelem);
    fsdpck_vec_free(&d.group_steps);
    fsdpck_arena_free(&d.scratch);
    return rc;
}
