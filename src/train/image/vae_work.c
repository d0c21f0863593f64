/* SPDX-License-Identifier: Apache-2.0 */
#include "image/vae_work.h"

#include <train/image.h>

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

int vae_work_open(const struct pipeline *p, bool encoder, enum kern_dtype dtype, unsigned nthreads, int64_t nchannel,
                  const struct fsdpck_options *opt, struct vae_work *out, struct fsdpck_error *err)
{
    char message[KERN_MESSAGE_BYTES] = "no threads";
    *out = (struct vae_work){ .device = kern_device_find("cpu", message), .pool = kern_pool_new(nthreads) };
    if (!out->pool || out->device->stream_new(0, out->pool, &out->stream, message) != KERN_OK)
        return fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "the kernels cannot start: %s", message);
    int rc = vae_open(p, encoder, dtype, opt, &out->vae, err);
    return rc ? rc : check(out->vae, p, nchannel, err);
}

void vae_work_close(struct vae_work *w)
{
    vae_close(w->vae);
    if (w->device)
        w->device->stream_free(w->stream);
    kern_pool_free(w->pool);
    *w = (struct vae_work){ 0 };
}
