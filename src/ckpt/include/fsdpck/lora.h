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
    double alpha;        /* lora_alpha, where there is no adapter_config.json */
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
 * is read once more, unless it knows its contents. */
FSDPCK_API int fsdpck_merge_lora(struct fsdpck_source *base, struct fsdpck_source *adapter, const struct fsdpck_merge_lora_request *req,
                                 const struct fsdpck_options *opt, struct fsdpck_transfer_result *result, struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif
#endif
