/* SPDX-License-Identifier: Apache-2.0 */
/* One function for each format: from the bytes of a file to pixels. */
#ifndef TRAIN_READ_IMPL_H
#define TRAIN_READ_IMPL_H

#include "pictures/pixels.h"

struct picture_file {
    const char *path; /* for messages */
    const uint8_t *data;
    size_t nbytes;
};

/* What a format tells beside the pixels. */
struct picture_told {
    struct picture_notes notes;
    int orientation; /* of EXIF; 0: none */
};

/* size_only: height and width are set, and no pixels are read. */
typedef int picture_format_fn(const struct picture_file *f, bool size_only, struct pixels *out,
                              struct picture_told *told, struct fsdpck_error *err);
picture_format_fn picture_read_png, picture_read_jpeg, picture_read_webp;

/* Whether the file begins like one. */
bool picture_is_png(const struct picture_file *f);
bool picture_is_jpeg(const struct picture_file *f);
bool picture_is_webp(const struct picture_file *f);

/* The orientation in a TIFF block of EXIF, after "Exif\0\0"; 0: none, or it makes no sense. */
int picture_orientation(const uint8_t *tiff, size_t nbytes);
/* A row of n pixels with transparency, over white. */
void picture_over_white(const uint8_t *rgba, int64_t n, uint8_t *rgb, bool *any);

#endif
