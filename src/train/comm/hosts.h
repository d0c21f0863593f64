/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks run on which host. A host here is a run of consecutive ranks that can share memory: ranks of one machine
 * that are not consecutive count as several hosts, which costs messages and changes no result. */
#ifndef TRAIN_HOSTS_H
#define TRAIN_HOSTS_H

#include "comm/comm.h"

struct hosts {
    uint32_t n;      /* number of hosts */
    uint32_t mine;   /* the host of this rank */
    uint32_t *of;    /* (nranks) */
    uint32_t *first; /* (n + 1) the first rank of each host; then nranks */
    uint64_t *keys;  /* (nranks) equal for ranks of one machine */
};

/* Collective. alone: each rank is a host of its own, whatever it runs on. */
int hosts_find(struct comm *c, bool alone, struct hosts *out, struct fsdpck_error *err);
void hosts_free(struct hosts *h);
/* Number of ranks of a host. */
uint32_t hosts_size(const struct hosts *h, uint32_t host);
/* Whether a host has a rank r with r mod within = remainder. */
bool hosts_has(const struct hosts *h, uint32_t host, uint32_t within, uint32_t remainder);
/* The same for all hosts and remainders: each host holds everything that a group of `within` ranks holds. */
bool hosts_hold_all(const struct hosts *h, uint32_t within);

#endif
