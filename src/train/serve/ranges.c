/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/ranges.h"

#include <stdlib.h>
#include <string.h>

#include "arrays/grow.h"

static void drop(struct ranges *r, size_t i)
{
    memmove(&r->list[i], &r->list[i + 1], (--r->n - i) * sizeof *r->list);
}

bool ranges_give(struct ranges *r, size_t first, size_t nbytes)
{
    size_t i = 0;
    if (nbytes == 0)
        return true;
    if (!grow((void **)&r->list, &r->capacity, r->n + 1, sizeof *r->list))
        return false;
    while (i < r->n && r->list[i].first < first)
        i++;
    memmove(&r->list[i + 1], &r->list[i], (r->n++ - i) * sizeof *r->list);
    r->list[i] = (struct range){ first, nbytes };
    if (i + 1 < r->n && first + nbytes == r->list[i + 1].first) {
        r->list[i].nbytes += r->list[i + 1].nbytes;
        drop(r, i + 1);
    }
    if (i > 0 && r->list[i - 1].first + r->list[i - 1].nbytes == first) {
        r->list[i - 1].nbytes += r->list[i].nbytes;
        drop(r, i);
    }
    return true;
}

bool ranges_take(struct ranges *r, size_t nbytes, size_t *first)
{
    for (size_t i = 0; i < r->n; i++) {
        struct range *x = &r->list[i];
        if (x->nbytes < nbytes)
            continue;
        *first = x->first;
        x->first += nbytes;
        x->nbytes -= nbytes;
        if (x->nbytes == 0)
            drop(r, i);
        return true;
    }
    return false;
}

size_t ranges_largest(const struct ranges *r)
{
    size_t most = 0;
    for (size_t i = 0; i < r->n; i++)
        most = r->list[i].nbytes > most ? r->list[i].nbytes : most;
    return most;
}

void ranges_free(struct ranges *r)
{
    free(r->list);
    *r = (struct ranges){ 0 };
}
