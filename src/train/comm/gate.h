/* SPDX-License-Identifier: Apache-2.0 */
/* A barrier in memory that processes of one host share. The caller waits in its own loop, so that it decides when a
 * late participant is given up. A process that dies inside blocks nobody but those that wait for it. */
#ifndef TRAIN_GATE_H
#define TRAIN_GATE_H

#include <stddef.h>
#include <stdint.h>

struct gate;

/* Bytes of a gate for n participants, a multiple of 64. The memory must be zeroed and aligned to 64. */
size_t gate_nbytes(uint32_t n);
/* Before anybody enters. */
void gate_init(struct gate *g, uint32_t n);
/* Participant `index` has arrived. Returns a ticket: the gate opens when all have. */
uint32_t gate_enter(struct gate *g, uint32_t index);
int gate_is_open(const struct gate *g, uint32_t ticket);
/* Sleeps until the gate opens, or for ns < 10^9 nanoseconds. */
void gate_sleep(struct gate *g, uint32_t ticket, long ns);
/* The first participant that has entered less often than `index`. */
uint32_t gate_late(const struct gate *g, uint32_t index);

#endif
