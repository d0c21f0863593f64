/* SPDX-License-Identifier: Apache-2.0 */
/* data.columns: gives the columns of a data set the names that this trainer knows. */
#ifndef TRAIN_DATA_COLUMNS_H
#define TRAIN_DATA_COLUMNS_H

#include <fsdpck/error.h>
#include <jansson.h>

/* columns: an object that maps this trainer's names to names in the data set, or NULL. The example must have each named
 * column, else FSDPCK_ERR_FORMAT (the error has no file). A column that is null counts as absent; columns of other
 * forms are dropped. */
int data_columns_apply(const json_t *columns, json_t *example, struct fsdpck_error *err);
/* 0 if there are no columns. */
uint64_t data_columns_hash(const json_t *columns);

#endif
