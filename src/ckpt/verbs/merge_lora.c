/* SPDX-License-Identifier: Apache-2.0 */
/* merge-lora: exports or converts the base, and adds an adapter to its values during the transfer. */
#include <fsdpck/base.h>
#include <fsdpck/lora.h>

#include "lora/merge.h"
#include "verbs/export_with.h"

#define MEMORY_MIN_NBYTES (16ull << 20)

static int write_out(struct fsdpck_source *base, const struct fsdpck_merge_lora_request *req,
                     const struct fsdpck_edit *edit, const struct fsdpck_options *opt,
                     struct fsdpck_transfer_result *result, struct fsdpck_error *err)
{
    const struct fsdpck_export_with with = { .edit = edit };
    const struct fsdpck_export_request export = { .out = req->out,
                                                  .max_shard_nbytes = req->max_shard_nbytes,
                                                  .select = req->select,
                                                  .assets = req->assets,
                                                  .force = req->force };
    if (!req->sharded)
        return fsdpck_export_with(base, &export, &with, opt, result, err);
    struct fsdpck_convert_request convert = *req->sharded;
    convert.out = req->out;
    convert.select = req->select;
    convert.assets = req->assets;
    convert.force = req->force;
    return fsdpck_convert_with(base, &convert, edit, opt, result, err);
}

int fsdpck_merge_lora(struct fsdpck_source *base, struct fsdpck_source *adapter,
                      const struct fsdpck_merge_lora_request *req, const struct fsdpck_options *opt,
                      struct fsdpck_transfer_result *result, struct fsdpck_error *err)
{
    static const struct fsdpck_select all;
    struct fsdpck_options o = fsdpck_source_options(base, opt);
    const struct fsdpck_lora_choice *choice = &req->choice;
    const struct fsdpck_lora_request want = { .name = choice->adapter,
                                              .config = choice->config,
                                              .has_alpha = choice->has_alpha,
                                              .alpha = choice->alpha,
                                              .select = &all };
    struct fsdpck_lora_adapter a = { 0 };
    struct fsdpck_lora_merge *merge = NULL;
    struct fsdpck_error own = { 0 };
    uint64_t factors = o.memory_nbytes / 4;
    err = err ? err : &own;
    if (o.memory_nbytes < MEMORY_MIN_NBYTES)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                "a memory budget of %llu bytes is too small; at least 16MiB are needed",
                                (unsigned long long)o.memory_nbytes);
    o.memory_nbytes -= factors;
    int rc = fsdpck_lora_adapter_open(&a, adapter, &want, err);
    if (!rc)
        rc = fsdpck_base_check(adapter, base, false, err);
    if (!rc)
        rc = fsdpck_lora_merge_new(base, &a, &o, factors, &merge, err);
    if (!rc)
        rc = write_out(base, req, fsdpck_lora_merge_edit(merge), &o, result, err);
    fsdpck_lora_merge_free(merge);
    fsdpck_lora_adapter_free(&a);
    return rc;
}
