/* SPDX-License-Identifier: Apache-2.0 */
#include "image/request.h"

#include <math.h>

#include "arrays/normal.h"

static int check(const struct image_request *r, struct fsdpck_error *err)
{
    if (r->height % IMAGE_UNIT || r->width % IMAGE_UNIT || r->height < IMAGE_UNIT || r->width < IMAGE_UNIT ||
        r->height > IMAGE_MOST || r->width > IMAGE_MOST)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                "a picture of %lld × %lld pixels: sides are multiples of %d, up to %d",
                                (long long)r->width, (long long)r->height, IMAGE_UNIT, IMAGE_MOST);
    if (r->nstep < 1 || r->nstep > 1000 || r->max_tokens < 1 || r->max_tokens > 1 << 16 || !isfinite(r->guidance))
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                "from 1 to 1000 steps, 1 to 65536 tokens and a finite guidance are wanted");
    return 0;
}

int image_request_complete(const struct pipeline *p, const struct fsdpck_options *opt, struct image_request *r,
                           struct fsdpck_error *err)
{
    r->height = r->height ? r->height : IMAGE_DEFAULT_SIDE;
    r->width = r->width ? r->width : IMAGE_DEFAULT_SIDE;
    r->nstep = r->nstep ? r->nstep : p->distilled ? IMAGE_DISTILLED_STEPS : IMAGE_DEFAULT_STEPS;
    r->max_tokens = r->max_tokens ? r->max_tokens : IMAGE_DEFAULT_TOKENS;
    r->count = r->count ? r->count : 1;
    r->negative = r->negative ? r->negative : "";
    if (p->distilled && (r->guidance > 1 || *r->negative) && opt->note)
        opt->note(opt->ctx, "the model is distilled: guidance and a negative prompt have no effect");
    r->guidance = r->guidance < 0 ? IMAGE_DEFAULT_GUIDANCE : r->guidance;
    return check(r, err);
}

bool image_request_is_guided(const struct pipeline *p, const struct image_request *r)
{
    return !p->distilled && r->guidance > 1;
}

void image_request_noise(const struct image_request *r, size_t number, int64_t n, float *x)
{
    const struct kern_philox rng = { .seed = r->seed + number, .name = 0x696d6167 };
    normal_draw(x, (uint64_t)n, &rng, 0);
}
