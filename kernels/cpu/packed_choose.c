/* SPDX-License-Identifier: Apache-2.0 */
/* A table of shapes and of the time that each plan took. Shapes with about as many rows, columns and units share a
 * place, because numbers of tokens may differ from step to step. A shape that falls on another's place takes it over
 * and is measured anew. */
#include "cpu/packed_plan.h"
#include "cpu/stream.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    NPLACE = 512,
    TRIES = 3,        /* calls per plan; the fastest counts, because other work only makes a call slower */
    LITTLE = 1 << 18, /* products of units; fewer are over before a clock tells plans apart */
};

struct shape {
    int64_t m, n, units, pitch_a, pitch_b, pitch_c;
    int32_t nparts, kind;
};

struct place {
    struct shape shape;
    double cost[CPU_PACKED_PLANS]; /* least nanoseconds per product of units; 0: not measured */
    uint32_t ncall, best;
};

struct cpu_packed_choices {
    struct place place[NPLACE];
};

struct cpu_packed_choices *cpu_packed_choices_new(void)
{
    return calloc(1, sizeof(struct cpu_packed_choices));
}

void cpu_packed_choices_free(struct cpu_packed_choices *choices)
{
    free(choices);
}

/* Rounds down to three significant bits. */
static int64_t about(int64_t n)
{
    int shift = 0;
    while (n >> shift > 7)
        shift++;
    return n >> shift << shift;
}

static struct shape shape_of(const struct cpu_packed *w, int nplans)
{
    const struct kern_gemm *g = w->g;
    const int kind = g->trans_a | g->trans_b << 1 | (int)g->a.dtype << 2 | (int)g->c.dtype << 3 | nplans << 4;
    return (struct shape){ about(w->m), about(w->n), about(w->units), g->a.pitch,
                           g->b.pitch,  g->c.pitch,  w->nparts,       kind };
}

static struct place *find(struct cpu_packed_choices *choices, const struct shape *shape)
{
    const int64_t part[] = { shape->m,       shape->n,       shape->units,  shape->pitch_a,
                             shape->pitch_b, shape->pitch_c, shape->nparts, shape->kind };
    uint64_t hash = 14695981039346656037u; /* FNV-1a over 64-bit numbers */
    for (size_t i = 0; i < sizeof(part) / sizeof(part[0]); i++)
        hash = (hash ^ (uint64_t)part[i]) * 1099511628211u;
    struct place *p = &choices->place[(hash ^ hash >> 32) % NPLACE];
    if (memcmp(&p->shape, shape, sizeof(*shape)) != 0)
        *p = (struct place){ .shape = *shape };
    return p;
}

static uint64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void run_and_measure(const struct cpu_packed *w, const struct cpu_packed_plan *plans, int nplans,
                            struct place *p)
{
    const uint32_t i = p->ncall++ % (uint32_t)nplans;
    const uint64_t start = now_ns();
    cpu_packed_run(w, &plans[i]);
    const double cost = (double)(now_ns() - start + 1) / ((double)w->m * (double)w->n * (double)w->units);
    if (p->cost[i] == 0 || cost < p->cost[i])
        p->cost[i] = cost;
    if (p->cost[i] < p->cost[p->best])
        p->best = i;
}

void cpu_packed_choose(struct cpu_packed_choices *choices, const struct cpu_packed *w)
{
    struct cpu_packed_plan plans[CPU_PACKED_PLANS];
    const int nplans = cpu_packed_plans(w, kern_pool_nthreads(w->stream->pool), plans);
    const struct shape shape = shape_of(w, nplans);
    struct place *p = nplans > 1 && w->m * w->n * w->units > LITTLE ? find(choices, &shape) : NULL;
    if (p && p->ncall < TRIES * (uint32_t)nplans)
        run_and_measure(w, plans, nplans, p);
    else
        cpu_packed_run(w, &plans[p ? p->best : 0]);
}
