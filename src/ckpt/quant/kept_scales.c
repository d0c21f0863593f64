/* SPDX-License-Identifier: Apache-2.0 */
#include "quant/kept_scales.h"

#include <stdlib.h>
#include <string.h>

static uint64_t nbytes_of(const struct fsdpck_kept_scales *k)
{
    return k->nunits * (k->unit_nbytes + 1);
}

/* Takes room of the total; false: there is none. */
static bool take_room(_Atomic uint64_t *total, uint64_t nbytes)
{
    uint64_t now = atomic_load(total);
    do {
        if (nbytes > FSDPCK_KEPT_SCALES_NBYTES - now)
            return false;
    } while (!atomic_compare_exchange_weak(total, &now, now + nbytes));
    return true;
}

static bool begin(struct fsdpck_kept_scales *k, _Atomic uint64_t *total)
{
    if (k->data || k->ended)
        return !k->ended;
    k->ended = !take_room(total, nbytes_of(k));
    if (k->ended)
        return false;
    k->data = malloc(nbytes_of(k));
    k->done = k->data ? k->data + k->nunits * k->unit_nbytes : NULL;
    if (k->done) {
        memset(k->done, 0, k->nunits);
        return true;
    }
    atomic_fetch_sub(total, nbytes_of(k));
    k->ended = true;
    return false;
}

void fsdpck_kept_scales_add(struct fsdpck_kept_scales *k, _Atomic uint64_t *total, uint64_t first, uint64_t n,
                            const void *scales)
{
    if (!begin(k, total))
        return;
    memcpy(k->data + first * k->unit_nbytes, scales, n * k->unit_nbytes);
    memset(k->done + first, 1, n);
}

bool fsdpck_kept_scales_take(struct fsdpck_kept_scales *k, _Atomic uint64_t *total, uint64_t first, uint64_t n,
                             uint64_t at, uint64_t nbytes, uint8_t *dst, uint64_t stride)
{
    if (!k->data || memchr(k->done + first, 0, n))
        return false;
    for (uint64_t i = 0; i < n; i++)
        memcpy(dst + i * stride, k->data + (first + i) * k->unit_nbytes + at, nbytes);
    k->ntaken += n * nbytes;
    if (k->ntaken < k->nunits * k->unit_nbytes)
        return true;
    fsdpck_kept_scales_free(k);
    atomic_fetch_sub(total, nbytes_of(k));
    k->ended = true;
    return true;
}

void fsdpck_kept_scales_free(struct fsdpck_kept_scales *k)
{
    free(k->data);
    k->data = k->done = NULL;
}
