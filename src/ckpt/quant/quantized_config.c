/* SPDX-License-Identifier: Apache-2.0 */
/* The text of quantization_config, as transformers and compressed-tensors write it. */
#include "quant/quantized_config.h"

#include <string.h>

#include "base/json_write.h"
#include "base/suffix.h"
#include "hf/assets_edit.h"

/* The embedding is no module that a loader quantizes; any other matrix may be one. */
static bool is_listed(const char *name)
{
    return !ends_with(name, "embed_tokens.weight") && !ends_with(name, ".wte.weight") &&
           !ends_with(name, ".wpe.weight");
}

/* A name as the model's own: without the tree that the checkpoint keeps it in. */
static const char *own_name(const struct fsdpck_chosen *c)
{
    const char *tree = c->npath > 1 ? c->path[0].str : NULL;
    size_t n = tree ? strlen(tree) : 0;
    return n && strncmp(c->name, tree, n) == 0 && c->name[n] == '.' ? c->name + n + 1 : c->name;
}

/* ["lm_head", …]: the head of a tied model is no tensor. */
static void add_kept(struct fsdpck_text *out, const struct fsdpck_source *src, const struct fsdpck_selection *selection)
{
    static const char ending[] = ".weight";
    struct fsdpck_text name = { 0 };
    fsdpck_text_printf(out, "[\"lm_head\"");
    for (size_t i = 0; i < selection->ntensors; i++) {
        const char *full = own_name(&selection->tensors[i]);
        if (!fsdpck_quantized_is_kept(src, selection->tensors[i].source) || !is_listed(full) ||
            !ends_with(full, ending) || strcmp(full, "lm_head.weight") == 0)
            continue;
        name.nbytes = 0;
        fsdpck_text_add(&name, full, strlen(full) - strlen(ending));
        fsdpck_text_printf(out, ", ");
        fsdpck_text_json(out, name.data ? name.data : "");
    }
    fsdpck_text_printf(out, "]");
    out->failed |= name.failed;
    fsdpck_text_free(&name);
}

static void add_compressed_tensors(struct fsdpck_text *out, const char *format, const char *weights)
{
    fsdpck_text_printf(
        out,
        "\"quant_method\": \"compressed-tensors\", \"format\": \"%s\", \"quantization_status\": \"compressed\", "
        "\"global_compression_ratio\": null, \"kv_cache_scheme\": null, \"config_groups\": {\"group_0\": "
        "{\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 4, \"type\": \"float\", \"symmetric\": true, %s, "
        "\"dynamic\": false}, \"input_activations\": null, \"output_activations\": null, \"format\": \"%s\"}}, "
        "\"ignore\": ",
        format, weights, format);
}

static void add_method(struct fsdpck_text *out, enum fsdpck_quant_arithmetic to)
{
    switch (to) {
    case FSDPCK_TO_FP8_BLOCK:
        fsdpck_text_printf(out, "\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", \"activation_scheme\": \"dynamic\", "
                                "\"weight_block_size\": [128, 128], \"modules_to_not_convert\": ");
        break;
    case FSDPCK_TO_MXFP4:
        add_compressed_tensors(out, "mxfp4-pack-quantized",
                               "\"strategy\": \"group\", \"group_size\": 32, \"scale_dtype\": \"torch.uint8\"");
        break;
    case FSDPCK_TO_NVFP4:
        add_compressed_tensors(
            out, "nvfp4-pack-quantized",
            "\"strategy\": \"tensor_group\", \"group_size\": 16, \"scale_dtype\": \"torch.float8_e4m3fn\"");
        break;
    case FSDPCK_TO_NF4:
        fsdpck_text_printf(
            out, "\"quant_method\": \"bitsandbytes\", \"_load_in_4bit\": true, \"_load_in_8bit\": false, "
                 "\"load_in_4bit\": true, \"load_in_8bit\": false, \"bnb_4bit_compute_dtype\": \"bfloat16\", "
                 "\"bnb_4bit_quant_storage\": \"uint8\", \"bnb_4bit_quant_type\": \"nf4\", "
                 "\"bnb_4bit_use_double_quant\": false, \"llm_int8_enable_fp32_cpu_offload\": false, "
                 "\"llm_int8_has_fp16_weight\": false, \"llm_int8_threshold\": 6.0, \"llm_int8_skip_modules\": ");
        break;
    default: break; /* forms that are only written where they were read: the config stays */
    }
}

int fsdpck_quantized_config_put(const struct fsdpck_source *src, const struct fsdpck_selection *selection,
                                struct fsdpck_assets_out *assets, struct fsdpck_error *err)
{
    struct fsdpck_text text = { 0 };
    if (!fsdpck_quantized_by_view(src))
        return 0;
    fsdpck_text_printf(&text, "{");
    add_method(&text, fsdpck_quantized_form(src)->to);
    add_kept(&text, src, selection);
    fsdpck_text_printf(&text, "}");
    int rc = fsdpck_text_check(&text, err);
    if (!rc)
        rc = fsdpck_assets_set_quantized(src->io, assets, text.data, err);
    fsdpck_text_free(&text);
    return rc;
}
