/* SPDX-License-Identifier: Apache-2.0 */
/* PNG by libpng, without its correction of gamma: values are taken as they are. */
#include <png.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include "pictures/read_impl.h"

struct reader {
    const struct picture_file *f;
    size_t at;
    char message[120];
    png_structp png;
    png_infop info;
    uint8_t *row;
};

bool picture_is_png(const struct picture_file *f)
{
    return f->nbytes >= 8 && png_sig_cmp(f->data, 0, 8) == 0;
}

static void on_error(png_structp png, png_const_charp text)
{
    struct reader *r = png_get_error_ptr(png);
    strncpy(r->message, text, sizeof r->message - 1);
    longjmp(png_jmpbuf(png), 1);
}

static void on_warning(png_structp png, png_const_charp text)
{
    (void)png, (void)text;
}

static void give(png_structp png, png_bytep to, size_t nbytes)
{
    struct reader *r = png_get_io_ptr(png);
    if (nbytes > r->f->nbytes - r->at)
        png_error(png, "the file ends too early");
    memcpy(to, r->f->data + r->at, nbytes);
    r->at += nbytes;
}

static int size_of(struct reader *r, bool size_only, struct pixels *out, struct picture_told *told,
                   struct fsdpck_error *err)
{
    png_bytep exif;
    png_uint_32 nexif;
    png_read_info(r->png, r->info);
    const int64_t height = png_get_image_height(r->png, r->info), width = png_get_image_width(r->png, r->info);
    told->notes.profile = png_get_valid(r->png, r->info, PNG_INFO_iCCP) != 0;
    if (png_get_eXIf_1(r->png, r->info, &nexif, &exif))
        told->orientation = picture_orientation(exif, nexif);
    if (!size_only)
        return pixels_new(height, width, r->f->path, out, err);
    *out = (struct pixels){ .height = height, .width = width };
    return 0;
}

/* All forms become RGBA of 8 bits. */
static void read_rows(struct reader *r, struct pixels *out, struct picture_told *told)
{
    png_set_expand(r->png);
    png_set_strip_16(r->png);
    png_set_gray_to_rgb(r->png);
    png_set_add_alpha(r->png, 255, PNG_FILLER_AFTER);
    const int npass = png_set_interlace_handling(r->png);
    png_read_update_info(r->png, r->info);
    r->row = malloc((size_t)(out->width * 4) * (size_t)(npass > 1 ? out->height : 1));
    if (!r->row)
        png_error(r->png, "out of memory");
    for (int pass = 0; pass < npass; pass++)
        for (int64_t y = 0; y < out->height; y++)
            png_read_row(r->png, r->row + (npass > 1 ? y * out->width * 4 : 0), NULL),
                npass == 1 ? picture_over_white(r->row, out->width, out->rgb + y * out->width * 3, &told->notes.alpha)
                           : (void)0;
    if (npass > 1)
        picture_over_white(r->row, out->width * out->height, out->rgb, &told->notes.alpha);
    png_read_end(r->png, r->info); /* an eXIf chunk may stand here */
}

int picture_read_png(const struct picture_file *f, bool size_only, struct pixels *out, struct picture_told *told,
                     struct fsdpck_error *err)
{
    struct reader r = { .f = f };
    png_bytep exif;
    png_uint_32 nexif;
    int volatile rc = 0;
    r.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, on_error, on_warning);
    r.info = r.png ? png_create_info_struct(r.png) : NULL;
    if (!r.info) {
        png_destroy_read_struct(&r.png, NULL, NULL);
        return fsdpck_error_nomem(err, 1024);
    }
    if (setjmp(png_jmpbuf(r.png))) {
        pixels_free(out);
        rc = fsdpck_error_set(err, FSDPCK_ERR_FORMAT, f->path, "it cannot be read as a PNG: %s", r.message);
    } else {
        png_set_read_fn(r.png, &r, give);
        rc = size_of(&r, size_only, out, told, err);
        if (!rc && !size_only) {
            read_rows(&r, out, told);
            if (png_get_eXIf_1(r.png, r.info, &nexif, &exif))
                told->orientation = picture_orientation(exif, nexif);
        }
    }
    free(r.row);
    png_destroy_read_struct(&r.png, &r.info, NULL);
    return rc;
}
