/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the MPI communicator share: a lane, its messages, and the memory of a host. */
#ifndef TRAIN_COMM_MPI_IMPL_H
#define TRAIN_COMM_MPI_IMPL_H

#include <mpi.h>

#include "comm/comm_mpi.h"
#include "comm/gate.h"
#include "comm/hosts.h"
#include "comm/value_file.h"

struct mpi_alarm;

/* Tags of a lane's messages. Two ranks exchange those of a tag in the same order. */
enum comm_mpi_tag { COMM_MPI_TAG = 1, COMM_MPI_FEED, COMM_MPI_CHAIN, COMM_MPI_SUM };

/* A range of bytes; a message is a list of spans. */
struct span {
    MPI_Aint at; /* offset from the message's base */
    size_t nbytes;
};

/* Memory that the ranks of a host share. */
struct host_memory {
    struct hosts hosts;
    unsigned char *memory; /* nbytes: gates of the lanes, values, what is kept, contributions, and hashes of the file */
    size_t nbytes;
    struct value_file *file; /* has the values instead; NULL: memory has them */
    float *contributions;    /* of the host's ranks, contribution_nelem each */
    size_t contribution_nelem;
    bool together;         /* gathers go into the buffers of comm_ops.share_buffer, on all hosts */
    unsigned char *buffer; /* buffer_nbytes: that of this host; NULL: none, or the rank is alone */
    size_t buffer_nbytes;
};

struct mpi {
    struct comm base;
    MPI_Comm comm;
    struct mpi_alarm *alarm;  /* shared by all lanes; COMM_MAIN frees it */
    struct host_memory *host; /* the same */
    struct gate *gate;        /* of this lane; NULL: the rank is alone on its host */
    MPI_Request *requests;    /* (2·nranks) sends to rank r, then receives from rank r */
    MPI_Status *statuses;     /* (2·nranks) */
    size_t *wanted;           /* (nranks) bytes of the message from rank r; 0: none, or of any size */
    struct span *spans;       /* (nspans) */
    size_t nspans;
    char *staging; /* two ranks' contributions to this rank's slices */
    size_t staging_nbytes;
    uint64_t *sums;             /* (nranks, COMM_MAX_SUM) */
    struct chain *chain;        /* NULL until sums travel from host to host */
    struct value_window window; /* COMM_GATHER, with a file */
};

/* --- messages */

/* The error for a failed MPI call. */
int comm_mpi_failed(const struct mpi *c, int code, const char *operation, struct fsdpck_error *err);
/* Reserves spans for a message of `n` parts with nbytes in total. */
int comm_mpi_reserve_spans(struct mpi *c, size_t n, size_t nbytes, struct fsdpck_error *err);
/* Appends a range to the n spans of a message. Returns the new n. */
size_t comm_mpi_add_span(struct mpi *c, size_t n, size_t at, size_t nbytes);
/* Starts a message of the first n spans, from or into base, unless it is empty. */
int comm_mpi_start_message(struct mpi *c, bool sends, uint32_t peer, void *base, size_t n, const char *operation,
                           struct fsdpck_error *err);
/* Starts a message of adjacent bytes, at most 2^30. */
int comm_mpi_start_block(struct mpi *c, bool sends, uint32_t peer, enum comm_mpi_tag tag, void *data, size_t nbytes,
                         MPI_Request *request, const char *operation, struct fsdpck_error *err);
/* Waits for a message to or from `peer`. wanted: bytes of a receive; 0: it is a send. */
int comm_mpi_wait(struct mpi *c, MPI_Request *request, uint32_t peer, size_t wanted, const char *operation,
                  struct fsdpck_error *err);
/* Waits for c->requests, all 2·nranks of them. */
int comm_mpi_wait_all(struct mpi *c, const char *operation, struct fsdpck_error *err);
void comm_mpi_clear_requests(struct mpi *c);
/* Exchanges a few words with all ranks: from (nranks, n) by rank. */
int comm_mpi_words(struct mpi *c, const uint64_t *words, int n, uint64_t *from, const char *operation,
                   struct fsdpck_error *err);
/* Waits for the ranks of this host. */
int comm_mpi_meet_host(struct mpi *c, const char *operation, struct fsdpck_error *err);

/* --- struct comm_ops */
int comm_mpi_barrier(struct comm *base, const char *operation, struct fsdpck_error *err);
int comm_mpi_sum(struct comm *base, uint64_t *values, size_t n, struct fsdpck_error *err);
int comm_mpi_exchange(struct comm *base, const struct comm_slice *slices, size_t nslices, uint32_t ncontributions,
                      bool first, struct fsdpck_error *err);
int comm_mpi_gather(struct comm *base, enum comm_placement from, const struct comm_piece *pieces, size_t npieces,
                    char *into, struct fsdpck_error *err);
int comm_mpi_trade(struct comm *base, const struct comm_trade *t, struct fsdpck_error *err);
int comm_mpi_transfer(struct comm *base, void *memory, const struct comm_part *parts, size_t nparts,
                      const char *operation, struct fsdpck_error *err);
int comm_mpi_publish(struct comm *base, const struct comm_piece *pieces, size_t npieces, struct fsdpck_error *err);

/* The rank of a host that gets an owner's chunks when they have changed; nranks: they need not be sent there. */
uint32_t comm_mpi_receives(const struct mpi *c, uint32_t within, uint32_t owner, uint32_t host);

/* --- parameters in a file */

/* Collective. hashes: shared by the ranks of the host. */
int comm_mpi_open_file(struct comm *base, const struct comm_sizes *sizes, uint64_t *hashes, struct fsdpck_error *err);
/* Reads the chunks of a gather within so many ranks that this host holds. */
int comm_mpi_read_file(struct comm *base, uint32_t within, const struct comm_piece *pieces, size_t npieces, char *into,
                       struct fsdpck_error *err);
/* Of struct comm_ops. */
int comm_mpi_publish_file(struct comm *base, const struct comm_piece *pieces, size_t npieces, struct fsdpck_error *err);
int comm_mpi_settle_file(struct comm *base, const struct comm_piece *pieces, size_t npieces, struct fsdpck_error *err);

/* --- exchanges */

/* An exchange, as its parts see it. */
struct exchange {
    const struct comm_slice *slices;
    size_t nslices;
    uint32_t ncontributions;
    bool first;
};

/* Number of elements of the slices that a rank owns. */
size_t comm_mpi_owned(const struct exchange *x, uint32_t owner);
/* Whether the sums of an owner's elements travel from host to host; otherwise contributions are sent to the owner. */
bool comm_mpi_chains(const struct mpi *c, const struct exchange *x, uint32_t owner);
/* Adds up elements whose sums travel from host to host. */
int comm_mpi_chain(struct mpi *c, const struct exchange *x, struct fsdpck_error *err);
void comm_mpi_chain_free(struct chain *chain); /* NULL does nothing */
/* The contribution of a rank of this host. */
const char *comm_mpi_contribution(const struct mpi *c, uint32_t rank);

#endif
