/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes from device to device, between ranks: what NCCL does. A rank has one link to all others; operations are put on streams, in the same order by every rank.
 * Nothing here knows what is sent. */
#ifndef KERNELS_LINK_H
#define KERNELS_LINK_H

#include <kernels/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kern_link;

enum { KERN_LINK_ID_BYTES = 128 };

struct kern_links {
    const char *name; /* "nccl" */
    /* One rank makes it, and carries it to the others. */
    int (*make_id)(unsigned char *id /* (KERN_LINK_ID_BYTES) */, char *message);
    /* Collective; every rank is on a device of its own where !shares. Waits for the others, until broken() says true. index: this rank's device. */
    int (*open)(const unsigned char *id, uint32_t rank, uint32_t nranks, int index, bool (*broken)(void *ctx), void *ctx, struct kern_link **out, char *message);
    bool shares; /* several ranks may be on one device */
    /* After all that was put on streams has run, or abort. NULL does nothing. */
    void (*close)(struct kern_link *);
    /* In any thread: what is under way ends at once, here. The link only answers status from now on. */
    void (*abort)(struct kern_link *);
    /* What is known of failures, without waiting. */
    int (*status)(struct kern_link *, char *message);
    /* dst, nranks · nbytes, gets everybody's src (nbytes), by rank. All operations between begin and end are one. */
    void (*begin)(struct kern_link *);
    void (*all_gather)(struct kern_link *, struct kern_stream *, void *dst, const void *src, size_t nbytes);
    void (*send)(struct kern_link *, struct kern_stream *, const void *data, size_t nbytes, uint32_t to);
    void (*receive)(struct kern_link *, struct kern_stream *, void *data, size_t nbytes, uint32_t from);
    void (*end)(struct kern_link *, struct kern_stream *);
};

#ifdef __cplusplus
}
#endif
#endif
