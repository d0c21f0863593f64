/* SPDX-License-Identifier: Apache-2.0 */
#include <png.h>
#include <train/image.h>

bool image_put_png(FILE *f, const struct image *image)
{
    png_image png = { .version = PNG_IMAGE_VERSION,
                      .width = (png_uint_32)image->width,
                      .height = (png_uint_32)image->height,
                      .format = PNG_FORMAT_RGB };
    return png_image_write_to_stdio(&png, f, 0, image->pixels, 0, NULL) && !ferror(f);
}
