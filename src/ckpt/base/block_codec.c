/* SPDX-License-Identifier: Apache-2.0 */
/* Compresses byte planes: the first with zstd's entropy stage, a plane of one value to one byte. The other planes are
 * stored uncompressed. */
#define ZSTD_STATIC_LINKING_ONLY /* ZSTD_c_literalCompressionMode: in practice stable, the same number since 1.4 */
#include "base/block_codec.h"

#include <stdlib.h>
#include <string.h>

#include <zstd.h>

#include "base/hash.h"

struct fsdpck_encoder {
    ZSTD_CCtx *zstd;
    uint8_t planes[FSDPCK_BLOCK_NBYTES];
};

struct fsdpck_decoder {
    ZSTD_DCtx *zstd;
    uint8_t planes[FSDPCK_BLOCK_NBYTES];
};

/* Uses Huffman codes without a search for matches: exponents do not repeat as strings, so a search costs time and even
 * space. */
static bool set_parameters(ZSTD_CCtx *c)
{
    static const struct {
        ZSTD_cParameter name;
        int value;
    } list[] = { { ZSTD_c_compressionLevel, -100000 }, { ZSTD_c_literalCompressionMode, ZSTD_ps_enable },
                 { ZSTD_c_strategy, ZSTD_fast },       { ZSTD_c_windowLog, 16 },
                 { ZSTD_c_hashLog, ZSTD_HASHLOG_MIN }, { ZSTD_c_minMatch, 7 } };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (ZSTD_isError(ZSTD_CCtx_setParameter(c, list[i].name, list[i].value)))
            return false;
    return true;
}

struct fsdpck_encoder *fsdpck_encoder_new(void)
{
    struct fsdpck_encoder *e = malloc(sizeof *e);
    if (e && (!(e->zstd = ZSTD_createCCtx()) || !set_parameters(e->zstd))) {
        fsdpck_encoder_free(e);
        return NULL;
    }
    return e;
}

void fsdpck_encoder_free(struct fsdpck_encoder *e)
{
    if (e)
        ZSTD_freeCCtx(e->zstd);
    free(e);
}

struct fsdpck_decoder *fsdpck_decoder_new(void)
{
    struct fsdpck_decoder *d = malloc(sizeof *d);
    if (d && !(d->zstd = ZSTD_createDCtx())) {
        free(d);
        return NULL;
    }
    return d;
}

void fsdpck_decoder_free(struct fsdpck_decoder *d)
{
    if (d)
        ZSTD_freeDCtx(d->zstd);
    free(d);
}

static bool is_constant(const uint8_t *plane, uint32_t n)
{
    return memcmp(plane, plane + 1, n - 1) == 0;
}

/* Encodes one plane to out, in at most room bytes; returns 0 if it needs more. */
static uint32_t encode_plane(struct fsdpck_encoder *e, const uint8_t *plane, uint32_t n, bool is_first, uint8_t *out,
                             uint32_t room)
{
    if (room == 0)
        return 0;
    if (is_constant(plane, n)) {
        out[0] = plane[0];
        return 1;
    }
    size_t c = is_first ? ZSTD_compress2(e->zstd, out, room < n ? room : n, plane, n) : n;
    if (!ZSTD_isError(c) && c < n)
        return (uint32_t)c;
    if (room < n)
        return 0;
    memcpy(out, plane, n);
    return n;
}

uint32_t fsdpck_block_encode(struct fsdpck_encoder *e, const struct fsdpck_planes *p, const uint8_t *in,
                             uint32_t nbytes, uint8_t *out)
{
    uint8_t *plane[FSDPCK_PLANES_MAX];
    uint32_t n = nbytes / p->unit, at = 2 * p->unit, room = nbytes - 1;
    for (uint32_t i = 0; i < p->unit; i++)
        plane[i] = e->planes + (size_t)i * n;
    fsdpck_planes_split(p, in, plane, n);
    for (uint32_t i = 0; i < p->unit; i++) {
        uint32_t c = at < room ? encode_plane(e, plane[i], n, i == 0, out + at, room - at) : 0;
        if (c == 0) {
            memcpy(out, in, nbytes);
            return nbytes;
        }
        fsdpck_put16(out + 2 * i, (uint16_t)c);
        at += c;
    }
    return at;
}

/* Returns the decoded plane of n bytes, stored in c bytes; NULL: invalid. */
static const uint8_t *decode_plane(struct fsdpck_decoder *d, const uint8_t *in, uint32_t c, uint8_t *room, uint32_t n)
{
    if (c == n)
        return in;
    if (c == 1) {
        memset(room, in[0], n);
        return room;
    }
    return ZSTD_decompressDCtx(d->zstd, room, n, in, c) == n ? room : NULL;
}

bool fsdpck_block_decode(struct fsdpck_decoder *d, const struct fsdpck_planes *p, const uint8_t *in, uint32_t stored,
                         uint8_t *out, uint32_t nbytes)
{
    const uint8_t *plane[FSDPCK_PLANES_MAX];
    uint32_t n = nbytes / p->unit, at = 2 * p->unit;
    if (stored == nbytes) {
        memcpy(out, in, nbytes);
        return true;
    }
    if (nbytes > FSDPCK_BLOCK_NBYTES || nbytes % p->unit || stored > nbytes || stored < at)
        return false;
    for (uint32_t i = 0; i < p->unit; i++) {
        uint32_t c = fsdpck_le16(in + 2 * i);
        if (c == 0 || c > n || c > stored - at ||
            !(plane[i] = decode_plane(d, in + at, c, d->planes + (size_t)i * n, n)))
            return false;
        at += c;
    }
    if (at != stored)
        return false;
    fsdpck_planes_merge(p, plane, out, n);
    return true;
}
