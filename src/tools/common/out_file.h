/* SPDX-License-Identifier: Apache-2.0 */
/* A file that a verb writes for people: it replaces one of its own kind and no other file. */
#ifndef TOOLS_OUT_FILE_H
#define TOOLS_OUT_FILE_H

#include <fsdpck/error.h>
#include <stdio.h>

struct out_file {
    const char *path;
    const char *what, *option; /* for messages: "report", "--out" */
    const char *const *heads;  /* how files of the kind begin, up to NULL */
    /* Writes the contents; false: out of memory. */
    bool (*put)(FILE *f, const void *ctx);
    const void *ctx;
};

/* Writes beside the file, and renames: one that exists stays until the new one is whole. FSDPCK_ERR_EXISTS: a file of
 * another kind is there. */
int out_file_write(const struct out_file *out, struct fsdpck_error *err);
/* The same check alone, for verbs that work long before they write. */
int out_file_check(const struct out_file *out, struct fsdpck_error *err);

#endif
