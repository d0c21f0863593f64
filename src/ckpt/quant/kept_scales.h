/* SPDX-License-Identifier: Apache-2.0 */
/* Scales that were computed along with codes, kept until their own tensor is asked for: without them, the whole weight
 * would be read a second time. Safe for several threads. */
#ifndef CKPT_QUANT_KEPT_SCALES_H
#define CKPT_QUANT_KEPT_SCALES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define FSDPCK_KEPT_SCALES_NBYTES (8u << 20) /* of all weights together; scales beyond are computed again */

/* Of one weight. Its units are the rows of the grid of scales, or single scales. The owner's lock guards it. */
struct fsdpck_kept_scales {
    uint8_t *data, *done; /* NULL: none yet. done: (nunits) whether the unit is there */
    uint64_t nunits, unit_nbytes, ntaken;
    bool ended; /* all were taken, or there was no room: nothing is kept any more */
};

/* Keeps units [first, first + n). total: the bytes kept by all weights. Without room or memory, it keeps nothing. */
void fsdpck_kept_scales_add(struct fsdpck_kept_scales *k, _Atomic uint64_t *total, uint64_t first, uint64_t n,
                            const void *scales);
/* Copies bytes [at, at + nbytes) of each of these units to dst; false: some are not there. Frees all once as many bytes
 * were taken as there are. */
bool fsdpck_kept_scales_take(struct fsdpck_kept_scales *k, _Atomic uint64_t *total, uint64_t first, uint64_t n,
                             uint64_t at, uint64_t nbytes, uint8_t *dst, uint64_t stride);
void fsdpck_kept_scales_free(struct fsdpck_kept_scales *k);

#endif
