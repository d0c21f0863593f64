/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks with parameters and gradients in device memory that communicate through host memory. For several ranks on one
 * device, and for devices without links. The schedule and the bits are those of the host communicator. */
#ifndef TRAIN_COMM_STAGED_H
#define TRAIN_COMM_STAGED_H

#include <kernels/memory.h>

#include "comm/comm.h"

/* The parts of a rank that are on its device. All borrowed. */
struct comm_on_device {
    const struct kern_device *device;
    int index;
    struct kern_stream *compute; /* kernels on this stream make gradients and use the reduced ones */
    bool views;                  /* as in struct comm */
    uint32_t kept_within;        /* the same; linked devices only */
    unsigned char *values; /* the chunks that this rank holds at rest; staged: only those that it owns. If it holds all,
                              the whole parameters, at comm_piece.at */
    bool on_host;          /* `values` is pinned memory. Staged: unused, the host communicator's have them alone */
    char
        *passage; /* linked, and on_host with several copies: (passage_nbytes) of device memory for what is published */
    size_t passage_nbytes;
    unsigned char *kept; /* linked: the chunks that it keeps, of pieces with an `own` of at least kept_from */
    size_t kept_from;
    float *contribution; /* (grad_nelem) */
    int64_t grad_nelem;
    const float *own; /* (own_nelem) holds the `into` of every slice */
    bool own_changes; /* `own` has other sums between exchanges: those that are there count */
    int64_t own_nelem;
    size_t largest_group_nbytes; /* of the largest gather */
    size_t element_nbytes;       /* of a gradient that is exchanged, at most */
    bool rounds;                 /* some gradients are rounded */
};

/* host: COMM_MAIN of the ranks, borrowed. *out is its COMM_MAIN on the device; its ops->free does not free host. */
int comm_staged_new(struct comm *host, const struct comm_on_device *on, struct comm **out, struct fsdpck_error *err);

#endif
