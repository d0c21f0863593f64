/* SPDX-License-Identifier: Apache-2.0 */
/* The settings of a run in the messages of TensorBoard's hparams plugin. */
#ifndef TRAIN_HPARAMS_H
#define TRAIN_HPARAMS_H

#include <jansson.h>

#include "board/proto.h"

#define HPARAMS_START_TAG "_hparams_/session_start_info"
#define HPARAMS_END_TAG   "_hparams_/session_end_info"

/* Every number, word and truth value of the config under its name, "train.learning_rate". */
void hparams_start(struct proto *p, const json_t *config, const char *group, double seconds);
/* status: 0 unknown, 1 success, 2 failure */
void hparams_end(struct proto *p, unsigned status, double seconds);

#endif
