/* SPDX-License-Identifier: Apache-2.0 */
/* The names of a checkpoint's files. */
#ifndef CKPT_SHARD_NAME_H
#define CKPT_SHARD_NAME_H

#include <stdio.h>

#include "base/hash.h"

#define FSDPCK_SHARD_NAME_MAX 80u

/* "__3_0.distcp"; in place the name includes the save id, because the old checkpoint's files still exist. */
static inline void fsdpck_shard_name(uint32_t rank, bool in_place, const uint8_t save_id[16],
                                     char name[FSDPCK_SHARD_NAME_MAX])
{
    char uuid[37];
    fsdpck_uuid_format(save_id, uuid);
    snprintf(name, FSDPCK_SHARD_NAME_MAX, in_place ? "__%u_0-%s.distcp" : "__%u_0.distcp", rank, uuid);
}

static inline void fsdpck_assets_name(bool in_place, const uint8_t save_id[16], char name[FSDPCK_SHARD_NAME_MAX])
{
    char uuid[37];
    fsdpck_uuid_format(save_id, uuid);
    snprintf(name, FSDPCK_SHARD_NAME_MAX, in_place ? "assets-%s" : "assets", uuid);
}

#endif
