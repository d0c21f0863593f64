/* SPDX-License-Identifier: Apache-2.0 */
/* The expert group of a rank (fsdp.expert_parallel): consecutive ranks of a host, each with whole experts. */
#ifndef TRAIN_OWNERS_H
#define TRAIN_OWNERS_H

#include "rank/job.h"

struct owners;

/* Refuses by name the runs that have no expert groups. Call with a complete layout and mesh. */
int owners_check(const struct job *job, struct fsdpck_error *err);
/* Bytes of the experts that a rank has; 0 without groups. */
uint64_t owners_expert_nbytes(const struct job *job);
/* Collective: lets all ranks recompute as many blocks as the one that recomputes most, because they exchange tokens in
 * them too. comm: COMM_MAIN. all: (n) the computations of the rank, as for memory_choose(). */
int owners_agree(const struct job *job, struct comm *comm, struct compute *c, struct compute *const *all, size_t n,
                 struct fsdpck_error *err);
/* Gives the computation, which is bound to its memory, the rank's group. comm and c are borrowed. */
int owners_new(const struct job *job, struct comm *comm, struct compute *c, struct owners **out,
               struct fsdpck_error *err);
/* From now on, each rank computes into the contribution of the rank `shift` places before it, in a circle of those that
 * share memory. */
void owners_shift(struct owners *o, const struct comm *comm, uint32_t shift);
void owners_free(struct owners *o); /* NULL does nothing */

#endif
