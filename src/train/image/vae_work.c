/* SPDX-License-Identifier: Apache-2.0 */
#include "image/vae_work.h"

#include <fsdpck/base.h>
#include <string.h>
#include <train/image.h>

#include "rank/device.h"

static int check(const struct vae *v, const struct pipeline *p, int64_t nchannel, struct fsdpck_error *err)
{
    const int64_t unit = vae_unit(v), mine = 4 * v->config.nlatent;
    if (unit == IMAGE_UNIT && mine == nchannel)
        return 0;
    return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, p->folder,
                            "the vae and the transformer do not fit: a latent pixel of %lld pixels and %lld channels, "
                            "not %d and %lld",
                            (long long)unit, (long long)mine, IMAGE_UNIT, (long long)nchannel);
}

enum kern_dtype vae_work_dtype(const struct sampler_options *opt)
{
    return opt->dtype && strcmp(opt->dtype, "fp32") == 0 ? KERN_F32 : KERN_BF16;
}

static int start(struct vae_work *w, const struct sampler_options *opt, uint32_t local, int *index,
                 struct fsdpck_error *err)
{
    char message[KERN_MESSAGE_BYTES] = "no threads";
    struct rank_device where;
    int rc = device_find(opt->device, opt->module, local, &where, err);
    if (rc)
        return rc;
    w->device = where.device;
    w->pool = kern_pool_new(opt->nthreads ? opt->nthreads : fsdpck_processors());
    *index = where.index;
    return w->pool && w->device->stream_new(*index, w->pool, &w->stream, message) == KERN_OK
               ? 0
               : fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "the kernels cannot start: %s", message);
}

int vae_work_open(const struct pipeline *p, bool encoder, const struct sampler_options *opt, uint32_t local,
                  int64_t nchannel, struct vae_work *out, struct fsdpck_error *err)
{
    int index;
    *out = (struct vae_work){ 0 };
    int rc = start(out, opt, local, &index, err);
    if (!rc)
        rc = vae_open(p, encoder, vae_work_dtype(opt), opt->vae_tiling, &opt->fs, &out->vae, err);
    if (!rc)
        rc = check(out->vae, p, nchannel, err);
    return rc ? rc : vae_move(out->vae, out->device, index, out->stream, err);
}

void vae_work_close(struct vae_work *w)
{
    vae_close(w->vae);
    if (w->device)
        w->device->stream_free(w->stream);
    kern_pool_free(w->pool);
    *w = (struct vae_work){ 0 };
}
