/* SPDX-License-Identifier: Apache-2.0 */
/* --from, --names and --no-verify, and opening a typed source with them. It must not know the verb. */
#include "source_arg.h"

#include <limits.h>
#include <stdio.h>

#include "common/model_path.h"
#include "select_arg.h"

#define FROM \
    { \
        .name = "from", .type = OPTION_CHOICE, .offset = offsetof(struct source_args, from), \
        .value = "safetensors|hf|dcp|fsdpck|pt|ranks|deepspeed|vllm-sharded", .help = "kind of SOURCE", \
        .computed = "detected from its content" \
    }

const struct option source_options[SOURCE_NOPTIONS] = { FROM };

const struct option read_options[READ_NOPTIONS] = {
    FROM,
    { .name = "no-verify",
      .type = OPTION_FLAG,
      .offset = offsetof(struct source_args, no_verify),
      .help = "do not check hashes and CRC-32s, to rescue what is left of a damaged file" },
};

const struct option names_options[NAMES_NOPTIONS + 1] = {
    { .name = "names",
      .type = OPTION_CHOICE,
      .offset = offsetof(struct source_args, names),
      .value = "hf|transformers|vllm|torchtitan|megatron",
      .help = "name and lay out the weights as models are published (hf), as transformers holds them (experts fused), "
              "as vllm does (q, k and v joined too), as torchtitan does, or as Megatron-core does" },
    { .name = "assets",
      .type = OPTION_STRING,
      .offset = offsetof(struct source_args, config),
      .value = "FOLDER",
      .help = "folder of the model's config.json, where the source has none",
      .needs = "names|dequantize" },
};

const struct option complete_options[COMPLETE_NOPTIONS] = {
    { .name = "complete-from",
      .type = OPTION_STRING,
      .offset = offsetof(struct source_args, complete),
      .value = "BASE",
      .help = "take weights that are missing from BASE, the model that this one was made from" },
};

const struct option values_options[VALUES_NOPTIONS + QUANTIZE_NOPTIONS] = {
    { .name = "dequantize",
      .type = OPTION_CHOICE,
      .offset = offsetof(struct source_args, dequantize),
      .value = "bf16|fp16|fp32",
      .also = "bfloat16|float16|float32|torch.bfloat16|torch.float16|torch.float32",
      .help = "take weights that are stored quantized as this dtype, and nothing of their codes and scales" },
    { .name = "quantize",
      .type = OPTION_CHOICE,
      .offset = offsetof(struct source_args, quantize),
      .value = "fp8-block|mxfp4|nvfp4|nf4",
      .help = "quantize weights, all matrices but embeddings, heads, norms and routers, as the form's own library does",
      .excludes = "dtype" },
    { .name = "keep",
      .type = OPTION_LIST,
      .offset = offsetof(struct source_args, keep),
      .value = "GLOB",
      .help = "leave these weights as they are too (comma-separated; may be repeated)",
      .needs = "quantize" },
};

void source_arg_blame(const struct source_args *args, struct fsdpck_error *err)
{
    if (args->from)
        fsdpck_error_hint(err, "--from says that it is of kind '%s'; without --from, its content says", args->from);
}

/* The note names the source, because some verbs open several. */
static void note_no_verify(const char *typed, const struct fsdpck_options *opt)
{
    char line[600];
    snprintf(line, sizeof line, "--no-verify: tensors of %.500s are read without checking them", typed);
    opt->note(opt->ctx, line);
}

/* BASE gets the same names and values as what it completes. */
static int complete(struct fsdpck_source *src, const struct source_args *args, const struct fsdpck_options *opt,
                    struct fsdpck_error *err)
{
    const struct source_args like = { .names = args->names,
                                      .dequantize = args->dequantize,
                                      .no_verify = args->no_verify };
    struct fsdpck_source *base;
    int rc = source_arg_open(args->complete, &like, opt, &base, err);
    if (!rc)
        return fsdpck_source_complete(src, base, err);
    fsdpck_source_close(base);
    return rc;
}

int source_arg_present(struct fsdpck_source *src, const struct source_args *args, const struct fsdpck_options *opt,
                       struct fsdpck_error *err)
{
    enum fsdpck_dtype dtype;
    int rc = 0;
    if (args->dequantize && dtype_arg_parse(args->dequantize, &dtype))
        rc = fsdpck_source_dequantize(src, dtype, args->config, err);
    if (!rc && args->names)
        rc = fsdpck_source_set_names(src, args->names, args->config, err);
    if (!rc && args->complete)
        rc = complete(src, args, opt, err);
    if (!rc && args->quantize)
        rc = fsdpck_source_quantize(src, args->quantize, (const char *const *)args->keep.at, args->keep.count, err);
    return rc;
}

int source_arg_open(const char *typed, const struct source_args *args, const struct fsdpck_options *opt,
                    struct fsdpck_source **out, struct fsdpck_error *err)
{
    char path[PATH_MAX];
    struct fsdpck_options with = *opt;
    *out = NULL;
    with.no_verify = args->no_verify;
    int rc = model_path_resolve(typed, path, sizeof path, err);
    if (!rc)
        rc = fsdpck_source_open(path, args->from, &with, out, err);
    if (rc)
        source_arg_blame(args, err);
    else if (args->no_verify && opt->note)
        note_no_verify(typed, opt);
    return rc ? rc : source_arg_present(*out, args, opt, err);
}
