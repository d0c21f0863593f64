/* SPDX-License-Identifier: Apache-2.0 */
#include "image/fit.h"

#include <train/image.h>
#include <xxhash.h>

static struct bucket given_bucket(const struct train_buckets *given, const struct listed *x)
{
    struct bucket_size sizes[TRAIN_MOST_BUCKETS];
    for (size_t i = 0; i < given->n; i++)
        sizes[i] = (struct bucket_size){ given->height[i], given->width[i] };
    return bucket_nearest(x->height, x->width, sizes, given->n);
}

static struct bucket ladder_bucket(const struct listed *x)
{
    struct bucket_size sizes[BUCKET_LADDER];
    const size_t n = bucket_ladder(x->height, x->width, (int64_t)x->resolution, IMAGE_UNIT, sizes);
    return bucket_nearest(x->height, x->width, sizes, n);
}

/* Draws a place from the seed and from all that makes this variant. */
static void draw_part(uint64_t seed, const struct listed *x, struct bucket *b)
{
    const uint64_t variant[] = { seed, x->content, x->resolution, x->copy, 2 * x->flip_x + x->flip_y };
    const uint64_t drawn = XXH3_64bits(variant, sizeof variant);
    b->top = (int64_t)((drawn >> 32) % (uint64_t)(b->scaled_height - b->height + 1));
    b->left = (int64_t)((drawn & UINT32_MAX) % (uint64_t)(b->scaled_width - b->width + 1));
}

struct fit fit_of(const struct train_config *config, const struct listed *x)
{
    const bool given = config->image.buckets.n > 0, ladder = config->image.use_aspect_ratio_buckets;
    struct fit f = { .usual = !given && !ladder && !x->random_crop,
                     .filter = given || ladder ? PIXELS_BILINEAR : PIXELS_BICUBIC };
    f.bucket = given    ? given_bucket(&config->image.buckets, x)
               : ladder ? ladder_bucket(x)
                        : bucket_of(x->height, x->width, (int64_t)x->resolution, IMAGE_UNIT);
    if (x->random_crop)
        draw_part(config->seed, x, &f.bucket);
    return f;
}

int fit_apply(const struct fit *f, const struct pixels *p, struct pixels *out, struct fsdpck_error *err)
{
    const struct bucket *b = &f->bucket;
    int rc = pixels_resize(p, b->scaled_height, b->scaled_width, f->filter, out, err);
    if (!rc)
        pixels_crop(out, b->top, b->left, b->height, b->width);
    return rc;
}
