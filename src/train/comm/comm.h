/* SPDX-License-Identifier: Apache-2.0 */
/* Collective operations between ranks, as a small table of functions. Implementations: shared memory for the processes
 * of one host, MPI, and, on top of either, one for data in device memory. All ranks must enter the operations of a
 * lane in the same order. Knows nothing of models or steps; each operation has a name for messages. */
#ifndef TRAIN_COMM_H
#define TRAIN_COMM_H

#include <fsdpck/dtype.h>
#include <fsdpck/error.h>
#include <train/ranks.h>

#include "comm/job_status.h"

struct comm;
struct comm_trade; /* comm/trade.h */
struct kern_stream;

/* Names of operations in messages about a rank that is lost or late. */
#define COMM_GATHER_OPERATION   "gather of parameters"
#define COMM_EXCHANGE_OPERATION "exchange of gradients"
#define COMM_UPDATE_OPERATION   "update of parameters"
#define COMM_TOKENS_OPERATION   "exchange of tokens"

/* The lanes of communication. A lane has one thread in each rank; these threads communicate only with each other, and
 * lanes never wait for each other. */
enum comm_lane { COMM_MAIN, COMM_GATHER, COMM_REDUCE, COMM_SAVE, COMM_NLANES };

/* A slice of the contributions of all ranks: owner s gets elements [s·chunk, min((s+1)·chunk, nelem)) of it. */
struct comm_slice {
    int64_t at; /* elements: its offset in the contribution of each rank */
    int64_t nelem, chunk;
    float *into;              /* (up to chunk) output of the calling rank */
    enum fsdpck_dtype reduce; /* to which the gradients are rounded: all slices of an exchange have the same;
                                 reducer_exchange() sees to it */
};

/* How copies of the parameters are placed. `within` consecutive ranks, a group, hold each chunk of a parameter once:
 * rank r holds the chunks c with c mod within = r mod within. So groups of the same number of ranks hold the same
 * chunks. */
enum comm_placement {
    COMM_AT_REST, /* what ranks hold all the time: comm_piece.within */
    COMM_KEPT,    /* what ranks keep of gathered parameters, from the forward pass to the backward pass:
                     comm.kept_within */
    COMM_NPLACEMENTS
};

/* A range of memory that is sent to another rank, or received from it. */
struct comm_part {
    uint32_t peer;
    bool sends;
    size_t at, nbytes; /* in the memory of the calling rank */
};

/* A sharded parameter: rank r owns its chunk r, bytes [r·chunk, min((r+1)·chunk, nbytes)). */
struct comm_piece {
    uint32_t number; /* of all parameters */
    uint32_t within; /* at rest. The same for all pieces of an operation */
    size_t at;       /* bytes: its offset in memory that has room for all parameters */
    size_t into;     /* bytes: its offset in the output buffer */
    size_t nbytes, chunk;
    size_t own, stride; /* bytes: its offset in device memory for one chunk of each parameter; its room there. Memory
                           for n chunks of each has them at n·own, n·own + stride, … */
    size_t rest_at;     /* bytes: its offset in the memory of a linked device: the chunks that the rank holds, stride
                           apart; all chunks side by side if `within` is 1 */
};

struct comm_ops {
    const char *name;
    /* Returns when all ranks have called it. */
    int (*barrier)(struct comm *, const char *operation, struct fsdpck_error *err);
    /* Reduce-scatter of a wave: ranks 0 … ncontributions-1 contribute. Rounds each contribution to comm.reduce in
     * place, including the part that stays on its rank; its old content is lost. into = the left fold of the
     * contributions by rank, in fp32. `first`: assigns the first contribution; otherwise adds it to into. */
    int (*exchange)(struct comm *, const struct comm_slice *slices, size_t nslices, uint32_t ncontributions, bool first,
                    struct fsdpck_error *err);
    /* All-gather in a group: writes every piece in full to the caller's buffer. Until it returns, no rank may change
     * its chunks of the pieces. */
    int (*gather)(struct comm *, enum comm_placement from, const struct comm_piece *pieces, size_t npieces, char *into,
                  struct fsdpck_error *err);
    /* Copies this rank's chunks of gathered pieces to COMM_KEPT, for later gathers from there. */
    void (*keep)(struct comm *, const struct comm_piece *pieces, size_t npieces, const char *gathered);
    /* The chunks that this rank owns have changed: brings them to all ranks that hold them at rest. Every rank calls it
     * before the barrier after which they are gathered. */
    int (*publish)(struct comm *, const struct comm_piece *pieces, size_t npieces, struct fsdpck_error *err);
    /* Called after that barrier: takes over the chunks of other owners. NULL: publish has brought them. */
    int (*settle)(struct comm *, const struct comm_piece *pieces, size_t npieces, struct fsdpck_error *err);
    /* Collective. *out: memory of nbytes that the ranks of a host share; all gathers from now on must go into
     * it, and are done by all of them together. NULL: this rank is alone on its host, and gathers into memory of its
     * own. At most one call. It is released with the communicator. An op of NULL: no rank shares memory. */
    int (*share_buffer)(struct comm *, size_t nbytes, char **out, struct fsdpck_error *err);
    /* values[i] = the sum over ranks of values[i]. n ≤ COMM_MAX_SUM. */
    int (*sum_u64)(struct comm *, uint64_t *values, size_t n, struct fsdpck_error *err);
    /* Sends and receives parts of host memory, all to one peer in one message: a sender and its receiver list the same
     * sizes in the same order. Returns when all have arrived. NULL: all ranks are on one host. */
    int (*transfer)(struct comm *, void *memory, const struct comm_part *parts, size_t nparts, const char *operation,
                    struct fsdpck_error *err);
    /* Collective: each rank sends a message to another rank, and receives one from a rank; either may be empty. Returns
     * when it has arrived. A message has at most comm_sizes.trade_nbytes. NULL: not between devices. */
    int (*trade)(struct comm *, const struct comm_trade *, struct fsdpck_error *err);
    void (*free)(struct comm *);
};

