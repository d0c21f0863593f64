/* SPDX-License-Identifier: Apache-2.0 */
/* JPEG by libjpeg-turbo. */
#include <stdio.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include "pictures/read_impl.h"

struct failure {
    struct jpeg_error_mgr base; /* first: libjpeg knows this part only */
    jmp_buf back;
    char message[JMSG_LENGTH_MAX];
};

bool picture_is_jpeg(const struct picture_file *f)
{
    return f->nbytes >= 3 && memcmp(f->data, "\xff\xd8\xff", 3) == 0;
}

static void on_error(j_common_ptr j)
{
    struct failure *f = (struct failure *)j->err;
    f->base.format_message(j, f->message);
    longjmp(f->back, 1);
}

/* Damaged data are a warning there, and an error here: libjpeg would make up the rest. */
static void on_message(j_common_ptr j, int level)
{
    if (level < 0)
        on_error(j);
}

static void look_at_markers(const struct jpeg_decompress_struct *j, struct picture_told *told)
{
    for (jpeg_saved_marker_ptr m = j->marker_list; m; m = m->next) {
        if (m->marker == JPEG_APP0 + 1 && m->data_length > 6 && memcmp(m->data, "Exif\0\0", 6) == 0)
            told->orientation = picture_orientation(m->data + 6, m->data_length - 6);
        if (m->marker == JPEG_APP0 + 2 && m->data_length > 12 && memcmp(m->data, "ICC_PROFILE", 12) == 0)
            told->notes.profile = true;
    }
}

/* Adobe stores inks the other way round. */
static void from_inks(const uint8_t *cmyk, int64_t n, bool inverted, uint8_t *rgb)
{
    for (int64_t i = 0; i < n; i++)
        for (int c = 0; c < 3; c++) {
            const unsigned ink = inverted ? cmyk[4 * i + c] : 255u - cmyk[4 * i + c],
                           black = inverted ? cmyk[4 * i + 3] : 255u - cmyk[4 * i + 3];
            rgb[3 * i + c] = (uint8_t)((ink * black + 127) / 255);
        }
}

static void read_rows(struct jpeg_decompress_struct *j, uint8_t *row, struct pixels *out)
{
    jpeg_start_decompress(j);
    while (j->output_scanline < j->output_height) {
        uint8_t *to = out->rgb + (int64_t)j->output_scanline * out->width * 3;
        JSAMPROW rows[] = { j->out_color_space == JCS_CMYK ? row : to };
        jpeg_read_scanlines(j, rows, 1);
        if (j->out_color_space == JCS_CMYK)
            from_inks(row, out->width, j->saw_Adobe_marker, to);
    }
    jpeg_finish_decompress(j);
}

int picture_read_jpeg(const struct picture_file *f, bool size_only, struct pixels *out, struct picture_told *told,
                      struct fsdpck_error *err)
{
    struct jpeg_decompress_struct j;
    struct failure failure;
    uint8_t *volatile row = NULL;
    int volatile rc = 0;
    j.err = jpeg_std_error(&failure.base);
    failure.base.error_exit = on_error;
    failure.base.emit_message = on_message;
    jpeg_create_decompress(&j);
    if (setjmp(failure.back)) {
        pixels_free(out);
        rc = fsdpck_error_set(err, FSDPCK_ERR_FORMAT, f->path, "it cannot be read as a JPEG: %s", failure.message);
    } else {
        jpeg_mem_src(&j, f->data, f->nbytes);
        jpeg_save_markers(&j, JPEG_APP0 + 1, 0xffff);
        jpeg_save_markers(&j, JPEG_APP0 + 2, 0xffff);
        jpeg_read_header(&j, TRUE);
        look_at_markers(&j, told);
        j.out_color_space = j.num_components == 4 ? JCS_CMYK : JCS_RGB;
        if (size_only)
            *out = (struct pixels){ .height = j.image_height, .width = j.image_width };
        else
            rc = pixels_new(j.image_height, j.image_width, f->path, out, err);
        row = rc || size_only ? NULL : malloc((size_t)out->width * 4);
        if (row)
            read_rows(&j, row, out);
        else if (!rc && !size_only)
            rc = fsdpck_error_nomem(err, (size_t)out->width * 4);
    }
    free(row);
    jpeg_destroy_decompress(&j);
    return rc;
}
