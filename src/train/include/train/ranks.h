/* SPDX-License-Identifier: Apache-2.0 */
/* How many ranks a run may have. */
#ifndef TRAIN_RANKS_H
#define TRAIN_RANKS_H

enum { TRAIN_MAX_RANKS = 256 };

#endif