enum { COMM_MAX_SUM = TRAIN_MAX_RANKS };

struct comm {
    const struct comm_ops *ops;
    struct job_status *job_status; /* borrowed */
    enum comm_lane lane;
    uint32_t rank, nranks;
    /* The stream on which data moves: an operation may return earlier. NULL: data has moved when an operation
     * returns. */
    struct kern_stream *stream;
    /* Operations only enqueue work on the stream. One thread of a rank calls all of them, so that all ranks enqueue
     * them in the order of the program. */
    bool launches;
    uint32_t kept_within;  /* number of ranks of a group of COMM_KEPT; 0 if nothing is kept */
    unsigned char *values; /* COMM_AT_REST, with room for all parameters (layout.value_at): at least the chunks that
                              the ranks of this host hold; those of all ranks if `views` */
    unsigned char *kept;   /* the same for COMM_KEPT; NULL: not in host memory */
    float *contribution;   /* the gradients of this rank (layout.grad_at) */
    /* Those of the ranks that share host memory with this one, rank near_first first: (nnear, near_nelem). A rank may
     * write to another's slices between exchanges of them, and a barrier before the exchange. nnear 0: none */
    float *near_contributions;
    uint32_t near_first, nnear;
    int64_t near_nelem;
    uint64_t wait_ns;                /* time that the host spent in operations of this lane */
    uint64_t from_hosts_nbytes;      /* see comm_from_hosts_nbytes(); atomic */
    struct stream_timer *timer;      /* linked devices only: time of operations on their stream; else NULL */
    enum fsdpck_dtype reduce;        /* of the next exchange: FSDPCK_FLOAT32 or FSDPCK_BFLOAT16 */
    bool views;                      /* `values` holds all chunks; no gather is necessary */
    struct comm *lanes[COMM_NLANES]; /* in COMM_MAIN only: itself and the other lanes; freeing it frees them */
};

/* For COMM_MAIN. operation: static text. */
static inline void comm_at(struct comm *c, uint64_t step, const char *operation)
{
    job_status_at(c->job_status, c->rank, step, operation);
}

static inline void comm_heartbeat(struct comm *c)
{
    job_status_heartbeat(c->job_status, c->rank);
}

uint64_t comm_now_ns(void);
/* Time that operations of this lane took, on the host or on a stream. Waits for operations on the stream. */
uint64_t comm_wait_ns(const struct comm *c);
/* c: COMM_MAIN. Bytes that this rank has received from ranks of other hosts, in all lanes. */
uint64_t comm_from_hosts_nbytes(const struct comm *c);
/* The error for "another rank failed and reports why". */
int comm_other_failed(const struct comm *c, const char *operation, struct fsdpck_error *err);
/* Collective. Each rank passes its error in *first (code 0: none). On every rank *first becomes the error of the first
 * rank that failed by itself. Fails, and leaves *first unchanged, only if the ranks cannot communicate. */
int comm_first_error(struct comm *c, struct fsdpck_error *first, struct fsdpck_error *err);
/* The error for a timeout while waiting for rank `late`. */
int comm_timed_out(const struct comm *c, uint32_t late, const char *operation, struct fsdpck_error *err);
/* Rounds the slices of this rank to comm.reduce and compacts them at the start of their memory. */
void comm_round(const struct comm *c, const struct comm_slice *slices, size_t nslices);
/* Byte offset of element `begin` of a slice in the rounded contribution of a rank. */
size_t comm_slice_at(const struct comm *c, const struct comm_slice *s, int64_t begin);
size_t comm_element_nbytes(const struct comm *c);
/* into = from (assign), or into += from. from: (nelem) of comm.reduce. */
void comm_fold(const struct comm *c, float *into, const void *from, int64_t nelem, bool assign);
/* `within` of a placement of pieces. */
uint32_t comm_within(const struct comm *c, enum comm_placement placement, const struct comm_piece *pieces);
/* The bytes of chunk c of a piece: [*begin, *begin + result). */
size_t comm_piece_chunk(const struct comm_piece *p, uint32_t c, size_t *begin);
/* The `keep` of communicators with `kept` in host memory. */
void comm_keep(struct comm *c, const struct comm_piece *pieces, size_t npieces, const char *gathered);
/* The elements of a slice that rank r owns: [*begin, *begin + result). None if the result is not positive. */
int64_t comm_slice_part(const struct comm_slice *s, uint32_t r, int64_t *begin);

#endif
