/* SPDX-License-Identifier: Apache-2.0 */
/* WebP by libwebp: one picture, with or without loss. */
#include <stdlib.h>
#include <string.h>
#include <webp/decode.h>
#include <webp/demux.h>

#include "pictures/read_impl.h"

bool picture_is_webp(const struct picture_file *f)
{
    return f->nbytes >= 12 && memcmp(f->data, "RIFF", 4) == 0 && memcmp(f->data + 8, "WEBP", 4) == 0;
}

static int refuse(const struct picture_file *f, struct fsdpck_error *err)
{
    return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, f->path, "it cannot be read as a WebP");
}

static int look_at_chunks(const struct picture_file *f, struct picture_told *told, struct fsdpck_error *err)
{
    const WebPData data = { f->data, f->nbytes };
    WebPDemuxer *d = WebPDemux(&data);
    WebPChunkIterator it;
    if (!d)
        return refuse(f, err);
    const uint32_t flags = WebPDemuxGetI(d, WEBP_FF_FORMAT_FLAGS);
    told->notes.profile = (flags & ICCP_FLAG) != 0;
    if (WebPDemuxGetChunk(d, "EXIF", 1, &it)) {
        const size_t skipped = it.chunk.size > 6 && memcmp(it.chunk.bytes, "Exif\0\0", 6) == 0 ? 6 : 0;
        told->orientation = picture_orientation(it.chunk.bytes + skipped, it.chunk.size - skipped);
        WebPDemuxReleaseChunkIterator(&it);
    }
    WebPDemuxDelete(d);
    return 0;
}

int picture_read_webp(const struct picture_file *f, bool size_only, struct pixels *out, struct picture_told *told,
                      struct fsdpck_error *err)
{
    WebPBitstreamFeatures features;
    if (WebPGetFeatures(f->data, f->nbytes, &features) != VP8_STATUS_OK)
        return refuse(f, err);
    if (features.has_animation)
        return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, f->path, "an animated WebP is not one picture");
    int rc = look_at_chunks(f, told, err);
    if (!rc && size_only)
        *out = (struct pixels){ .height = features.height, .width = features.width };
    else if (!rc)
        rc = pixels_new(features.height, features.width, f->path, out, err);
    if (rc || size_only)
        return rc;
    const int64_t n = out->height * out->width;
    uint8_t *rgba = malloc((size_t)n * 4);
    if (!rgba)
        rc = fsdpck_error_nomem(err, (size_t)n * 4);
    else if (!WebPDecodeRGBAInto(f->data, f->nbytes, rgba, (size_t)n * 4, (int)out->width * 4))
        rc = refuse(f, err);
    else
        picture_over_white(rgba, n, out->rgb, &told->notes.alpha);
    free(rgba);
    if (rc)
        pixels_free(out);
    return rc;
}
