/* SPDX-License-Identifier: Apache-2.0 */
#include "pictures/pixels.h"

#include <stdlib.h>
#include <string.h>

int pixels_new(int64_t height, int64_t width, const char *path, struct pixels *out, struct fsdpck_error *err)
{
    *out = (struct pixels){ 0 };
    if (height < 1 || width < 1 || height > PIXELS_MOST_SIDE || width > PIXELS_MOST_SIDE ||
        height * width > PIXELS_MOST)
        return fsdpck_error_set(err, FSDPCK_ERR_LIMIT, path,
                                "a picture of %lld × %lld pixels; at most %d in all, and "
                                "%d on a side, are read",
                                (long long)width, (long long)height, PIXELS_MOST, PIXELS_MOST_SIDE);
    uint8_t *rgb = malloc((size_t)(height * width * 3));
    if (!rgb)
        return fsdpck_error_nomem(err, (size_t)(height * width * 3));
    *out = (struct pixels){ height, width, rgb };
    return 0;
}

void pixels_free(struct pixels *p)
{
    free(p->rgb);
    *p = (struct pixels){ 0 };
}

void pixels_crop(struct pixels *p, int64_t top, int64_t left, int64_t height, int64_t width)
{
    for (int64_t y = 0; y < height; y++)
        memmove(p->rgb + y * width * 3, p->rgb + ((top + y) * p->width + left) * 3, (size_t)(width * 3));
    p->height = height;
    p->width = width;
}

static void swap(uint8_t *a, uint8_t *b)
{
    for (int c = 0; c < 3; c++) {
        const uint8_t was = a[c];
        a[c] = b[c];
        b[c] = was;
    }
}

void pixels_flip_x(struct pixels *p)
{
    for (int64_t y = 0; y < p->height; y++)
        for (int64_t x = 0; x < p->width / 2; x++)
            swap(p->rgb + (y * p->width + x) * 3, p->rgb + (y * p->width + p->width - 1 - x) * 3);
}

void pixels_flip_y(struct pixels *p)
{
    for (int64_t y = 0; y < p->height / 2; y++)
        for (int64_t x = 0; x < p->width; x++)
            swap(p->rgb + (y * p->width + x) * 3, p->rgb + ((p->height - 1 - y) * p->width + x) * 3);
}

/* Rows become columns. */
static int transpose(struct pixels *p, const char *path, struct fsdpck_error *err)
{
    struct pixels out;
    int rc = pixels_new(p->width, p->height, path, &out, err);
    for (int64_t y = 0; y < p->height && !rc; y++)
        for (int64_t x = 0; x < p->width; x++)
            memcpy(out.rgb + (x * out.width + y) * 3, p->rgb + (y * p->width + x) * 3, 3);
    if (rc)
        return rc;
    pixels_free(p);
    *p = out;
    return 0;
}

/* Orientations from 5 on are transposed; then each is mirrored in none, one or both directions. */
int pixels_turn(struct pixels *p, int orientation, const char *path, struct fsdpck_error *err)
{
    static const bool flip_x[] = { false, true, true, false, false, true, true, false },
                      flip_y[] = { false, false, true, true, false, false, true, true };
    if (orientation < 1 || orientation > 8)
        return 0;
    int rc = orientation > 4 ? transpose(p, path, err) : 0;
    if (!rc && flip_x[orientation - 1])
        pixels_flip_x(p);
    if (!rc && flip_y[orientation - 1])
        pixels_flip_y(p);
    return rc;
}
