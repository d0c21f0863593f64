/* SPDX-License-Identifier: Apache-2.0 */
/* Edits config.json among the assets, in memory, and leaves out the files that describe quantized weights. */
#include "hf/assets_edit.h"

#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "hf/config.h"

struct fsdpck_asset_out *fsdpck_assets_config(const struct fsdpck_assets_out *assets)
{
    for (size_t i = 0; i < assets->count; i++)
        if (strcmp(assets->list[i].path, "config.json") == 0)
            return &assets->list[i];
    return NULL;
}

int fsdpck_asset_check_hash(const struct fsdpck_asset_out *a, const struct fsdpck_hash128 *found,
                            struct fsdpck_error *err)
{
    if (!a->check_hash || memcmp(found->bytes, a->hash, sizeof a->hash) == 0)
        return 0;
    return fsdpck_error_set(err, FSDPCK_ERR_DAMAGED, a->from, "its hash is not the one that the checkpoint has for it");
}

bool fsdpck_asset_is_quantization(const char *path)
{
    return strcmp(path, "hf_quant_config.json") == 0 || strcmp(path, "quantize_config.json") == 0 ||
           strcmp(path, "quant_config.json") == 0;
}

/* Moves the asset's text to memory, where it is checked and can change. */
static int load(const struct fsdpck_io *io, struct fsdpck_asset_out *a, struct fsdpck_error *err)
{
    struct fsdpck_hash128 hash;
    if (a->data)
        return 0;
    int rc = fsdpck_read_file(io, a->from, FSDPCK_CONFIG_MAX_NBYTES, &a->data, &a->nbytes, err);
    if (rc)
        return rc;
    fsdpck_hash(a->data, a->nbytes, &hash);
    rc = fsdpck_asset_check_hash(a, &hash, err);
    if (!rc)
        a->check_hash = false;
    return rc;
}

static void replace(struct fsdpck_asset_out *a, char *text)
{
    free(a->data);
    a->data = text;
}

/* For messages. */
static const char *name_of(const struct fsdpck_asset_out *a)
{
    return a->from ? a->from : a->path;
}

/* Its bytes are in data now. */
static void forget_file(struct fsdpck_asset_out *a)
{
    free(a->from);
    a->from = NULL;
}

static int edit_config(const struct fsdpck_io *io, struct fsdpck_asset_out *a, const enum fsdpck_dtype *dtype,
                       bool dequantized, struct fsdpck_error *err)
{
    char *text;
    int rc = load(io, a, err);
    if (!rc && dtype) {
        const char *name = fsdpck_dtype_info(*dtype)->name;
        rc = fsdpck_config_set_dtype(name_of(a), a->data, a->nbytes, name, &text, &a->nbytes, err);
        if (!rc)
            replace(a, text);
    }
    if (!rc && dequantized) {
        rc = fsdpck_config_drop_quantized(name_of(a), a->data, a->nbytes, &text, &a->nbytes, err);
        if (!rc)
            replace(a, text);
    }
    if (!rc)
        forget_file(a);
    return rc;
}

static void leave_out(struct fsdpck_assets_out *assets)
{
    size_t kept = 0;
    for (size_t i = 0; i < assets->count; i++) {
        struct fsdpck_asset_out *a = &assets->list[i];
        if (!fsdpck_asset_is_quantization(a->path)) {
            assets->list[kept++] = *a;
            continue;
        }
        free(a->path);
        free(a->from);
        free(a->data);
    }
    assets->count = kept;
}

int fsdpck_assets_edit(const struct fsdpck_io *io, struct fsdpck_assets_out *assets, const enum fsdpck_dtype *dtype,
                       bool dequantized, struct fsdpck_error *err)
{
    if (dequantized)
        leave_out(assets);
    struct fsdpck_asset_out *config = dtype || dequantized ? fsdpck_assets_config(assets) : NULL;
    return config ? edit_config(io, config, dtype, dequantized, err) : 0;
}

int fsdpck_assets_set_dtype(const struct fsdpck_io *io, struct fsdpck_assets_out *assets, enum fsdpck_dtype dtype,
                            struct fsdpck_error *err)
{
    return fsdpck_assets_edit(io, assets, &dtype, false, err);
}

int fsdpck_assets_set_quantized(const struct fsdpck_io *io, struct fsdpck_assets_out *assets, const char *json,
                                struct fsdpck_error *err)
{
    char *text;
    leave_out(assets);
    struct fsdpck_asset_out *a = fsdpck_assets_config(assets);
    int rc = a ? load(io, a, err) : 0;
    if (rc || !a)
        return rc;
    rc = fsdpck_config_set_quantized(name_of(a), a->data, a->nbytes, json, &text, &a->nbytes, err);
    if (rc)
        return rc;
    replace(a, text);
    forget_file(a);
    return 0;
}
