/* SPDX-License-Identifier: Apache-2.0 */
#include "model/packed.h"

#include <stdlib.h>
#include <string.h>

#include "arrays/grow.h"

struct packed_weight *packed_add(struct packed_weights *p, struct fsdpck_error *err)
{
    if (grow((void **)&p->list, &p->capacity, p->n + 1, sizeof *p->list))
        return &p->list[p->n++];
    fsdpck_error_nomem(err, (p->n + 1) * sizeof *p->list);
    return NULL;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct packed_weight *)a)->name, ((const struct packed_weight *)b)->name);
}

void packed_sort(struct packed_weights *p)
{
    if (p->n)
        qsort(p->list, p->n, sizeof *p->list, by_name);
}

static int is_named(const void *name, const void *weight)
{
    return strcmp(name, ((const struct packed_weight *)weight)->name);
}

const struct packed_weight *packed_find(const struct packed_weights *p, const char *name)
{
    return p->n ? bsearch(name, p->list, p->n, sizeof *p->list, is_named) : NULL;
}

void packed_free(struct packed_weights *p)
{
    free(p->list);
    *p = (struct packed_weights){ 0 };
}
