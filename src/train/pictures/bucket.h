/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures of like shape share a size: a bucket. */
#ifndef TRAIN_BUCKET_H
#define TRAIN_BUCKET_H

#include <stdint.h>

struct bucket {
    int64_t height, width;               /* what is trained on */
    int64_t scaled_height, scaled_width; /* to which the picture is resized before it is cut */
    int64_t top, left;                   /* of the part in the middle */
};

/* As ai-toolkit has them: sides are multiples of `divisor`, as many pixels as resolution² at most, and never more than
 * the picture has. The picture covers its bucket, and its middle is kept. */
struct bucket bucket_of(int64_t height, int64_t width, int64_t resolution, int64_t divisor);

#endif
