/* SPDX-License-Identifier: Apache-2.0 */
/* Reads what a run fixed at its first start from the checkpoint that it will resume from, before the run is opened.
 * Whether it may resume from that checkpoint is checked later. */
#ifndef TRAIN_RECALL_H
#define TRAIN_RECALL_H

#include <train/train.h>

/* Calls read() for the checkpoint that opt->resume names, or for those of output_dir, newest first, until it returns
 * true. False: no checkpoint has it. */
bool recall(const struct train_config *config, const struct train_options *opt,
            bool (*read)(const struct fsdpck_source *src, void *out), void *out);

#endif
