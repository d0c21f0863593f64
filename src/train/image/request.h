/* SPDX-License-Identifier: Apache-2.0 */
/* Requests for pictures: their defaults and limits. */
#ifndef TRAIN_IMAGE_REQUEST_H
#define TRAIN_IMAGE_REQUEST_H

#include <train/image.h>

#include "image/pipeline.h"

/* Puts defaults in place of zeros, and refuses what cannot be made. note: of opt, for what has no effect. */
int image_request_complete(const struct pipeline *p, const struct fsdpck_options *opt, struct image_request *r,
                           struct fsdpck_error *err);
/* True if each step has a second prediction, of the negative text. r: complete. */
bool image_request_is_guided(const struct pipeline *p, const struct image_request *r);
/* The noise that picture `number` of a prompt begins with, which depends on its seed alone. x: (n) */
void image_request_noise(const struct image_request *r, size_t number, int64_t n, float *x);

#endif
