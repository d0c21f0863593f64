/* SPDX-License-Identifier: Apache-2.0 */
/* Guesses data.columns for a data set whose first example has no known form. */
#ifndef TOOLS_INIT_COLUMNS_H
#define TOOLS_INIT_COLUMNS_H

#include <fsdpck/error.h>
#include <jansson.h>

/* *out: the value of data.columns, owned; NULL if none is needed or none matches. In the latter case the reader of the
 * data reports an error. */
int init_columns(const char *data, json_t **out, struct fsdpck_error *err);

#endif
