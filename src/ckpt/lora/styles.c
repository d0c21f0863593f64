/* SPDX-License-Identifier: Apache-2.0 */
/* The ways to write one adapter: PEFT's folder, the same for vLLM, diffusers' pipeline file, kohya-ss sd-scripts' flat
 * names, ComfyUI's names. They differ in the names of modules and the place of the scaling. Knows no files. */
#include "lora/styles.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lora/flux2.h"

static const char *const style_names[] = { "peft", "diffusers", "kohya", "comfy", "vllm", "peft-fused", "sglang" };

/* ---- names ---- */

/* The models of a pipeline, by the first part of a module's path. kohya, comfy: their prefix for such a module; NULL:
 * they use another name, and would silently skip ours. ComfyUI knows diffusers' names of a UNet only in kohya's
 * spelling, and those of transformers only in diffusers'. own: a part with which the path begins if it lacks the
 * component's name. */
struct component {
    const char *name, *kohya, *comfy;
    const char *own[12];
};
static const struct component components[] = {
    { "unet",
      "lora_unet",
      NULL,
      { "down_blocks", "up_blocks", "mid_block", "conv_in", "conv_out", "time_embedding", "add_embedding", NULL } },
    { "transformer",
      NULL,
      "transformer",
      { "transformer_blocks", "single_transformer_blocks", "x_embedder", "context_embedder", "proj_out", "norm_out",
        "time_text_embed", "time_guidance_embed", "double_stream_modulation_img", "double_stream_modulation_txt",
        "single_stream_modulation", NULL } },
    { "text_encoder", "lora_te", NULL, { "text_model", NULL } },
    { "text_encoder_2", "lora_te2", NULL, { NULL } },
    { "diffusion_model",
      "lora_unet",
      "diffusion_model",
      { "double_blocks", "single_blocks", "joint_blocks", "input_blocks", "middle_block", "output_blocks", "img_in",
        "txt_in", "time_in", "vector_in", "final_layer" } },
};
enum { NCOMPONENTS = sizeof components / sizeof components[0] };

static bool begins_with_part(const char *path, const char *part)
{
    size_t n = strlen(part);
    return strncmp(path, part, n) == 0 && (path[n] == '.' || path[n] == '\0');
}

/* *rest: the path inside the component. */
static const struct component *find_component(const char *path, const char **rest)
{
    for (int i = 0; i < NCOMPONENTS; i++)
        if (begins_with_part(path, components[i].name)) {
            *rest = path + strlen(components[i].name) + (path[strlen(components[i].name)] == '.');
            return &components[i];
        }
    *rest = path;
    for (int i = 0; i < NCOMPONENTS; i++)
        for (int k = 0; k < 12 && components[i].own[k]; k++)
            if (begins_with_part(path, components[i].own[k]))
                return &components[i];
    return NULL;
}

static bool has_second_encoder(const struct fsdpck_lora_adapter *a)
{
    for (size_t i = 0; i < a->modules.count; i++)
        if (begins_with_part(lora_modules(a)[i].path, "text_encoder_2"))
            return true;
    return false;
}

/* Returns the prefix of the path in the style's names, or NULL if there is none. */
static const char *prefix_of(const struct fsdpck_lora_adapter *a, enum fsdpck_lora_style style,
                             const struct component *c)
{
    if (!c)
        return NULL;
    if (style == FSDPCK_LORA_KOHYA) /* SDXL's encoders are numbered from 1 */
        return strcmp(c->name, "text_encoder") == 0 && has_second_encoder(a) ? "lora_te1" : c->kohya;
    return style == FSDPCK_LORA_COMFY ? c->comfy : c->name;
}

static const char *suffix_of(enum fsdpck_lora_style style, const struct fsdpck_lora_module *m,
                             enum fsdpck_lora_part part)
{
    static const char *const peft[] = { ".lora_A.weight", ".lora_B.weight", ".lora_B.bias", ".lora_magnitude_vector",
                                        NULL };
    static const char *const embedding[] = { ".lora_embedding_A", ".lora_embedding_B", NULL, ".lora_magnitude_vector",
                                             NULL };
    static const char *const kohya[] = { ".lora_down.weight", ".lora_up.weight", NULL, ".dora_scale", ".alpha" };
    static const char *const comfy[] = { ".lora_A.weight", ".lora_B.weight", NULL, ".dora_scale", ".alpha" };
    return style == FSDPCK_LORA_KOHYA   ? kohya[part]
           : style == FSDPCK_LORA_COMFY ? comfy[part]
           : m->embedding               ? embedding[part]
                                        : peft[part];
}

