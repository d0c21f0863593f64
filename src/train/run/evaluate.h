/* SPDX-License-Identifier: Apache-2.0 */
/* The loss over data.eval. */
#ifndef TRAIN_EVALUATE_H
#define TRAIN_EVALUATE_H

#include "rank/rank.h"

/* The mean loss over the supervised tokens of data.eval. Collective. *stopping: a rank was asked to stop; the
 * evaluation was aborted, and there is no loss. */
int rank_evaluate(struct rank *r, struct train_metrics *m, bool *stopping, struct fsdpck_error *err);

#endif
