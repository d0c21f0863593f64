/* SPDX-License-Identifier: Apache-2.0 */
/* --ranks, --mesh, --placement, --replicate: choose which rank has which part of each tensor. */
#ifndef TOOLS_PLACEMENT_H
#define TOOLS_PLACEMENT_H

#include <fsdpck/convert.h>

#include "common/options.h"

struct placement_args {
    uint32_t ranks; /* 0: not given */
    const char *mesh;
    struct strings placement, replicate;
};

#define PLACEMENT_NOPTIONS 4
extern const struct option placement_options[PLACEMENT_NOPTIONS];
#define PLACEMENT_GROUP(args) \
    { \
        "Placement", placement_options, PLACEMENT_NOPTIONS, (args) \
    }

/* The parsed options, for the library. Borrows from the args; zero-initialise. */
struct placement_spec {
    struct fsdpck_mesh mesh;
    struct fsdpck_placement_rule *rules; /* (nrules) */
    size_t nrules;
    bool by_family;       /* auto */
    struct strings words; /* names and globs that mesh and rules point at */
};

/* Returns true if any of the options was given. */
bool placement_given(const struct placement_args *args);

/* Returns FSDPCK_ERR_USAGE if neither --ranks nor --mesh was given, or if the text is invalid. */
int placement_resolve(const struct placement_args *args, struct placement_spec *out, struct fsdpck_error *err);
void placement_spec_free(struct placement_spec *spec);

/* Copies mesh, rules and replicate globs into a request; they stay borrowed. */
void placement_fill(const struct placement_args *args, const struct placement_spec *spec,
                    struct fsdpck_convert_request *req);

#endif
