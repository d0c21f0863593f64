/* SPDX-License-Identifier: Apache-2.0 */
/* Collects assets and the frozen base for the index of a save. Knows nothing of tensors. */
#include "verbs/save_beside.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "engine/source_impl.h"

static int add_extra(struct fsdpck_assets_out *assets, const struct fsdpck_save_asset *a, struct fsdpck_error *err)
{
    struct fsdpck_asset_out *more = realloc(assets->list, (assets->count + 1) * sizeof *more);
    if (!more)
        return fsdpck_error_nomem(err, (assets->count + 1) * sizeof *more);
    assets->list = more;
    struct fsdpck_asset_out *out = &more[assets->count++];
    *out = (struct fsdpck_asset_out){ .path = strdup(a->path), .data = malloc(a->nbytes + 1), .nbytes = a->nbytes };
    if (!out->path || !out->data)
        return fsdpck_error_nomem(err, a->nbytes);
    memcpy(out->data, a->data, a->nbytes);
    return 0;
}

int fsdpck_save_assets(const struct fsdpck_save_request *req, const struct fsdpck_options *opt, const char *target,
                       struct fsdpck_assets_out *assets, struct fsdpck_error *err)
{
    struct fsdpck_source none = { .opt = *opt, .io = opt->io, .dequantized = req->dequantized };
    int rc = req->assets ? fsdpck_assets_gather(&none, req->assets, target, false, FSDPCK_FLOAT32, assets, err) : 0;
    for (size_t i = 0; !rc && i < req->nextra_assets; i++)
        rc = add_extra(assets, &req->extra_assets[i], err);
    return rc;
}

int fsdpck_save_base(const struct fsdpck_base *base, const struct fsdpck_io *io, struct fsdpck_arena *arena,
                     struct fsdpck_base *out, struct fsdpck_error *err)
{
    char path[PATH_MAX];
    *out = *base;
    int rc = io->resolve(io->ctx, base->path, path, sizeof path);
    if (rc < 0)
        return fsdpck_error_sys(err, -rc, base->path, "cannot find the frozen base");
    out->path = fsdpck_arena_strndup(arena, path, strlen(path), err);
    return out->path ? 0 : FSDPCK_ERR_NOMEM;
}
