/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinator's hold on a save, from its begin to its commit. */
#ifndef CKPT_SAVE_PHASES_H
#define CKPT_SAVE_PHASES_H

#include <fsdpck/save.h>

#include "commit/commit.h"
#include "verbs/save_shard.h"

struct fsdpck_save_begun {
    struct fsdpck_commit *commit;
    struct fsdpck_save_place place;
    uint32_t nranks;
};

#endif
