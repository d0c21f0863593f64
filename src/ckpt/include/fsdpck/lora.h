/* SPDX-License-Identifier: Apache-2.0 */
/* LoRA adapters out of any source, and into the weights of a base: `fsdpck export-lora` and `fsdpck merge-lora`. */
#ifndef FSDPCK_LORA_H
#define FSDPCK_LORA_H

#include <fsdpck/convert.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Which adapter of a source, and how it is scaled. Zero-initialise: the only one, as the adapter_config.json among the source's assets says. */
struct fsdpck_lora_choice {
    const char *adapter; /* name of one of several, or NULL */
    const char *config;  /* path of its adapter_config.json, or NULL: the source's own */
    bool has_alpha;
    double alpha;        /* lora_alpha, where there is no adapter_config.json; refused where there is one that says something else */
};

enum fsdpck_lora_style {
    FSDPCK_LORA_PEFT,      /* folder: adapter_model.safetensors, adapter_config.json */
    FSDPCK_LORA_DIFFUSERS, /* folder: pytorch_lora_weights.safetensors; or one file */
    FSDPCK_LORA_KOHYA,     /* one file: lora_unet_….lora_down.weight, .alpha */
    FSDPCK_LORA_COMFY      /* one file: diffusion_model.….lora_A.weight, .alpha */
};

struct fsdpck_export_lora_request {
    const char *out;
    enum fsdpck_lora_style style;
    struct fsdpck_lora_choice choice;
    struct fsdpck_select select; /* tree NULL: as fsdpck_export(); rename: before names are understood */
    bool force;
};

/* The account of an adapter's tensors, for callers that read an adapter themselves. used: (fsdpck_source_ntensors(src)) the tensors that it read. Of the source's model
 * tree, the others may be another adapter's, or the frozen model's that lies beside an adapter in a training checkpoint: opt->note says how many. Any
 * other is FSDPCK_ERR_UNSUPPORTED, by its name. adapter: as in struct fsdpck_lora_choice. Reads names only. */
FSDPCK_API int fsdpck_lora_account(struct fsdpck_source *src, const char *adapter, const bool *used, const struct fsdpck_options *opt,
                                   struct fsdpck_error *err);

/* Gathers an adapter from whatever sharding and writes it. Reads metadata and the bytes of what it writes. FSDPCK_ERR_FORMAT, _MISSING or
 * _UNSUPPORTED: A without B, ranks and shapes that do not fit, NaN or infinity, a configuration that contradicts the tensors, what the style cannot
 * hold. FSDPCK_ERR_USAGE: which adapter, or its scaling, is not said. Notes tell of B that is all zero, layers that lack what others have, and
 * consumers that will ignore something. */
FSDPCK_API int fsdpck_export_lora(struct fsdpck_source *src, const struct fsdpck_export_lora_request *req, const struct fsdpck_options *opt,
                                  struct fsdpck_transfer_result *result, struct fsdpck_error *err);

struct fsdpck_merge_lora_request {
    const char *out;
    struct fsdpck_lora_choice choice; /* of the adapter source */
    struct fsdpck_select select;      /* of the base */
    uint64_t max_shard_nbytes;        /* as in fsdpck_export_request */
    /* NULL: a Hugging Face folder or file. Else a sharded checkpoint as this asks for; its out, select, assets and force are not looked at. */
    const struct fsdpck_convert_request *sharded;
    const char *assets;
    bool force;
};

/* base + scale * B * A in float32, rounded once to the output's dtype (to nearest, ties to even); DoRA, rsLoRA, embeddings, convolutions, biases and
 * modules_to_save as PEFT's merge_and_unload() has them. Streams: at most opt->memory_nbytes of buffers, each byte of the base read once (those of
 * DoRA modules twice). Where the adapter's source names the base that it belongs to (fsdpck/base.h), `base` is held against that before: every byte of it
 * is read once more, unless it knows its contents. So is the frozen model that lies beside the adapter in a training checkpoint. Every other tensor of the
 * adapter's source is used as PEFT would where it loads the file: whole parameters replace the base's, trained tokens their rows. What has
 * no place in the base, or another shape, is refused by its name. */
FSDPCK_API int fsdpck_merge_lora(struct fsdpck_source *base, struct fsdpck_source *adapter, const struct fsdpck_merge_lora_request *req,
                                 const struct fsdpck_options *opt, struct fsdpck_transfer_result *result, struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif
#endif
