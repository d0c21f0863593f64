/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the groups of parameters that are gathered together. */
#include "plan_table.h"

#include <stdio.h>
#include <string.h>

#include "common/text.h"

void plan_table_print(const struct train_plan *plan)
{
    char nbytes[TEXT_NBYTES], strategy[2 * TRAIN_WORD_NBYTES + 16];
    bool mixed = false;
    int width = 22;
    for (uint32_t i = 1; i < plan->ngroups; i++)
        mixed |= strcmp(plan->groups[i].dtype, plan->groups[0].dtype) != 0;
    for (uint32_t i = 0; i < plan->ngroups; i++)
        width = (int)strlen(plan->groups[i].pattern) > width ? (int)strlen(plan->groups[i].pattern) : width;
    printf("\n%-*s %6s %12s %10s %10s  %-18s %s\n", width, "gathered together", "groups", "elements", "bytes",
           "recomputed", "strategy", "when");
    for (uint32_t i = 0; i < plan->ngroups; i++) {
        const struct train_plan_group *g = &plan->groups[i];
        snprintf(strategy, sizeof strategy, "%s", g->strategy);
        if (strncmp(strategy, "HYBRID", 6) == 0 && g->nshards != plan->nshards)
            snprintf(strategy, sizeof strategy, "%s of %u", g->strategy, g->nshards);
        if (mixed)
            snprintf(strategy + strlen(strategy), TRAIN_WORD_NBYTES, ", %s", g->dtype);
        printf("%-*s %6u %12llu %10s %10u  %-18s %s\n", width, g->pattern, g->ngroups, (unsigned long long)g->nelem,
               text_bytes(g->nbytes, nbytes), g->nrecomputed, strategy, g->when);
    }
}

json_t *plan_table_json(const struct train_plan *plan)
{
    json_t *list = json_array();
    bool ok = list != NULL;
    for (uint32_t i = 0; i < plan->ngroups; i++) {
        const struct train_plan_group *g = &plan->groups[i];
        json_t *o = json_pack("{s:s,s:I,s:I,s:I,s:i,s:s,s:i,s:s,s:s}", "parameters", g->pattern, "groups",
                              (json_int_t)g->ngroups, "elements", (json_int_t)g->nelem, "gathered_bytes",
                              (json_int_t)g->nbytes, "recomputed", (int)g->nrecomputed, "strategy", g->strategy,
                              "shard_ranks", (int)g->nshards, "param_dtype", g->dtype, "when", g->when);
        ok = ok && json_array_append_new(list, o) == 0;
    }
    if (ok)
        return list;
    json_decref(list);
    return NULL;
}
