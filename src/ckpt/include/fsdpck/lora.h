/* SPDX-License-Identifier: Apache-2.0 */
/* Exports LoRA adapters from any source, and merges them into the weights of a base: `fsdpck export-lora` and `fsdpck
 * merge-lora`. */
#ifndef FSDPCK_LORA_H
#define FSDPCK_LORA_H

#include <fsdpck/convert.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where the expert's number runs in lora_B of fused experts, [out, r * experts]: the shapes do not tell. */
enum fsdpck_lora_expert_order {
    FSDPCK_LORA_EXPERTS_UNSTATED, /* fastest, as PEFT writes it, if the configuration states a peft_version; else
                                   * refused
                                   */
    FSDPCK_LORA_EXPERTS_FASTEST,
    FSDPCK_LORA_EXPERTS_SLOWEST, /* as Unsloth wrote it until September 2026 */
};

/* Selects an adapter of a source and its scaling. All zero: the only adapter, scaled by the adapter_config.json among
 * the source's assets. */
struct fsdpck_lora_choice {
    const char *adapter; /* name, if the source has several; or NULL */
    const char *config;  /* path of its adapter_config.json, or NULL: the source's own */
    bool has_alpha;
    double alpha; /* lora_alpha, if there is no adapter_config.json; refused if an adapter_config.json contradicts it */
    enum fsdpck_lora_expert_order order; /* of fused experts */
};

enum fsdpck_lora_style {
    FSDPCK_LORA_PEFT,       /* folder: adapter_model.safetensors, adapter_config.json; fused experts as in PEFT_FUSED */
    FSDPCK_LORA_DIFFUSERS,  /* folder: pytorch_lora_weights.safetensors; or one file */
    FSDPCK_LORA_KOHYA,      /* one file: lora_unet_….lora_down.weight, .alpha */
    FSDPCK_LORA_COMFY,      /* one file: diffusion_model.….lora_A.weight, .alpha; FLUX.2: the scaling in B */
    FSDPCK_LORA_VLLM,       /* folder as of PEFT, with a pair of matrices for each expert */
    FSDPCK_LORA_PEFT_FUSED, /* folder as of PEFT 0.19.1 and later, with one pair for all experts (target_parameters) */
    FSDPCK_LORA_SGLANG      /* folder as of PEFT, with one pair in three dimensions for all experts */
};

struct fsdpck_export_lora_request {
    const char *out;
    enum fsdpck_lora_style style;
    struct fsdpck_lora_choice choice;
    const char *base; /* FSDPCK_LORA_VLLM, fused experts: folder of the model, whose config.json names the family; or
                         NULL */
    struct fsdpck_select select; /* tree NULL: as fsdpck_export(); rename: applies before names are parsed */
    bool force;
};

#define FSDPCK_LORA_FUSED_VERSION "0.19.1" /* of PEFT, whose form of fused experts all later ones have */
/* Returns whether this release of PEFT, before that, swapped inputs and outputs of fused experts. */
FSDPCK_API bool fsdpck_lora_writer_swaps(const char *release);

/* Checks that a caller which reads an adapter itself has used every tensor of it. used: (fsdpck_source_ntensors(src))
 * the tensors that it read. An unused tensor of the source's model tree may belong to another adapter, or to the frozen
 * model in a training checkpoint: opt->note gives their number. Any other unused tensor is FSDPCK_ERR_UNSUPPORTED,
 * which names it. adapter: as in struct fsdpck_lora_choice. Reads names only. */
FSDPCK_API int fsdpck_lora_check_used(struct fsdpck_source *src, const char *adapter, const bool *used,
                                      const struct fsdpck_options *opt, struct fsdpck_error *err);

/* Opens the adapter of a FLUX.2 transformer in one safetensors file, and presents it as PEFT has it: modules have
 * diffusers' paths ("base_model.model.transformer_blocks.0.attn.to_q.lora_A.weight"), and *config, malloc'ed, is the
 * text of its adapter_config.json. Files are those of diffusers' save_lora_weights(), ai-toolkit and ComfyUI
 * ("transformer.", "diffusion_model.") and of sd-scripts ("lora_unet_"). The scaling is that of the header's
 * lora_adapter_metadata or of the alpha beside each module; without either, alpha is the rank, as these programs take
 * it. Where queries, keys and values are one layer, the three share its A. Tensors of another kind are
 * FSDPCK_ERR_UNSUPPORTED. */
FSDPCK_API int fsdpck_lora_open_file(const char *path, const struct fsdpck_options *opt, struct fsdpck_source **out,
                                     char **config, struct fsdpck_error *err);

/* Gathers an adapter from any sharding and writes it. Reads metadata and the adapter's bytes only. Returns
 * FSDPCK_ERR_FORMAT, _MISSING or _UNSUPPORTED for an A without B, ranks or shapes that do not fit, NaN or infinity, a
 * configuration that contradicts the tensors, and tensors that the style cannot hold. Returns FSDPCK_ERR_USAGE if the
 * adapter or its scaling is ambiguous. Notes report a B of zeros, modules that only some layers have, and tensors that
 * consumers will ignore. */
FSDPCK_API int fsdpck_export_lora(struct fsdpck_source *src, const struct fsdpck_export_lora_request *req,
                                  const struct fsdpck_options *opt, struct fsdpck_transfer_result *result,
                                  struct fsdpck_error *err);

struct fsdpck_merge_lora_request {
    const char *out;
    struct fsdpck_lora_choice choice; /* of the adapter source */
    struct fsdpck_select select;      /* of the base */
    uint64_t max_shard_nbytes;        /* as in fsdpck_export_request */
    /* NULL: write a Hugging Face folder or file. Else write a sharded checkpoint as this request says; its out, select,
     * assets and force are ignored. */
    const struct fsdpck_convert_request *sharded;
    const char *assets;
    bool force;
};

/* Computes base + scale * B * A in float32 and rounds it once to the output's dtype (to nearest, ties to even). DoRA,
 * rsLoRA, embeddings, convolutions, biases and modules_to_save are merged as PEFT's merge_and_unload() does. The merge
 * streams: it needs buffers of at most opt->memory_nbytes and reads each byte of the base once (twice for DoRA
 * modules). If the adapter's source names its base (fsdpck/base.h), or has a frozen model beside the adapter, `base` is
 * compared with that first. The comparison reads every byte of the base once more, unless the base has content ids.
 * Every other tensor of the adapter's source is used as PEFT does when it loads the file: a whole parameter replaces
 * the base's, trained tokens replace rows. A tensor that the base lacks, or has in another shape, is an error that
 * names it. */
FSDPCK_API int fsdpck_merge_lora(struct fsdpck_source *base, struct fsdpck_source *adapter,
                                 const struct fsdpck_merge_lora_request *req, const struct fsdpck_options *opt,
                                 struct fsdpck_transfer_result *result, struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif
#endif
