/* SPDX-License-Identifier: Apache-2.0 */
/* --include, --exclude, --rename, --alias, --select, --dtype: choose the output's tensors, names and type. */
#ifndef TOOLS_SELECT_ARG_H
#define TOOLS_SELECT_ARG_H

#include <fsdpck/select.h>

#include "common/options.h"

struct select_args {
    struct strings include, exclude, rename, alias;
    const char *tree, *dtype;
};

#define SELECT_NOPTIONS 6
extern const struct option select_options[SELECT_NOPTIONS];
#define SELECT_GROUP(args) \
    { \
        "Which tensors", select_options, SELECT_NOPTIONS, (args) \
    }

/* The parsed options, for the library. Borrows from the args; zero-initialise. */
struct select_spec {
    struct fsdpck_select select;
    struct fsdpck_pair *pairs; /* renames, then aliases; key and value are owned */
    size_t npairs;
};

int select_arg_resolve(const struct select_args *args, struct select_spec *out, struct fsdpck_error *err);
void select_spec_free(struct select_spec *spec);

/* Reads bf16, fp16, fp32 and the long forms of these. */
bool dtype_arg_parse(const char *text, enum fsdpck_dtype *out);

#endif
