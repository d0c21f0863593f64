/* SPDX-License-Identifier: Apache-2.0 */
/* vae/config.json. Keys that are not known may change the maths, so they are refused. */
#include "image/tiles.h"
#include "image/vae.h"

#include <stdlib.h>
#include <string.h>

#include "model/flux2_read.h"

static const char *const known_keys[] = {
    "in_channels",
    "out_channels",
    "down_block_types",
    "up_block_types",
    "block_out_channels",
    "decoder_block_out_channels",
    "layers_per_block",
    "act_fn",
    "latent_channels",
    "norm_num_groups",
    "sample_size",
    "force_upcast",
    "use_quant_conv",
    "use_post_quant_conv",
    "mid_block_add_attention",
    "batch_norm_eps",
    "batch_norm_momentum",
    "patch_size",
};

static void check_types(struct model_reader *r, const char *key, const char *wanted, int64_t nstage)
{
    json_t *types = model_get(r, key), *type;
    size_t i;
    if (types && (int64_t)json_array_size(types) != nstage)
        MODEL_REFUSE(r, FSDPCK_ERR_FORMAT, "key '%s': one entry for each of %lld stages is wanted", key,
                     (long long)nstage);
    json_array_foreach (types, i, type)
        if (!json_is_string(type) || strcmp(json_string_value(type), wanted) != 0)
            MODEL_REFUSE(r, FSDPCK_ERR_UNSUPPORTED, "key '%s': only \"%s\" is supported", key, wanted);
}

static void read_channels(struct model_reader *r, struct vae_config *c, const char *key, int64_t out[VAE_STAGES])
{
    json_t *channels = model_get(r, key);
    if ((int64_t)json_array_size(channels) != c->nstage || c->nstage < 1 || c->nstage > VAE_STAGES) {
        MODEL_REFUSE(r, FSDPCK_ERR_FORMAT, "key '%s': from 1 to %d numbers are wanted", key, VAE_STAGES);
        return;
    }
    for (int64_t i = 0; i < c->nstage; i++) {
        out[i] = json_integer_value(json_array_get(channels, (size_t)i));
        if (out[i] < 1 || out[i] > 8192 || out[i] % c->ngroup)
            MODEL_REFUSE(r, FSDPCK_ERR_FORMAT, "key '%s': multiples of norm_num_groups up to 8192 are wanted", key);
    }
}

static void read_stages(struct model_reader *r, struct vae_config *c)
{
    const char *key = "block_out_channels", *own = "decoder_block_out_channels";
    c->nstage = (int64_t)json_array_size(model_get(r, key));
    read_channels(r, c, key, c->encoder_channels);
    if (!r->rc)
        read_channels(r, c, model_get(r, own) ? own : key, c->channels);
    if (r->rc)
        return;
    check_types(r, "up_block_types", "UpDecoderBlock2D", c->nstage);
    check_types(r, "down_block_types", "DownEncoderBlock2D", c->nstage);
}

static void check_rest(struct model_reader *r)
{
    const char *act = json_string_value(model_get(r, "act_fn"));
    json_t *patch = model_get(r, "patch_size");
    if (act && strcmp(act, "silu") != 0)
        MODEL_REFUSE(r, FSDPCK_ERR_UNSUPPORTED, "key 'act_fn': \"%.40s\" is not supported", act);
    if (patch &&
        (json_integer_value(json_array_get(patch, 0)) != 2 || json_integer_value(json_array_get(patch, 1)) != 2))
        MODEL_REFUSE(r, FSDPCK_ERR_UNSUPPORTED, "key 'patch_size': only [2, 2] is supported");
    if (!model_get_bool(r, "mid_block_add_attention", true))
        MODEL_REFUSE(r, FSDPCK_ERR_UNSUPPORTED, "key 'mid_block_add_attention': only true is supported");
    if (model_get_int(r, "out_channels", 3, 0, INT32_MAX) != 3 || model_get_int(r, "in_channels", 3, 0, INT32_MAX) != 3)
        MODEL_REFUSE(r, FSDPCK_ERR_UNSUPPORTED, "keys 'in_channels' and 'out_channels': only 3 is supported");
}

static int64_t unit_of(const struct vae_config *c)
{
    return (int64_t)2 << (c->nstage - 1);
}

