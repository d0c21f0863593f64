/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the communicator for linked devices share. */
#ifndef TRAIN_COMM_LINKED_IMPL_H
#define TRAIN_COMM_LINKED_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "comm/comm_linked.h"

struct linked {
    struct comm base;
    struct comm *host; /* the same lane of the host communicator */
    struct comm_on_device on;
    const struct kern_links *links;
    struct kern_link *link;          /* shared by all lanes; COMM_MAIN owns it and the fields below */
    struct kern_stream *stream;      /* carries all transfers between ranks */
    struct kern_event *made, *moved; /* recorded before and after COMM_MAIN's exchange */
    struct kern_stream *folds; /* for rounding before and folding after an exchange: COMM_MAIN: the compute stream,
                                  other lanes: `stream` */
    char *received;            /* (nranks, own_nelem) by sending rank, laid out like `own`; dtype comm.reduce */
    char *rounded;             /* (grad_nelem) laid out like the contribution; bf16; NULL: none are rounded */
    pthread_t thread;          /* COMM_MAIN: the thread that watches the link */
    bool watching;
    _Atomic bool ending;
};

/* Reports failures known so far. The enqueued work may not have run yet. */
int comm_linked_look(const struct linked *c, const char *operation, struct fsdpck_error *err);
/* Makes work enqueued on one stream from now on wait for the work already on the other. */
void comm_linked_follow(const struct linked *c, struct kern_event *event, struct kern_stream *before,
                        struct kern_stream *after);

/* struct comm_ops */
int comm_linked_gather(struct comm *base, enum comm_placement from, const struct comm_piece *pieces, size_t npieces,
                       char *into, struct fsdpck_error *err);
void comm_linked_keep(struct comm *base, const struct comm_piece *pieces, size_t npieces, const char *gathered);
int comm_linked_publish(struct comm *base, const struct comm_piece *pieces, size_t npieces, struct fsdpck_error *err);

#endif
