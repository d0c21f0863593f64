/* SPDX-License-Identifier: Apache-2.0 */
/* Compares seconds a token, as ranks may have different numbers of packets, with the median of all ranks. Short steps
 * are not judged: there, anything that the system does on the side makes a rank slow. */
#include "run/pace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double much = 1.5;           /* times the median */
static const double worth_seconds = 0.25; /* a step, above the median */

void pace_tokens(const struct step_plan *plan, size_t per, uint32_t n, int64_t *ntok)
{
    memset(ntok, 0, n * sizeof *ntok);
    for (size_t i = 0; i < plan->nmicros; i++)
        ntok[i / per % n] += plan->micros[i].ntok;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Ranks that computed nothing have no rate. */
static uint32_t rate_all(const struct pace *p, uint32_t n, double *rates, uint32_t *slowest)
{
    uint32_t nrates = 0;
    double most = 0;
    for (uint32_t q = 0; q < n; q++) {
        const double rate = p->ntok[q] ? p->seconds[q] / (double)p->ntok[q] : 0;
        if (!p->ntok[q])
            continue;
        *slowest = rate > most ? q : *slowest;
        most = rate > most ? rate : most;
        rates[nrates++] = rate;
    }
    return nrates;
}

static bool judge(struct pace *p, uint32_t n, char line[240])
{
    double rates[COMM_MAX_SUM];
    uint32_t slowest = 0;
    const uint32_t nrates = rate_all(p, n, rates, &slowest);
    if (nrates < 2)
        return false;
    qsort(rates, nrates, sizeof *rates, compare);
    const double median = rates[(nrates - 1) / 2], seconds = p->seconds[slowest] / PACE_STEPS,
                 usual = median * (double)p->ntok[slowest] / PACE_STEPS;
    if (seconds < much * usual || seconds - usual < worth_seconds || p->is_known[slowest])
        return false;
    p->is_known[slowest] = true;
    snprintf(
        line, 240,
        "rank %u is slow: it computed for %.2f s a step, and others need %.2f s for as much; all ranks wait for it "
        "(rank_busy_seconds in the metrics)",
        slowest, seconds, usual);
    return true;
}

bool pace_add(struct pace *p, uint32_t n, const double *busy_seconds, const int64_t *ntok, char line[240])
{
    for (uint32_t q = 0; q < n; q++) {
        p->seconds[q] += busy_seconds[q];
        p->ntok[q] += ntok[q];
    }
    if (++p->nsteps < PACE_STEPS)
        return false;
    const bool slow = judge(p, n, line);
    p->nsteps = 0;
    memset(p->seconds, 0, sizeof p->seconds);
    memset(p->ntok, 0, sizeof p->ntok);
    return slow;
}
