/* SPDX-License-Identifier: Apache-2.0 */
/* How long communication takes, within a host and between hosts: the bytes that the communicators of src/train/comm
 * move, divided by the rates of links. Pure. */
#ifndef TRAIN_PLAN_LINKS_H
#define TRAIN_PLAN_LINKS_H

#include "price/rates.h"
#include "rank/job.h"

/* Seconds of a rank. */
struct transfer {
    double busy; /* a processor is busy with it: copies and sums. 0 where devices have links of their own */
    double link; /* the rank waits for a link, which can be hidden */
};

/* A gather of nbytes, from `within` consecutive ranks. */
struct transfer links_gather(const struct job *job, const struct rates *rates, double nbytes, uint32_t within);
/* The sums over npackets of nelem gradients. */
struct transfer links_exchange(const struct job *job, const struct rates *rates, double nelem, double npackets);
/* nbytes a rank, to or from files of all ranks of a host, which share its disk. */
double links_disk(const struct job *job, const struct rates *rates, double nbytes);
/* Messages between ranks of a host, of which a rank sends and receives nbytes. */
double links_tokens(const struct rates *rates, double nbytes);
/* The way of new values to other replicas. nbytes: those of a rank. */
double links_spread(const struct job *job, const struct rates *rates, double nbytes);

#endif
