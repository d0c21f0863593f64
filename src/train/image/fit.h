/* SPDX-License-Identifier: Apache-2.0 */
/* How a picture is made to fit its bucket, by the keys of `image`. */
#ifndef TRAIN_FIT_H
#define TRAIN_FIT_H

#include "image/listing.h"
#include "pictures/bucket.h"
#include "pictures/pixels.h"

struct fit {
    struct bucket bucket; /* top and left are those of the part that is kept */
    enum pixels_filter filter;
    bool usual; /* ai-toolkit's bucket and the part in the middle */
};

/* x: measured, with its variant. */
struct fit fit_of(const struct train_config *config, const struct listed *x);
/* Resizes and cuts. */
int fit_apply(const struct fit *f, const struct pixels *p, struct pixels *out, struct fsdpck_error *err);

#endif
