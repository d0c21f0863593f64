/* What the columns of a data set stand for, where its first example is of no form that the trainer knows. */
#ifndef TOOLS_INIT_COLUMNS_H
#define TOOLS_INIT_COLUMNS_H

#include <fsdpck/error.h>
#include <jansson.h>

/* The value of data.columns, or NULL in *out: none is needed, or none is known, which the data's reader then says. Owned. */
int init_columns(const char *data, json_t **out, struct fsdpck_error *err);

#endif
