/* SPDX-License-Identifier: Apache-2.0 */
/* A growing array. Knows only the size of its items. */
#include "base/vec.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int fsdpck_vec_reserve(struct fsdpck_vec *v, size_t n, struct fsdpck_error *err)
{
    assert(v->item_nbytes > 0);
    if (n <= v->capacity)
        return 0;
    if (n > SIZE_MAX / v->item_nbytes)
        return fsdpck_error_nomem(err, SIZE_MAX);
    void *data = realloc(v->data, n * v->item_nbytes);
    if (!data)
        return fsdpck_error_nomem(err, n * v->item_nbytes);
    v->data = data;
    v->capacity = n;
    return 0;
}

void *fsdpck_vec_push(struct fsdpck_vec *v, struct fsdpck_error *err)
{
    if (v->count == v->capacity) {
        size_t more = v->capacity < 8 ? 8 : v->capacity;
        if (more > SIZE_MAX - v->capacity) {
            fsdpck_error_nomem(err, SIZE_MAX);
            return NULL;
        }
        if (fsdpck_vec_reserve(v, v->capacity + more, err) != 0)
            return NULL;
    }
    char *item = (char *)v->data + v->count++ * v->item_nbytes;
    return memset(item, 0, v->item_nbytes);
}

void fsdpck_vec_free(struct fsdpck_vec *v)
{
    free(v->data);
    v->data = NULL;
    v->count = v->capacity = 0;
}
