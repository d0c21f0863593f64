/* SPDX-License-Identifier: Apache-2.0 */
/* A generation number that the last one to arrive increments, and a futex to sleep on it. */
#include "comm/gate.h"

#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct gate {
    _Alignas(64) _Atomic uint32_t arrived;
    _Atomic uint32_t generation;
    uint32_t n;
    _Atomic uint32_t arrivals[]; /* (n) number of times that each participant has entered */
};

size_t gate_nbytes(uint32_t n)
{
    return (sizeof(struct gate) + n * sizeof(uint32_t) + 63) / 64 * 64;
}

void gate_init(struct gate *g, uint32_t n)
{
    g->n = n;
}

uint32_t gate_enter(struct gate *g, uint32_t index)
{
    const uint32_t ticket = atomic_load(&g->generation);
    atomic_fetch_add(&g->arrivals[index], 1);
    if (atomic_fetch_add(&g->arrived, 1) + 1 == g->n) {
        atomic_store(&g->arrived, 0);
        atomic_fetch_add(&g->generation, 1);
        syscall(SYS_futex, &g->generation, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    }
    return ticket;
}

int gate_is_open(const struct gate *g, uint32_t ticket)
{
    return atomic_load(&g->generation) != ticket;
}

void gate_sleep(struct gate *g, uint32_t ticket, long ns)
{
    const struct timespec limit = { .tv_nsec = ns };
    syscall(SYS_futex, &g->generation, FUTEX_WAIT, ticket, &limit, NULL, 0);
}

uint32_t gate_late(const struct gate *g, uint32_t index)
{
    const uint32_t mine = atomic_load(&g->arrivals[index]);
    uint32_t late = 0;
    while (late + 1 < g->n && atomic_load(&g->arrivals[late]) >= mine)
        late++;
    return late;
}
