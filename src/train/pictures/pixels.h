/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures in memory: 8 bits of red, green and blue, row by row. */
#ifndef TRAIN_PIXELS_H
#define TRAIN_PIXELS_H

#include <fsdpck/error.h>

enum { PIXELS_MOST_SIDE = 32768 };
#define PIXELS_MOST (1 << 28) /* in a picture */

struct pixels {
    int64_t height, width;
    uint8_t *rgb; /* (height, width, 3) owned */
};

/* Allocates them; refuses sides that are not from 1 to PIXELS_MOST_SIDE, or too many pixels. */
int pixels_new(int64_t height, int64_t width, const char *path, struct pixels *out, struct fsdpck_error *err);
void pixels_free(struct pixels *p);

/* What a file has that is not used. */
struct picture_notes {
    bool profile; /* an ICC profile: its colours are taken for sRGB */
    bool alpha;   /* transparency, on white here */
};

/* Reads a PNG, a JPEG or a WebP, known by its content, and turns it as its EXIF orientation says. */
int picture_read(const char *path, struct pixels *out, struct picture_notes *notes, struct fsdpck_error *err);

/* Its size alone, as picture_read() gives it. */
int picture_size(const char *path, int64_t *height, int64_t *width, struct fsdpck_error *err);

/* Pillow's, wider where a picture shrinks; a of the bicubic one is -1/2. */
enum pixels_filter { PIXELS_BICUBIC, PIXELS_BILINEAR };
/* A picture of another size, with the bits of Pillow. */
int pixels_resize(const struct pixels *p, int64_t height, int64_t width, enum pixels_filter filter, struct pixels *out,
                  struct fsdpck_error *err);
/* Cuts a part out, in place. */
void pixels_crop(struct pixels *p, int64_t top, int64_t left, int64_t height, int64_t width);
void pixels_flip_x(struct pixels *p);
void pixels_flip_y(struct pixels *p);
/* As one of EXIF's eight orientations, from 1. */
int pixels_turn(struct pixels *p, int orientation, const char *path, struct fsdpck_error *err);

#endif
