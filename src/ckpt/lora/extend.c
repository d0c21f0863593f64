/* SPDX-License-Identifier: Apache-2.0 */
#include "lora/extend.h"

#include <string.h>

int fsdpck_lora_extend(struct fsdpck_lora_adapter *a, size_t first, const int64_t *like, size_t n,
                       struct fsdpck_error *err)
{
    struct fsdpck_selection *s = &a->selection;
    const size_t before = s->ntensors, all = before + n;
    struct fsdpck_chosen *chosen = fsdpck_arena_array(&a->arena, all, sizeof *chosen, err);
    struct fsdpck_lora_name *names = fsdpck_arena_array(&a->arena, all, sizeof *names, err);
    bool *joined = fsdpck_arena_array(&a->arena, all, sizeof *joined, err);
    if (!chosen || !names || !joined)
        return FSDPCK_ERR_NOMEM;
    memcpy(chosen, s->tensors, before * sizeof *chosen);
    memcpy(names, a->names, before * sizeof *names);
    for (size_t i = 0; i < n; i++) {
        names[before + i] = names[like[i]];
        chosen[before + i] = (struct fsdpck_chosen){ .name = source_tensors(a->src)[first + i].name,
                                                     .source = first + i,
                                                     .alias_of = -1,
                                                     .dtype = chosen[like[i]].dtype };
    }
    if (a->joined)
        memcpy(joined, a->joined, before * sizeof *joined);
    s->tensors = chosen;
    s->ntensors = all;
    a->names = names;
    a->joined = joined;
    return 0;
}
