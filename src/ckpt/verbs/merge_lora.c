/* SPDX-License-Identifier: Apache-2.0 */
/* merge-lora: exports or converts the base, and adds an adapter to its values during the transfer. */
#include <fsdpck/base.h>
#include <fsdpck/lora.h>

#include "engine/transfer.h"
#include "hf/quantized.h"
#include "lora/merge.h"
#include "lora/merged_view.h"
#include "lora/requantize.h"
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

/* The transfer has three quarters of the budget: it would ask for its own part alone. */
static int check_memory(const struct fsdpck_source *base, uint64_t factors, const struct fsdpck_options *opt,
                        struct fsdpck_error *err)
{
    const uint64_t least = fsdpck_transfer_least_memory(base);
    if (opt->memory_nbytes >= least)
        return 0;
    return fsdpck_error_set(
        err, FSDPCK_ERR_USAGE, NULL, "a memory budget of %llu bytes is too small; at least %lluMiB are needed",
        (unsigned long long)(opt->memory_nbytes + factors), (unsigned long long)((least * 4 / 3) >> 20) + 1);
}

static int merge_plain(struct fsdpck_source *base, struct fsdpck_lora_adapter *a, uint64_t factors,
                       const struct fsdpck_merge_lora_request *req, const struct fsdpck_options *opt,
                       struct fsdpck_transfer_result *result, struct fsdpck_error *err)
{
    struct fsdpck_lora_merge *merge = NULL;
    int rc = fsdpck_lora_merge_new(base, a, opt, factors, &merge, err);
    if (!rc)
        rc = check_memory(base, factors, opt, err);
    if (!rc)
        rc = write_out(base, req, fsdpck_lora_merge_edit(merge), opt, result, err);
    fsdpck_lora_merge_free(merge);
    return rc;
}

static bool is_quantized(const struct fsdpck_source *src)
{
    for (size_t i = 0; i < src->tensors.count; i++)
        if (fsdpck_quantized_beside(src, &source_tensors(src)[i]))
            return true;
    return false;
}

/* Opens the base a second time, dequantized: the one that is written keeps its form. */
static int open_dequantized(const struct fsdpck_source *base, struct fsdpck_source **out, struct fsdpck_error *err)
{
    struct fsdpck_options quiet = base->opt;
    quiet.note = NULL;
    quiet.progress = NULL;
    int rc = fsdpck_source_open(base->path, fsdpck_source_kind(base), &quiet, out, err);
    return rc ? rc : fsdpck_source_dequantize(*out, FSDPCK_FLOAT32, NULL, err);
}

/* Merges into weights that stay quantized. */
static int merge_quantized(struct fsdpck_source *base, struct fsdpck_lora_adapter *a, uint64_t factors,
                           const struct fsdpck_merge_lora_request *req, const struct fsdpck_options *opt,
                           struct fsdpck_transfer_result *result, struct fsdpck_error *err)
{
    struct fsdpck_source *values = NULL;
    struct fsdpck_lora_merge *merge = NULL;
    if (base->names_chosen) {
        fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, base->path,
                         "has quantized weights, which are merged into under their own names only, not with --names");
        fsdpck_error_hint(err, "--dequantize bf16 merges into their values");
        return err->code;
    }
    int rc = open_dequantized(base, &values, err);
    if (!rc)
        rc = fsdpck_lora_merge_new(values, a, opt, factors, &merge, err);
    if (!rc)
        rc = fsdpck_lora_merged_present(values, fsdpck_lora_merge_edit(merge), err);
    if (rc)
        fsdpck_source_close(values);
    else if (!(rc = fsdpck_lora_requantize(base, values, a->src, err))) {
        rc = check_memory(base, factors, opt, err);
        if (!rc)
            rc = write_out(base, req, NULL, opt, result, err);
        if (!rc)
            fsdpck_lora_requantize_note(base, opt);
        fsdpck_lora_requantize_end(base);
    }
    fsdpck_lora_merge_free(merge);
    return rc;
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
                                              .order = choice->order,
                                              .select = &all };
    struct fsdpck_lora_adapter a = { 0 };
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
        rc = (is_quantized(base) ? merge_quantized : merge_plain)(base, &a, factors, req, &o, result, err);
    fsdpck_lora_adapter_free(&a);
    return rc;
}
