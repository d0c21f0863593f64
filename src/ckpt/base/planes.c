/* SPDX-License-Identifier: Apache-2.0 */
/* Loops over numbers of one width, written so that compilers vectorise them. Knows nothing of blocks or codecs. */
#include "base/planes.h"

#include <string.h>

struct fsdpck_planes fsdpck_planes_of(enum fsdpck_dtype dtype)
{
    const struct fsdpck_dtype_info *info = fsdpck_dtype_info(dtype);
    bool is_float = info->kind == FSDPCK_KIND_FLOAT || info->kind == FSDPCK_KIND_COMPLEX;
    return (struct fsdpck_planes){ .unit = info->swap, .rotate = is_float && info->swap > 1 };
}

/* One pair of functions per width; `by` is 0 or 1, and constant after inlining. */
#define ROTATE_LEFT(v, by, bits)  ((by) ? (v) << 1 | (v) >> ((bits)-1) : (v))
#define ROTATE_RIGHT(v, by, bits) ((by) ? (v) >> 1 | (v) << ((bits)-1) : (v))

static inline void split2(const uint8_t *restrict in, uint8_t *restrict a, uint8_t *restrict b, uint32_t n, int by)
{
    for (uint32_t i = 0; i < n; i++) {
        uint16_t v;
        memcpy(&v, in + 2 * (size_t)i, 2);
        v = (uint16_t)ROTATE_LEFT(v, by, 16);
        a[i] = (uint8_t)(v >> 8);
        b[i] = (uint8_t)v;
    }
}

static inline void merge2(const uint8_t *restrict a, const uint8_t *restrict b, uint8_t *restrict out, uint32_t n,
                          int by)
{
    for (uint32_t i = 0; i < n; i++) {
        uint16_t v = (uint16_t)(a[i] << 8 | b[i]);
        v = (uint16_t)ROTATE_RIGHT(v, by, 16);
        memcpy(out + 2 * (size_t)i, &v, 2);
    }
}

static inline void split4(const uint8_t *restrict in, uint8_t *restrict a, uint8_t *restrict b, uint8_t *restrict c,
                          uint8_t *restrict d, uint32_t n, int by)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t v;
        memcpy(&v, in + 4 * (size_t)i, 4);
        v = ROTATE_LEFT(v, by, 32);
        a[i] = (uint8_t)(v >> 24);
        b[i] = (uint8_t)(v >> 16);
        c[i] = (uint8_t)(v >> 8);
        d[i] = (uint8_t)v;
    }
}

static inline void merge4(const uint8_t *restrict a, const uint8_t *restrict b, const uint8_t *restrict c,
                          const uint8_t *restrict d, uint8_t *restrict out, uint32_t n, int by)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t v = (uint32_t)a[i] << 24 | (uint32_t)b[i] << 16 | (uint32_t)c[i] << 8 | d[i];
        v = ROTATE_RIGHT(v, by, 32);
        memcpy(out + 4 * (size_t)i, &v, 4);
    }
}

static void split8(const uint8_t *in, uint8_t *const *plane, uint32_t n, int by)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t v;
        memcpy(&v, in + 8 * (size_t)i, 8);
        v = ROTATE_LEFT(v, by, 64);
        for (uint32_t p = 0; p < 8; p++)
            plane[p][i] = (uint8_t)(v >> (56 - 8 * p));
    }
}

static void merge8(const uint8_t *const *plane, uint8_t *out, uint32_t n, int by)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t v = 0;
        for (uint32_t p = 0; p < 8; p++)
            v = v << 8 | plane[p][i];
        v = ROTATE_RIGHT(v, by, 64);
        memcpy(out + 8 * (size_t)i, &v, 8);
    }
}

void fsdpck_planes_split(const struct fsdpck_planes *p, const uint8_t *in, uint8_t *const *plane, uint32_t n)
{
    if (p->unit == 1)
        memcpy(plane[0], in, n);
    else if (p->unit == 2)
        p->rotate ? split2(in, plane[0], plane[1], n, 1) : split2(in, plane[0], plane[1], n, 0);
    else if (p->unit == 4)
        p->rotate ? split4(in, plane[0], plane[1], plane[2], plane[3], n, 1)
                  : split4(in, plane[0], plane[1], plane[2], plane[3], n, 0);
    else
        split8(in, plane, n, p->rotate);
}

void fsdpck_planes_merge(const struct fsdpck_planes *p, const uint8_t *const *plane, uint8_t *out, uint32_t n)
{
    if (p->unit == 1)
        memcpy(out, plane[0], n);
    else if (p->unit == 2)
        p->rotate ? merge2(plane[0], plane[1], out, n, 1) : merge2(plane[0], plane[1], out, n, 0);
    else if (p->unit == 4)
        p->rotate ? merge4(plane[0], plane[1], plane[2], plane[3], out, n, 1)
                  : merge4(plane[0], plane[1], plane[2], plane[3], out, n, 0);
    else
        merge8(plane, out, n, p->rotate);
}
