/* SPDX-License-Identifier: Apache-2.0 */
#include "config/buckets.h"

#include <stdlib.h>
#include <string.h>
#include <train/image.h>

/* Reads a side, with spaces around it. */
static bool read_side(const char **at, int64_t *out)
{
    char *end;
    *at += strspn(*at, " ");
    const bool is_number = **at >= '0' && **at <= '9';
    *out = is_number ? strtoll(*at, &end, 10) : 0;
    if (is_number)
        *at = end + strspn(end, " ");
    return *out >= IMAGE_UNIT && *out <= IMAGE_MOST && *out % IMAGE_UNIT == 0;
}

static bool read_pair(const char **at, int64_t *height, int64_t *width)
{
    if (!read_side(at, height) || **at != ',')
        return false;
    ++*at;
    return read_side(at, width) && (**at == ';' || **at == '\0');
}

int config_buckets_read(const char *name, const char *text, struct train_buckets *out, struct fsdpck_error *err)
{
    const char *at = text;
    for (out->n = 0; out->n < TRAIN_MOST_BUCKETS; at++) {
        if (!read_pair(&at, &out->height[out->n], &out->width[out->n]))
            return fsdpck_error_set(err, FSDPCK_ERR_USAGE, name,
                                    "key 'image.aspect_ratio_buckets': \"height,width;height,width\" is wanted, of "
                                    "multiples of %d up to %d, not \"%.60s\"",
                                    IMAGE_UNIT, IMAGE_MOST, text);
        out->n++;
        if (!*at)
            return 0;
    }
    return fsdpck_error_set(err, FSDPCK_ERR_LIMIT, name, "key 'image.aspect_ratio_buckets': more than %d buckets",
                            TRAIN_MOST_BUCKETS);
}
