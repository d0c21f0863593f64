/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures of like shape share a size: a bucket. */
#ifndef TRAIN_BUCKET_H
#define TRAIN_BUCKET_H

#include <stddef.h>
#include <stdint.h>

struct bucket {
    int64_t height, width;               /* what is trained on */
    int64_t scaled_height, scaled_width; /* to which the picture is resized before it is cut, so that it covers it */
    int64_t top, left;                   /* of the part in the middle */
};

/* As ai-toolkit has them: sides are multiples of `divisor`, as many pixels as resolution² at most, and never more than
 * the picture has. The picture covers its bucket, and its middle is kept. */
struct bucket bucket_of(int64_t height, int64_t width, int64_t resolution, int64_t divisor);

/* The rest is diffusers' (training_utils and its DreamBooth scripts). */

struct bucket_size {
    int64_t height, width;
};
enum { BUCKET_LADDER = 11 }; /* ratios, from 1:2 to 2:1 */

/* The ladder of a picture: sizes of about resolution² pixels, or of as many as the picture has. Returns their number;
 * ratios that round to the same size share one. */
size_t bucket_ladder(int64_t height, int64_t width, int64_t resolution, int64_t divisor,
                     struct bucket_size out[BUCKET_LADDER]);
/* The one of n sizes whose shape is the nearest: of equals the last. A small picture is enlarged to cover it. */
struct bucket bucket_nearest(int64_t height, int64_t width, const struct bucket_size *sizes, size_t n);

#endif
