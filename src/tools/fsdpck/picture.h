/* SPDX-License-Identifier: Apache-2.0 */
/* --html: a page that shows a checkpoint: which rank holds which rows, bytes of ranks and files, what a placement
 * moves, and damage. Tensors whose names differ in numbers only, and that are laid out alike, are one group, so that
 * the page grows with the kinds of tensors. */
#ifndef TOOLS_PICTURE_H
#define TOOLS_PICTURE_H

#include <fsdpck/check.h>
#include <fsdpck/convert.h>
#include <jansson.h>

#include "common/options.h"

/* With more replicas, the owner of a part is not looked for. */
enum { PICTURE_REPLICAS = 4096 };

/* What a page shows besides the source. Zero-initialise. */
struct picture {
    const char *typed;                         /* the source's name, as it was typed */
    const char *glob;                          /* tensors; NULL: all */
    const struct fsdpck_mesh *mesh;            /* of a plan; NULL: none */
    const struct fsdpck_convert_place *places; /* (ntensors) of a plan */
    const struct fsdpck_plan *plans;           /* (ranks of the mesh) */
    json_t *damage;   /* array made by picture_problem(); NULL: nothing was verified. Borrowed */
    uint64_t ndamage; /* with those that the array leaves out */
};

/* How it is laid out: as a group of tensors, or one of them. */
struct picture_layout {
    const struct fsdpck_tensor *tensor;       /* the first of them */
    const struct fsdpck_convert_place *place; /* its place in a plan, or NULL */
    uint64_t count;
    uint64_t *by_owner; /* (replicas) how many have this rotation of owners; NULL: no replicas */
    uint32_t nreplicas;
};

#define PICTURE_OPTION(at) \
    { \
        .name = "html", .type = OPTION_STRING, .offset = (at), .value = "FILE", \
        .help = "also write a page that shows which rank holds which rows; a page that exists is replaced" \
    }

/* Adds a problem to the array; later ones than the first thousand are only counted. Returns false if out of memory. */
bool picture_problem(json_t *damage, const struct fsdpck_problem *problem);
/* Writes the page; src may be NULL: it did not open. */
int picture_write(const char *out, const struct fsdpck_source *src, const struct picture *picture,
                  struct fsdpck_error *err);

/* The groups of the tensors, as JSON and as layouts in the same order; layouts: owned, by picture_layouts_free(). */
json_t *picture_groups(const struct fsdpck_source *src, const struct picture *picture, struct picture_layout **layouts,
                       size_t *count);
void picture_layouts_free(struct picture_layout *layouts, size_t count);
/* Bytes that each rank of the plan takes from each rank of the source, summed in blocks of ranks; null if the source
 * has no ranks, or the plan would take too long to compare. */
json_t *picture_moves(const struct picture *picture, const struct picture_layout *layouts, size_t count);

#endif
