/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of an adapter beside a base that is in memory already, and that other adapters use too. */
#ifndef TRAIN_LAYOUT_BESIDE_H
#define TRAIN_LAYOUT_BESIDE_H

#include "model/layout.h"

/* Bytes of the parameters that are the adapter's own. */
size_t layout_own_nbytes(const struct layout *l);
/* Gives the parameters of l, a layout of one rank, the places that they have in `base`; the adapter's own follow each
 * other from value_first on (bytes of parameter memory, a multiple of 64). */
int layout_beside(const struct layout *base, size_t value_first, struct layout *l, struct fsdpck_error *err);

#endif
