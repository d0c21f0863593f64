/* SPDX-License-Identifier: Apache-2.0 */
/* Within the view of side_view.h: the tensors that it is made from, and their rows in the table of the side. */
#ifndef CKPT_SIDE_PARTS_H
#define CKPT_SIDE_PARTS_H

#include "view/experts.h"
#include "view/layout.h"
#include "view/side_table.h"

enum { FSDPCK_SIDE_NAME_NBYTES = 1024, FSDPCK_SIDE_MAX_NDIM = 3 };

struct fsdpck_side_mover {
    struct fsdpck_source *src, *inner;
    struct fsdpck_layout *layout;
    const struct fsdpck_side *side;
    const struct fsdpck_moe *model;
    bool to;                                    /* to the side, else from it */
    const struct fsdpck_text_names *has, *gets; /* what names of the text begin with, before and after */
    size_t nleft;
    struct fsdpck_error *err;
};

/* A tensor and its row of the table. */
struct fsdpck_side_found {
    const struct fsdpck_tensor *t;
    char name[FSDPCK_SIDE_NAME_NBYTES]; /* of a text part alone; match points into it */
    struct fsdpck_side_match match;
    uint32_t dim; /* of its rows */
};

/* The names of a row, before and after. */
static inline const char *const *fsdpck_side_from(const struct fsdpck_side_mover *m, const struct fsdpck_side_row *row)
{
    return m->to ? row->held : row->other;
}

static inline const char *const *fsdpck_side_to(const struct fsdpck_side_mover *m, const struct fsdpck_side_row *row)
{
    return m->to ? row->other : row->held;
}

/* The dimension, after, that a dimension before is, and the other way round. */
static inline uint32_t fsdpck_side_turn(const struct fsdpck_side_found *f, uint32_t d)
{
    return f->match.row->turned && d > 0 ? FSDPCK_SIDE_MAX_NDIM - d : d;
}

/* Names the tensor of an error; returns the code. */
int fsdpck_side_refuse(const struct fsdpck_side_mover *m, int code, const char *name);
/* Writes the name that a pattern of a row stands for, after. */
void fsdpck_side_fill(const struct fsdpck_side_mover *m, const struct fsdpck_side_found *f, const char *pattern,
                      char out[FSDPCK_SIDE_NAME_NBYTES]);
/* Adds the weight that nparts tensors are joined to, of which f is one: it goes out with the first. */
int fsdpck_side_join(const struct fsdpck_side_mover *m, const struct fsdpck_side_found *f, int nparts);
/* Adds the nparts weights that f is cut into; if it is one, the weight is only turned. */
int fsdpck_side_cut(const struct fsdpck_side_mover *m, const struct fsdpck_side_found *f, int nparts);

#endif