/* Tiles overlap by a quarter, which must be whole latent pixels. */
static int64_t read_tile(struct model_reader *r, const struct vae_config *c)
{
    const int64_t side = model_get_int(r, "sample_size", 1024, 1, INT32_MAX);
    if (side % (4 * unit_of(c)))
        MODEL_REFUSE(
            r, FSDPCK_ERR_UNSUPPORTED,
            "key 'sample_size': tiles of %lld pixels cannot overlap by a quarter: a multiple of %lld is wanted",
            (long long)side, (long long)(4 * unit_of(c)));
    return side;
}

static int read_config(const struct pipeline *p, bool tiled, struct vae_config *c, struct fsdpck_error *err)
{
    struct model_reader r;
    if (!pipeline_json(p, "vae", "config.json", "AutoencoderKLFlux2", &r, err)) {
        model_refuse_unknown(&r, known_keys, sizeof known_keys / sizeof known_keys[0]);
        c->nlatent = model_get_int(&r, "latent_channels", 32, 1, 1024);
        c->nresnet = model_get_int(&r, "layers_per_block", 2, 1, VAE_RESNETS - 1);
        c->ngroup = model_get_int(&r, "norm_num_groups", 32, 1, 8192);
        c->quant = model_get_bool(&r, "use_quant_conv", true);
        c->post_quant = model_get_bool(&r, "use_post_quant_conv", true);
        c->norm_eps = model_get_number(&r, r.root, "batch_norm_eps", 1e-4, 0);
        if (!r.rc)
            read_stages(&r, c);
        if (!r.rc && tiled)
            c->tile = read_tile(&r, c);
        check_rest(&r);
    }
    json_decref(r.root);
    return r.rc;
}

static int open_weights(const struct pipeline *p, const struct fsdpck_options *opt, struct fsdpck_source **out,
                        struct fsdpck_error *err)
{
    char path[PIPELINE_PATH];
    int rc = pipeline_part(p, "vae", path, err);
    return rc ? rc : fsdpck_source_open(path, NULL, opt, out, err);
}

int vae_open(const struct pipeline *p, bool encoder, enum kern_dtype dtype, bool tiled,
             const struct fsdpck_options *opt, struct vae **out, struct fsdpck_error *err)
{
    struct vae *v = calloc(1, sizeof *v);
    struct fsdpck_source *src = NULL;
    *out = NULL;
    if (!v)
        return fsdpck_error_nomem(err, sizeof *v);
    v->dtype = dtype;
    int rc = read_config(p, tiled, &v->config, err);
    if (!rc)
        rc = open_weights(p, opt, &src, err);
    if (!rc)
        rc = vae_load(v, encoder, src, err);
    fsdpck_source_close(src);
    if (rc)
        vae_close(v);
    else
        *out = v;
    return rc;
}

int64_t vae_unit(const struct vae *v)
{
    return unit_of(&v->config);
}

static uint64_t count_weights(const struct fsdpck_source *src, const char *half, enum kern_dtype dtype)
{
    uint64_t nelem = 0;
    for (size_t i = 0; i < fsdpck_source_ntensors(src); i++) {
        const struct fsdpck_tensor *t = fsdpck_source_tensor(src, i);
        nelem += strncmp(t->name, half, strlen(half)) == 0 ? t->nelem : 0;
    }
    return nelem * (uint64_t)kern_dtype_bytes(dtype);
}

/* For pixels: of the whole picture, or of the largest tile with what joins tiles. */
static uint64_t buffers_of(const struct vae_config *c, const int64_t *channels, enum kern_dtype dtype, int64_t height,
                           int64_t width)
{
    const int64_t tile = vae_tile(c, height, width);
    const struct tiles tiles = { .height = height, .width = width, .tile_in = tile, .tile_out = tile, .nchannel = 3 };
    if (!tile)
        return vae_buffers(height, width, dtype, c, channels);
    return tiles_nbytes(&tiles) +
           vae_buffers(height < tile ? height : tile, width < tile ? width : tile, dtype, c, channels);
}

int vae_count(const struct pipeline *p, bool encoder, enum kern_dtype dtype, bool tiled,
              const struct fsdpck_options *opt, int64_t height, int64_t width, uint64_t *nbytes,
              struct fsdpck_error *err)
{
    struct vae_config c = { 0 };
    struct fsdpck_source *src = NULL;
    *nbytes = 0;
    int rc = read_config(p, tiled, &c, err);
    if (!rc)
        rc = open_weights(p, opt, &src, err);
    if (!rc)
        *nbytes =
            count_weights(src, encoder ? "encoder." : "decoder.", dtype) +
            buffers_of(&c, encoder ? c.encoder_channels : c.channels, dtype, unit_of(&c) * height, unit_of(&c) * width);
    fsdpck_source_close(src);
    return rc;
}
