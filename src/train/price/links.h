/* SPDX-License-Identifier: Apache-2.0 */
/* Rates of what connects ranks, measured on this host alone. */
#ifndef TRAIN_LINKS_H
#define TRAIN_LINKS_H

/* Bytes in a second that a processor copies from memory that processes share; 0 if it cannot be measured. */
double links_shared(void);
/* Messages in a row in a second, through the host's own network software; 0 if it cannot be measured. */
double links_messages(void);
/* Bytes in a second of the fastest network interface that is up, as its driver says; 0: none says so. */
double links_network(void);

#endif
