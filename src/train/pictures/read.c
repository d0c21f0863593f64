/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "pictures/read_impl.h"
#include "text/file.h"

enum { MOST_NBYTES = 1 << 28 };

static const struct {
    bool (*is)(const struct picture_file *f);
    picture_format_fn *read;
} formats[] = { { picture_is_png, picture_read_png },
                { picture_is_jpeg, picture_read_jpeg },
                { picture_is_webp, picture_read_webp } };

static uint32_t number(const uint8_t *p, int nbytes, bool big)
{
    uint32_t x = 0;
    for (int i = 0; i < nbytes; i++)
        x |= (uint32_t)p[i] << 8 * (big ? nbytes - 1 - i : i);
    return x;
}

/* Tag 0x0112 of the first directory: one number of 16 bits. */
int picture_orientation(const uint8_t *tiff, size_t nbytes)
{
    if (nbytes < 8 || (memcmp(tiff, "II*\0", 4) != 0 && memcmp(tiff, "MM\0*", 4) != 0))
        return 0;
    const bool big = tiff[0] == 'M';
    const size_t at = number(tiff + 4, 4, big);
    const size_t count = at + 2 <= nbytes ? number(tiff + at, 2, big) : 0;
    for (size_t i = 0; i < count && at + 2 + 12 * (i + 1) <= nbytes; i++) {
        const uint8_t *entry = tiff + at + 2 + 12 * i;
        const uint32_t value = number(entry + 8, 2, big);
        if (number(entry, 2, big) == 0x0112 && number(entry + 2, 2, big) == 3)
            return value >= 1 && value <= 8 ? (int)value : 0;
    }
    return 0;
}

void picture_over_white(const uint8_t *rgba, int64_t n, uint8_t *rgb, bool *any)
{
    for (int64_t i = 0; i < n; i++) {
        const unsigned a = rgba[4 * i + 3];
        *any = *any || a < 255;
        for (int c = 0; c < 3; c++)
            rgb[3 * i + c] = (uint8_t)((rgba[4 * i + c] * a + 255 * (255 - a) + 127) / 255);
    }
}

static int read_any(const char *path, bool size_only, struct pixels *out, struct picture_told *told,
                    struct fsdpck_error *err)
{
    struct picture_file f = { .path = path };
    char *data;
    *out = (struct pixels){ 0 };
    *told = (struct picture_told){ 0 };
    int rc = text_file_read(path, MOST_NBYTES, &data, &f.nbytes, err);
    if (rc)
        return rc;
    f.data = (const uint8_t *)data;
    rc = FSDPCK_ERR_UNSUPPORTED;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0] && rc == FSDPCK_ERR_UNSUPPORTED; i++)
        if (formats[i].is(&f)) {
            rc = formats[i].read(&f, size_only, out, told, err);
            break;
        }
    if (rc == FSDPCK_ERR_UNSUPPORTED && !err->code)
        fsdpck_error_set(err, rc, path, "this is no PNG, JPEG or WebP");
    free(data);
    return rc;
}

int picture_read(const char *path, struct pixels *out, struct picture_notes *notes, struct fsdpck_error *err)
{
    struct picture_told told;
    int rc = read_any(path, false, out, &told, err);
    if (!rc)
        rc = pixels_turn(out, told.orientation, path, err);
    if (rc)
        pixels_free(out);
    *notes = told.notes;
    return rc;
}

int picture_size(const char *path, int64_t *height, int64_t *width, struct fsdpck_error *err)
{
    struct picture_told told;
    struct pixels p;
    int rc = read_any(path, true, &p, &told, err);
    *height = told.orientation > 4 ? p.width : p.height;
    *width = told.orientation > 4 ? p.height : p.width;
    return rc;
}
