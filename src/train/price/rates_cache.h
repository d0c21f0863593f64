/* SPDX-License-Identifier: Apache-2.0 */
/* Where rates come from: a file that the user names, or the folder that keeps those of this machine. */
#ifndef TRAIN_RATES_CACHE_H
#define TRAIN_RATES_CACHE_H

#include <train/train.h>

#include "price/rates.h"

/* *found: false if opt names neither. A file in the folder that is damaged or of another machine is replaced. */
int rates_get(const struct train_options *opt, struct rates *out, bool *found, struct fsdpck_error *err);

#endif