static int no_name(const struct fsdpck_lora_adapter *a, enum fsdpck_lora_style style,
                   const struct fsdpck_lora_module *m, const struct component *c, struct fsdpck_error *err)
{
    static const char wrapper[] = "base_model.model.";
    bool wrapped = strncmp(a->selection.tensors[m->a].name, wrapper, strlen(wrapper)) == 0;
    int rc = fsdpck_lora_refuse(a, m->a, FSDPCK_ERR_UNSUPPORTED, err,
                                c ? "style %s has no name for modules of a diffusers '%s'"
                                  : "style %s names modules by their model, and '%s' begins like none of a known one",
                                style_names[style], c ? c->name : m->path);
    if (c)
        fsdpck_error_hint(err, style == FSDPCK_LORA_COMFY
                                   ? "use --style kohya: ComfyUI reads these modules under its names"
                                   : "use --style diffusers, or comfy");
    else
        fsdpck_error_hint(err, "say which it is: --rename %s=transformer. (or unet., text_encoder., diffusion_model.)",
                          wrapped ? wrapper : "");
    return rc;
}

int fsdpck_lora_style_name(struct fsdpck_lora_adapter *a, enum fsdpck_lora_style style,
                           const struct fsdpck_lora_module *m, enum fsdpck_lora_part part, const char **out,
                           struct fsdpck_error *err)
{
    const char *rest = m->wrapper ? m->wrapper : m->path, *prefix = "base_model.model",
               *suffix = suffix_of(style, m, part);
    const struct component *c = lora_style_is_folder(style) ? NULL : find_component(m->path, &rest);
    if (!lora_style_is_folder(style) && !(prefix = prefix_of(a, style, c)))
        return no_name(a, style, m, c, err);
    size_t nbytes = strlen(prefix) + strlen(rest) + strlen(suffix) + 2, at = strlen(prefix) + 1;
    char *text = fsdpck_arena_alloc(&a->arena, nbytes, err);
    if (!text)
        return FSDPCK_ERR_NOMEM;
    bool flat = style == FSDPCK_LORA_KOHYA;
    snprintf(text, nbytes, "%s%c%s%s", prefix, flat ? '_' : '.', rest, suffix);
    for (size_t i = at; flat && i < at + strlen(rest); i++)
        if (text[i] == '.')
            text[i] = '_';
    *out = text;
    return 0;
}

/* ---- losses ---- */

static int refuse_extras(const struct fsdpck_lora_adapter *a, enum fsdpck_lora_style style, struct fsdpck_error *err)
{
    const struct fsdpck_lora_module *m = lora_modules(a);
    if (a->whole.count)
        return fsdpck_lora_refuse(a, lora_whole(a)->position, FSDPCK_ERR_UNSUPPORTED, err,
                                  "style %s has no place for %s", style_names[style],
                                  lora_whole(a)->saved  ? "modules_to_save"
                                  : lora_whole(a)->bias ? "biases"
                                                        : "whole parameters");
    if (a->tokens.count)
        return fsdpck_lora_refuse(a, lora_tokens(a)->position, FSDPCK_ERR_UNSUPPORTED, err,
                                  "style %s has no place for trained tokens", style_names[style]);
    for (size_t i = 0; i < a->modules.count; i++) {
        if (m[i].embedding)
            return fsdpck_lora_refuse(a, m[i].a, FSDPCK_ERR_UNSUPPORTED, err, "style %s has no LoRA for embeddings",
                                      style_names[style]);
        if (m[i].bias >= 0 && style != FSDPCK_LORA_DIFFUSERS)
            return fsdpck_lora_refuse(a, m[i].bias, FSDPCK_ERR_UNSUPPORTED, err,
                                      "style %s has no place for lora_B.bias", style_names[style]);
    }
    return 0;
}

static bool is_empty(const char *json)
{
    return !json || strcmp(json, "{}") == 0 || strcmp(json, "null") == 0;
}

