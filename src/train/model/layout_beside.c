/* SPDX-License-Identifier: Apache-2.0 */
#include "model/layout_beside.h"

#include <string.h>

size_t layout_own_nbytes(const struct layout *l)
{
    size_t nbytes = 0;
    for (size_t i = 0; i < l->nparams; i++)
        nbytes += param_is_adapter(&l->params[i]) ? param_value_nbytes(l, &l->params[i]) : 0;
    return nbytes;
}

/* Both layouts have the base's parameters in the same order. *at: where to begin to look. */
static const struct param *find_in(const struct layout *base, const char *name, size_t *at)
{
    for (size_t k = 0; k < base->nparams; k++, ++*at) {
        const struct param *p = &base->params[*at % base->nparams];
        if (strcmp(p->name, name) == 0)
            return p;
    }
    return NULL;
}

int layout_beside(const struct layout *base, size_t value_first, struct layout *l, struct fsdpck_error *err)
{
    size_t at = 0, own = value_first;
    for (size_t i = 0; i < l->nparams; i++) {
        struct param *p = &l->params[i];
        if (param_is_adapter(p)) {
            p->value_at = own;
            own += param_value_nbytes(l, p);
            continue;
        }
        const struct param *there = find_in(base, p->name, &at);
        if (!there || there->dtype != p->dtype || there->packed != p->packed || p->trainable)
            return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, NULL, "'%s' is not held so by the base in memory",
                                    p->name);
        p->value_at = there->value_at;
    }
    return 0;
}
