/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by convert, export and export-lora: they open SOURCE, let the library write OUT, and print the result. */
#ifndef TOOLS_TRANSFER_H
#define TOOLS_TRANSFER_H

#include <fsdpck/convert.h>

#include "common/report.h"
#include "select_arg.h"
#include "source_arg.h"

struct transfer {
    const char *in, *out; /* as typed */
    const struct common_args *common;
    const struct source_args *source;
    const struct select_args *select;
    const struct fsdpck_mesh *mesh; /* of OUT; NULL: no ranks */
    /* Checks the verb's own options before anything is opened; may be NULL. */
    int (*prepare)(void *request, struct fsdpck_error *err);
    /* Lets the library write OUT. */
    int (*write)(void *request, struct fsdpck_source *src, const struct fsdpck_select *select,
                 const struct fsdpck_options *opt, struct fsdpck_transfer_result *result, struct fsdpck_error *err);
    void *request; /* passed to prepare and write */
};

/* Returns the exit code. */
int transfer_run(const struct transfer *t);

#endif
