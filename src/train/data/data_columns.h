/* SPDX-License-Identifier: Apache-2.0 */
/* data.columns: gives the columns of a data set the names that this trainer knows. */
#ifndef TRAIN_DATA_COLUMNS_H
#define TRAIN_DATA_COLUMNS_H

#include <fsdpck/error.h>
#include <jansson.h>

/* columns: an object of this trainer's name -> the data set's, or NULL. Every column that is named must be in the
 * example, if only as null (which then counts as absent; columns of other forms are left out): FSDPCK_ERR_FORMAT,
 * without a file. */
int data_columns_apply(const json_t *columns, json_t *example, struct fsdpck_error *err);
/* 0 where there are none. */
uint64_t data_columns_hash(const json_t *columns);

#endif
