/* SPDX-License-Identifier: Apache-2.0 */
/* Communication between the devices of several ranks, as NCCL provides it. A rank has one link to all others. All
 * ranks must enqueue the operations in the same order. */
#ifndef KERNELS_LINK_H
#define KERNELS_LINK_H

#include <kernels/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kern_link;

enum { KERN_LINK_ID_BYTES = 128 };

struct kern_links {
    const char *name; /* "NCCL" */
    /* One rank makes the id and sends it to the others. */
    int (*make_id)(unsigned char *id /* (KERN_LINK_ID_BYTES) */, char *message);
    /* Collective. Unless `shares`, every rank needs a device of its own. Waits for the other ranks until broken()
     * returns true. index: the device of this rank. */
    int (*open)(const unsigned char *id, uint32_t rank, uint32_t nranks, int index, bool (*broken)(void *ctx),
                void *ctx, struct kern_link **out, char *message);
    bool shares; /* several ranks may be on one device */
    /* Call it after all enqueued operations have run, or after abort. NULL does nothing. */
    void (*close)(struct kern_link *);
    /* From any thread: cancels the operations in flight on this rank. Afterwards the link answers only status. */
    void (*abort)(struct kern_link *);
    /* The failures known so far; does not wait. */
    int (*status)(struct kern_link *, char *message);
    /* Gathers src (nbytes) of every rank into dst (nranks · nbytes), ordered by rank. The operations between begin and
     * end are launched as one. */
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
