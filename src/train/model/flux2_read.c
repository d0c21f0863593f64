/* SPDX-License-Identifier: Apache-2.0 */
/* FLUX.2's transformer/config.json, which diffusers writes with all arguments of its class. One that is not known here
 * may change the maths, so it is refused. */
#include "model/flux2_read.h"

#include <string.h>

static const char *const known_keys[] = {
    "patch_size",          "in_channels",
    "out_channels",        "num_layers",
    "num_single_layers",   "eps",
    "mlp_ratio",           "rope_theta",
    "guidance_embeds",     "attention_head_dim",
    "axes_dims_rope",      "num_attention_heads",
    "joint_attention_dim", "timestep_guidance_channels",
};

void model_refuse_unknown(struct model_reader *r, const char *const *known, size_t nknown)
{
    const char *key;
    json_t *value;
    json_object_foreach (r->root, key, value) {
        bool found = key[0] == '_' || json_is_null(value);
        for (size_t i = 0; i < nknown && !found; i++)
            found = strcmp(key, known[i]) == 0;
        if (!found)
            MODEL_REFUSE(r, FSDPCK_ERR_UNSUPPORTED, "key '%.60s' is not known, and may change the maths", key);
    }
}

static void read_axes(struct model_reader *r, struct model *m)
{
    json_t *axes = model_get(r, "axes_dims_rope");
    int64_t sum = 0;
    for (size_t i = 0; i < FLUX2_AXES && axes; i++) {
        const int64_t n = json_integer_value(json_array_get(axes, i));
        m->flux2.axes[i] = n >= 0 && n <= 4096 ? n : 1;
        sum += m->flux2.axes[i];
    }
    for (size_t i = 0; i < FLUX2_AXES && !axes; i++)
        sum += m->flux2.axes[i] = 32;
    if (axes && json_array_size(axes) != FLUX2_AXES)
        MODEL_REFUSE(r, FSDPCK_ERR_UNSUPPORTED, "key 'axes_dims_rope': four axes are supported, not %zu",
                     json_array_size(axes));
    for (size_t i = 0; i < FLUX2_AXES; i++)
        if (!r->rc && (sum != m->head_dim || m->flux2.axes[i] % 2))
            MODEL_REFUSE(r, FSDPCK_ERR_FORMAT, "key 'axes_dims_rope': even numbers that add up to %lld are wanted",
                         (long long)m->head_dim);
}

static void check_fixed(struct model_reader *r, const char *key, int64_t absent, int64_t wanted)
{
    const int64_t value = model_get_int(r, key, absent, 0, INT32_MAX);
    if (!r->rc && value != wanted)
        MODEL_REFUSE(r, FSDPCK_ERR_UNSUPPORTED, "key '%s': %lld is not supported, %lld is", key, (long long)value,
                     (long long)wanted);
}

void flux2_read(struct model_reader *r, struct model *m)
{
    const char *name = json_string_value(model_get(r, "_class_name"));
    struct flux2 *f = &m->flux2;
    if (!name || strcmp(name, "Flux2Transformer2DModel") != 0)
        MODEL_REFUSE(r, FSDPCK_ERR_UNSUPPORTED,
                     "_class_name \"%.60s\" is not supported; of diffusers' models Flux2Transformer2DModel is",
                     name ? name : "");
    model_refuse_unknown(r, known_keys, sizeof known_keys / sizeof known_keys[0]);
    m->nhead = m->nkv = model_get_int(r, "num_attention_heads", 48, 1, 1 << 16);
    m->head_dim = model_get_int(r, "attention_head_dim", 128, 1, 1024);
    f->ndouble = model_get_int(r, "num_layers", 8, 1, 2048);
    f->nsingle = model_get_int(r, "num_single_layers", 48, 1, 2048);
    f->nchannel = model_get_int(r, "in_channels", 128, 1, 1 << 16);
    f->text_width = model_get_int(r, "joint_attention_dim", 15360, 1, 1 << 20);
    f->theta = model_get_number(r, r->root, "rope_theta", 2000, 1);
    f->guided = model_get_bool(r, "guidance_embeds", true);
    m->eps = (float)model_get_number(r, r->root, "eps", 1e-6, 0);
    check_fixed(r, "patch_size", 1, 1);
    check_fixed(r, "out_channels", f->nchannel, f->nchannel);
    check_fixed(r, "timestep_guidance_channels", 256, 2 * FLUX2_FREQUENCIES);
    m->hidden = m->nhead * m->head_dim;
    m->inner = (int64_t)((double)m->hidden * model_get_number(r, r->root, "mlp_ratio", 3, 0));
    m->nlayer = f->ndouble + f->nsingle;
    if (!r->rc && (m->inner < 1 || m->hidden > 1 << 20 || m->inner > 1 << 22))
        MODEL_REFUSE(r, FSDPCK_ERR_FORMAT,
                     "keys 'num_attention_heads', 'attention_head_dim' and 'mlp_ratio': a width "
                     "of %lld with an MLP of %lld is not supported",
                     (long long)m->hidden, (long long)m->inner);
    read_axes(r, m);
}