/* Notes parameters that the configuration does not name; PEFT saves resized or adapted embeddings this way. */
static void note_whole(const struct fsdpck_lora_adapter *a, const struct fsdpck_options *opt)
{
    const char *first;
    size_t n = fsdpck_lora_unnamed(a, &first);
    if (n == 1)
        fsdpck_lora_note(opt,
                         "'%s' is a whole parameter: PEFT puts it in place of the base's; vLLM and llama.cpp's "
                         "converter refuse it (merge-lora first)",
                         first);
    else if (n)
        fsdpck_lora_note(opt,
                         "%zu tensors, '%s' the first, are whole parameters: PEFT puts them in place of the base's; "
                         "vLLM and llama.cpp's converter refuse them "
                         "(merge-lora first)",
                         n, first);
}

static void warn_peft(const struct fsdpck_lora_adapter *a, const struct fsdpck_lora_facts *f,
                      const struct fsdpck_options *opt)
{
    note_whole(a, opt);
    if (a->tokens.count)
        fsdpck_lora_note(opt, "trained tokens: vLLM refuses this adapter, llama.cpp's converter too (merge-lora "
                              "first); PEFT knows them from 0.15 on");
    if (f->dora)
        fsdpck_lora_note(opt, "DoRA: vLLM refuses this adapter, llama.cpp's converter too (merge-lora first)");
    if (!is_empty(f->modules_to_save))
        fsdpck_lora_note(opt,
                         "modules_to_save: vLLM refuses this adapter, llama.cpp's converter too (merge-lora first)");
    if (!is_empty(f->alpha_pattern))
        fsdpck_lora_note(opt, "alpha_pattern: llama.cpp, vLLM and PEFT 0.5 ignore it, and would scale those modules "
                              "wrongly (merge-lora first)");
    if (a->config.rslora)
        fsdpck_lora_note(opt, "rsLoRA: llama.cpp ignores use_rslora, and would scale wrongly (merge-lora first); PEFT "
                              "knows it from 0.8 on");
    if (!a->config.doc)
        fsdpck_lora_note(
            opt, "no adapter_config.json was given: what is written has no task_type and no base_model_name_or_path");
}

/* vLLM refuses these, or leaves them out without a word. */
static int refuse_for_vllm(const struct fsdpck_lora_adapter *a, const struct fsdpck_lora_facts *f,
                           struct fsdpck_error *err)
{
    static const char *const keys[] = { "layer_replication", "alora_invocation_tokens", NULL };
    const struct fsdpck_lora_module *m = lora_modules(a);
    const char *what = a->whole.count                     ? "whole parameters"
                       : a->tokens.count                  ? "trained tokens"
                       : f->dora                          ? "DoRA"
                       : a->modules.count && m->bias >= 0 ? "biases of lora_B"
                                                          : NULL;
    for (const char *const *k = keys; a->config.doc && *k && !what; k++)
        what = fsdpck_lora_config_has(&a->config, *k) ? *k : NULL;
    if (!what)
        return 0;
    fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, fsdpck_source_path(a->src), "vLLM does not load adapters with %s",
                     what);
    fsdpck_error_hint(err, "--style peft writes it for PEFT; merge-lora gives weights that every program loads");
    return FSDPCK_ERR_UNSUPPORTED;
}

static int check_experts(const struct fsdpck_lora_adapter *a, enum fsdpck_lora_style style, struct fsdpck_error *err)
{
    if (a->split.turned && (style == FSDPCK_LORA_PEFT || style == FSDPCK_LORA_PEFT_FUSED)) {
        fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, fsdpck_source_path(a->src),
                         "PEFT wrote its experts with inputs for outputs, as it does for Llama-4, and what it would "
                         "make of another order depends on the model");
        fsdpck_error_hint(err, "PEFT loads it as it is; or merge it: fsdpck merge-lora BASE ADAPTER OUT");
        return FSDPCK_ERR_UNSUPPORTED;
    }
    if (!a->split.nexperts || lora_style_is_folder(style))
        return 0;
    fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, fsdpck_source_path(a->src),
                     "style %s does not write adapters of fused experts", style_names[style]);
    fsdpck_error_hint(err,
                      "--style peft and sglang write them, vllm a pair for each expert; or merge it: fsdpck merge-lora "
                      "BASE ADAPTER OUT");
    return FSDPCK_ERR_UNSUPPORTED;
}

