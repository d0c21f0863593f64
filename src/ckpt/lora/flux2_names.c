/* SPDX-License-Identifier: Apache-2.0 */
#include "lora/flux2_names.h"

#include <stdio.h>
#include <string.h>

#include "hf/name_pattern.h"

static const struct fsdpck_flux2_naming in_double[] = {
    { "attn.to_q", "img_attn.qkv", 0, FSDPCK_FLUX2_PARTS, false },
    { "attn.to_k", "img_attn.qkv", 1, FSDPCK_FLUX2_PARTS, false },
    { "attn.to_v", "img_attn.qkv", 2, FSDPCK_FLUX2_PARTS, false },
    { "attn.add_q_proj", "txt_attn.qkv", 0, FSDPCK_FLUX2_PARTS, false },
    { "attn.add_k_proj", "txt_attn.qkv", 1, FSDPCK_FLUX2_PARTS, false },
    { "attn.add_v_proj", "txt_attn.qkv", 2, FSDPCK_FLUX2_PARTS, false },
    { "attn.to_out.0", "img_attn.proj", 0, 1, false },
    { "attn.to_add_out", "txt_attn.proj", 0, 1, false },
    { "ff.linear_in", "img_mlp.0", 0, 1, false },
    { "ff.linear_out", "img_mlp.2", 0, 1, false },
    { "ff_context.linear_in", "txt_mlp.0", 0, 1, false },
    { "ff_context.linear_out", "txt_mlp.2", 0, 1, false }
};
static const struct fsdpck_flux2_naming in_single[] = { { "attn.to_qkv_mlp_proj", "linear1", 0, 1, false },
                                                        { "attn.to_out", "linear2", 0, 1, false } };
static const struct fsdpck_flux2_naming outside[] = {
    { "x_embedder", "img_in", 0, 1, false },
    { "context_embedder", "txt_in", 0, 1, false },
    { "time_guidance_embed.timestep_embedder.linear_1", "time_in.in_layer", 0, 1, false },
    { "time_guidance_embed.timestep_embedder.linear_2", "time_in.out_layer", 0, 1, false },
    { "time_guidance_embed.guidance_embedder.linear_1", "guidance_in.in_layer", 0, 1, false },
    { "time_guidance_embed.guidance_embedder.linear_2", "guidance_in.out_layer", 0, 1, false },
    { "double_stream_modulation_img.linear", "double_stream_modulation_img.lin", 0, 1, false },
    { "double_stream_modulation_txt.linear", "double_stream_modulation_txt.lin", 0, 1, false },
    { "single_stream_modulation.linear", "single_stream_modulation.lin", 0, 1, false },
    { "proj_out", "final_layer.linear", 0, 1, false },
    { "norm_out.linear", "final_layer.adaLN_modulation.1", 0, 1, true }
};

static const struct {
    const char *before, *native;
    const struct fsdpck_flux2_naming *list;
    size_t n;
} places[] = { { "transformer_blocks.", "double_blocks.", in_double, sizeof in_double / sizeof *in_double },
               { "single_transformer_blocks.", "single_blocks.", in_single, sizeof in_single / sizeof *in_single },
               { "", "", outside, sizeof outside / sizeof *outside } };

const struct fsdpck_flux2_naming *fsdpck_flux2_native(const char *path, char *native, size_t nbytes)
{
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const size_t n = strlen(places[i].before);
        uint64_t block = 0;
        const char *rest = strncmp(path, places[i].before, n) ? NULL : path + n, *number = rest;
        if (rest && n && (rest = fsdpck_name_index(rest, &block)) && *rest++ != '.')
            rest = NULL;
        for (size_t k = 0; rest && k < places[i].n; k++)
            if (strcmp(rest, places[i].list[k].name) == 0) {
                snprintf(native, nbytes, "%s%.*s%s", places[i].native, (int)(rest - number), number,
                         places[i].list[k].native);
                return &places[i].list[k];
            }
    }
    return NULL;
}

/* The rest of a text that begins with `name`, where "_" may stand for "."; NULL: it does not begin so. */
static const char *after(const char *text, const char *name)
{
    for (; *name; name++, text++)
        if (*text != *name && !(*name == '.' && *text == '_'))
            return NULL;
    return text;
}

const struct fsdpck_flux2_naming *fsdpck_flux2_module(const char *native, unsigned part, char *path, size_t nbytes)
{
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        uint64_t block = 0;
        const char *number = after(native, places[i].native), *rest = number, *end;
        const bool numbered = *places[i].native;
        if (rest && numbered && (rest = fsdpck_name_index(rest, &block)) && !(rest = after(rest, ".")))
            continue;
        for (size_t k = 0; rest && k < places[i].n; k++) {
            const struct fsdpck_flux2_naming *x = &places[i].list[k];
            if (x->part != part || !(end = after(rest, x->native)) || *end)
                continue;
            snprintf(path, nbytes, "%s%.*s%s%s", places[i].before, numbered ? (int)(rest - number) - 1 : 0, number,
                     numbered ? "." : "", x->name);
            return x;
        }
    }
    return NULL;
}
