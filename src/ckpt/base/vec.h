/* SPDX-License-Identifier: Apache-2.0 */
/* A growing array of plain structs: `struct fsdpck_vec v = FSDPCK_VEC(struct x); struct x *p = fsdpck_vec_push(&v,
 * err);` */
#ifndef CKPT_VEC_H
#define CKPT_VEC_H

#include <fsdpck/error.h>

struct fsdpck_vec {
    void *data;
    size_t count, capacity, item_nbytes;
};
#define FSDPCK_VEC(type) \
    { \
        NULL, 0, 0, sizeof(type) \
    }

/* Appends a zeroed item and returns it, or NULL if out of memory. Pointers to earlier items become invalid. */
void *fsdpck_vec_push(struct fsdpck_vec *v, struct fsdpck_error *err);
/* Makes room for n items in total. */
int fsdpck_vec_reserve(struct fsdpck_vec *v, size_t n, struct fsdpck_error *err);
void fsdpck_vec_free(struct fsdpck_vec *v);

#endif
