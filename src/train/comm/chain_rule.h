/* SPDX-License-Identifier: Apache-2.0 */
/* When gradients travel between hosts as sums (comm_mpi_chain.c), and the memory that this takes: for the communicator,
 * and for plans of runs that it will serve. */
#ifndef TRAIN_CHAIN_RULE_H
#define TRAIN_CHAIN_RULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A piece of an owner's elements is one message, which a checksum follows. A rank handles pieces in slots. */
enum { CHAIN_PIECE = 1 << 18, CHAIN_SLOTS = 4 };
enum { CHAIN_MESSAGE_NBYTES = CHAIN_PIECE * sizeof(float) + sizeof(uint64_t) };

/* True if hops of a sum from host to host move fewer bytes than contributions that enter the owner's host. */
static inline bool chain_pays(uint64_t hops, uint64_t ncontributions, size_t contribution_nbytes)
{
    return hops * sizeof(float) < ncontributions * contribution_nbytes;
}

/* Buffers of a rank that owns so many elements of an exchange: for the pieces that it handles; for the sum of each
 * piece that it owns, and for the sum of earlier waves. */
static inline uint64_t chain_nbytes(uint64_t nowned)
{
    return (CHAIN_SLOTS + 2 * ((nowned + CHAIN_PIECE - 1) / CHAIN_PIECE)) * (uint64_t)CHAIN_MESSAGE_NBYTES;
}

#endif