int fsdpck_lora_style_check(struct fsdpck_lora_adapter *a, enum fsdpck_lora_style style,
                            const struct fsdpck_lora_facts *facts, const struct fsdpck_options *opt,
                            struct fsdpck_error *err)
{
    int rc = check_experts(a, style, err);
    if (!rc && style == FSDPCK_LORA_VLLM)
        rc = refuse_for_vllm(a, facts, err);
    if (!rc && lora_style_is_folder(style))
        warn_peft(a, facts, opt);
    if (rc || lora_style_is_folder(style))
        return rc;
    rc = refuse_extras(a, style, err);
    if (!rc && style == FSDPCK_LORA_KOHYA && facts->dora)
        fsdpck_lora_note(opt, "DoRA: sd-scripts ignores dora_scale; LyCORIS and ComfyUI read it");
    if (!rc && style == FSDPCK_LORA_COMFY && facts->dora)
        fsdpck_lora_note(opt, "DoRA: a ComfyUI of before 2025 takes dora_scale along the inputs, and gets it wrong");
    for (size_t i = 0; !rc && style == FSDPCK_LORA_DIFFUSERS && i < a->modules.count; i++)
        if (fsdpck_lora_scale(a, &lora_modules(a)[i]) != 1) {
            fsdpck_lora_note(opt, "diffusers before 0.35 and ComfyUI ignore the header's lora_adapter_metadata, and "
                                  "take alpha to be the rank");
            break;
        }
    return rc;
}

/* ---- metadata ---- */

double fsdpck_lora_style_alpha(const struct fsdpck_lora_adapter *a, const struct fsdpck_lora_module *m)
{
    return fsdpck_lora_scale(a, m) * (double)m->r;
}

/* diffusers stores a configuration for each component under the component's name. It reads PEFT's folder of a FLUX.2
 * transformer too, but not its adapter_config.json. */
static int diffusers_metadata(struct fsdpck_lora_adapter *a, const struct fsdpck_lora_facts *facts,
                              struct fsdpck_text *out, struct fsdpck_error *err)
{
    struct fsdpck_text all = { 0 };
    bool any = false;
    int rc = 0;
    for (int c = 0; c < NCOMPONENTS && !rc; c++) {
        const char *rest;
        char prefix[32];
        struct fsdpck_text one = { 0 };
        bool used = false;
        for (size_t i = 0; i < a->modules.count && !used; i++)
            used = find_component(lora_modules(a)[i].path, &rest) == &components[c];
        if (!used)
            continue;
        snprintf(prefix, sizeof prefix, "%s.", components[c].name);
        rc = fsdpck_lora_config_write(&a->config, facts, prefix, &one, err);
        if (!rc) /* members without their braces */
            fsdpck_text_printf(&all, "%s%.*s", any ? "," : "{", (int)(one.nbytes - 2), one.data + 1);
        any = true;
        fsdpck_text_free(&one);
    }
    fsdpck_text_printf(&all, "}");
    fsdpck_text_printf(out, ",\"lora_adapter_metadata\":");
    if (!rc && (rc = fsdpck_text_check(&all, err)) == 0)
        fsdpck_text_json(out, all.data);
    fsdpck_text_free(&all);
    return rc;
}

static void kohya_metadata(const struct fsdpck_lora_adapter *a, const struct fsdpck_lora_facts *facts,
                           struct fsdpck_text *out)
{
    bool same = is_empty(facts->rank_pattern);
    double alpha = fsdpck_lora_style_alpha(a, lora_modules(a));
    if (same)
        fsdpck_text_printf(out, ",\"ss_network_dim\":\"%llu\"", (unsigned long long)facts->r);
    else
        fsdpck_text_printf(out, ",\"ss_network_dim\":\"Dynamic\"");
    if (same && is_empty(facts->alpha_pattern))
        fsdpck_text_printf(out, ",\"ss_network_alpha\":\"%.9g\"", alpha);
    else
        fsdpck_text_printf(out, ",\"ss_network_alpha\":\"Dynamic\"");
    fsdpck_text_printf(out, ",\"ss_network_module\":\"networks.lora\"");
}

int fsdpck_lora_style_metadata(struct fsdpck_lora_adapter *a, enum fsdpck_lora_style style,
                               const struct fsdpck_lora_facts *facts, struct fsdpck_text *out, struct fsdpck_error *err)
{
    const bool states_config =
        style == FSDPCK_LORA_DIFFUSERS || (lora_style_is_folder(style) && fsdpck_lora_is_flux2(a));
    int rc = states_config ? diffusers_metadata(a, facts, out, err) : 0;
    if (style == FSDPCK_LORA_KOHYA)
        kohya_metadata(a, facts, out);
    return rc ? rc : fsdpck_text_check(out, err);
}
