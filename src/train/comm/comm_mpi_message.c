/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between two ranks, and what consists of nothing else: words that all ranks exchange. Every wait knows which
 * rank it waits for, and ends after a timeout. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "arrays/grow.h"
#include "comm/comm_mpi_impl.h"
#include "comm/mpi_alarm.h"
#include "comm/trade.h"

enum { LARGEST_BLOCK = 1 << 30, SPINS = 200, NAP_NS = 50000, GATE_NS = 1000000, SETTLE_MS = 2000 };

static void nap(long ns)
{
    const struct timespec t = { ns / 1000000000, ns % 1000000000 };
    nanosleep(&t, NULL);
}

/* If an MPI call fails, another rank has probably died, and the rank that detects this reports it. Waits, so that this
 * rank is ended before it reports a vaguer error. */
int comm_mpi_failed(const struct mpi *c, int code, const char *operation, struct fsdpck_error *err)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n;
    for (int ms = 0; ms < SETTLE_MS; ms += 10)
        nap(10000000);
    MPI_Error_string(code, text, &n);
    return fsdpck_error_set(err, FSDPCK_ERR_IO, NULL, "rank %u of %u, %s: MPI says: %.300s", c->base.rank,
                            c->base.nranks, operation, text);
}

static uint32_t pending_peer(const struct mpi *c)
{
    uint32_t n = c->base.nranks, i = 2 * n;
    while (i-- > 0 && c->requests[i] == MPI_REQUEST_NULL)
        continue;
    return i % n;
}

static void begin_wait(struct mpi *c, const char *operation)
{
    if (c->base.lane != COMM_MAIN)
        return;
    job_status_operation(c->base.job_status, c->base.rank, operation);
    mpi_alarm_waiting(c->alarm, true);
}

static void end_wait(struct mpi *c)
{
    if (c->base.lane == COMM_MAIN)
        mpi_alarm_waiting(c->alarm, false);
}

/* Ends a wait if another rank has failed, or rank `peer` is too late. */
static int go_on_waiting(struct mpi *c, struct mpi_patience *patience, uint32_t peer, const char *operation,
                         struct fsdpck_error *err)
{
    uint32_t late;
    if (job_status_failed(c->base.job_status))
        return comm_other_failed(&c->base, operation, err);
    if (mpi_alarm_timed_out(c->alarm, patience, peer, &late))
        return comm_timed_out(&c->base, late, operation, err);
    comm_heartbeat(&c->base);
    return 0;
}

/* MPI accepts a message that is shorter than its buffer. */
static int check_size(const struct mpi *c, const MPI_Status *status, uint32_t peer, size_t wanted,
                      const char *operation, struct fsdpck_error *err)
{
    MPI_Count nbytes = 0;
    if (wanted == 0)
        return 0;
    int code = MPI_Get_elements_x(status, MPI_BYTE, &nbytes);
    if (code != MPI_SUCCESS)
        return comm_mpi_failed(c, code, operation, err);
    if ((size_t)nbytes == wanted)
        return 0;
    return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL,
                            "rank %u of %u, %s: rank %u sent %lld bytes, wanted %zu: do all hosts run the same "
                            "fsdptrain?",
                            c->base.rank, c->base.nranks, operation, peer, (long long)nbytes, wanted);
}

int comm_mpi_wait_all(struct mpi *c, const char *operation, struct fsdpck_error *err)
{
    const uint32_t n = c->base.nranks;
    struct mpi_patience patience = { .started_ns = comm_now_ns() };
    int rc = 0;
    begin_wait(c, operation);
    for (uint64_t turn = 0; !rc; turn++) {
        int done = 0, code = MPI_Testall((int)(2 * n), c->requests, &done, c->statuses);
        if (code != MPI_SUCCESS)
            return comm_mpi_failed(c, code, operation, err);
        if (done)
            break;
        rc = go_on_waiting(c, &patience, pending_peer(c), operation, err);
        if (c->base.lane != COMM_MAIN || turn > SPINS)
            nap(NAP_NS);
    }
    for (uint32_t r = 0; r < n && !rc; r++) {
        rc = check_size(c, &c->statuses[n + r], r, c->wanted[r], operation, err);
        c->wanted[r] = 0;
    }
    end_wait(c);
    c->base.wait_ns += comm_now_ns() - patience.started_ns;
    return rc;
}

int comm_mpi_wait(struct mpi *c, MPI_Request *request, uint32_t peer, size_t wanted, const char *operation,
                  struct fsdpck_error *err)
{
    struct mpi_patience patience = { .started_ns = comm_now_ns() };
    MPI_Status status;
    int rc = 0, done = 0;
    begin_wait(c, operation);
    for (uint64_t turn = 0; !rc; turn++) {
        int code = MPI_Test(request, &done, &status);
        if (code != MPI_SUCCESS)
            return comm_mpi_failed(c, code, operation, err);
        if (done)
            break;
        rc = go_on_waiting(c, &patience, peer, operation, err);
        if (c->base.lane != COMM_MAIN || turn > SPINS)
            nap(NAP_NS);
    }
    end_wait(c);
    return rc ? rc : check_size(c, &status, peer, wanted, operation, err);
}

/* Messages of this rank that MPI has only buffered move on meanwhile. */
int comm_mpi_meet_host(struct mpi *c, const char *operation, struct fsdpck_error *err)
{
    const uint32_t first = c->host->hosts.first[c->host->hosts.mine];
    struct mpi_patience patience = { .started_ns = comm_now_ns() };
    int rc = 0, unused;
    if (!c->gate)
        return 0;
    if (job_status_failed(c->base.job_status))
        return comm_other_failed(&c->base, operation, err);
    begin_wait(c, operation);
    const uint32_t ticket = gate_enter(c->gate, c->base.rank - first);
    while (!gate_is_open(c->gate, ticket) && !rc) {
        gate_sleep(c->gate, ticket, GATE_NS);
        MPI_Iprobe(MPI_ANY_SOURCE, COMM_MPI_TAG, c->comm, &unused, MPI_STATUS_IGNORE);
        if (!gate_is_open(c->gate, ticket))
            rc = go_on_waiting(c, &patience, first + gate_late(c->gate, c->base.rank - first), operation, err);
    }
    end_wait(c);
    c->base.wait_ns += comm_now_ns() - patience.started_ns;
    return rc;
}

void comm_mpi_clear_requests(struct mpi *c)
{
    for (uint32_t i = 0; i < 2 * c->base.nranks; i++)
        c->requests[i] = MPI_REQUEST_NULL;
    memset(c->wanted, 0, c->base.nranks * sizeof *c->wanted);
}

int comm_mpi_reserve_spans(struct mpi *c, size_t n, size_t nbytes, struct fsdpck_error *err)
{
    n += nbytes / LARGEST_BLOCK + 1;
    return grow((void **)&c->spans, &c->nspans, n, sizeof *c->spans) ? 0
                                                                     : fsdpck_error_nomem(err, n * sizeof *c->spans);
}

size_t comm_mpi_add_span(struct mpi *c, size_t n, size_t at, size_t nbytes)
{
    for (; nbytes > 0; n++) {
        size_t part = nbytes < LARGEST_BLOCK ? nbytes : LARGEST_BLOCK;
        c->spans[n] = (struct span){ (MPI_Aint)at, part };
        at += part;
        nbytes -= part;
    }
    return n;
}

static int type_of(const struct mpi *c, size_t n, MPI_Datatype *type)
{
    int *lengths = malloc(n * sizeof *lengths);
    MPI_Aint *places = malloc(n * sizeof *places);
    int code = lengths && places ? MPI_SUCCESS : MPI_ERR_NO_MEM;
    for (size_t i = 0; i < n && code == MPI_SUCCESS; i++) {
        lengths[i] = (int)c->spans[i].nbytes;
        places[i] = c->spans[i].at;
    }
    if (code == MPI_SUCCESS)
        code = MPI_Type_create_hindexed((int)n, lengths, places, MPI_BYTE, type);
    if (code == MPI_SUCCESS)
        code = MPI_Type_commit(type);
    free(lengths);
    free(places);
    return code;
}

static void count(struct mpi *c, bool sends, uint32_t peer, size_t nbytes)
{
    const struct hosts *h = &c->host->hosts;
    if (!sends && h->keys && h->keys[peer] != h->keys[c->base.rank])
        __atomic_fetch_add(&c->base.from_hosts_nbytes, nbytes, __ATOMIC_RELAXED);
}

static size_t spans_nbytes(const struct mpi *c, size_t n)
{
    size_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += c->spans[i].nbytes;
    return sum;
}

/* MPI keeps the freed type until the message has completed. */
int comm_mpi_start_message(struct mpi *c, bool sends, uint32_t peer, void *base, size_t n, const char *operation,
                           struct fsdpck_error *err)
{
    MPI_Request *request = &c->requests[sends ? peer : c->base.nranks + peer];
    MPI_Datatype type;
    *request = MPI_REQUEST_NULL;
    if (n == 0 || peer == c->base.rank)
        return 0;
    int code = type_of(c, n, &type);
    if (code != MPI_SUCCESS)
        return comm_mpi_failed(c, code, operation, err);
    code = sends ? MPI_Isend(base, 1, type, (int)peer, COMM_MPI_TAG, c->comm, request)
                 : MPI_Irecv(base, 1, type, (int)peer, COMM_MPI_TAG, c->comm, request);
    MPI_Type_free(&type);
    if (!sends)
        c->wanted[peer] = spans_nbytes(c, n);
    count(c, sends, peer, c->wanted[peer]);
    return code == MPI_SUCCESS ? 0 : comm_mpi_failed(c, code, operation, err);
}

int comm_mpi_start_block(struct mpi *c, bool sends, uint32_t peer, enum comm_mpi_tag tag, void *data, size_t nbytes,
                         MPI_Request *request, const char *operation, struct fsdpck_error *err)
{
    int code = sends ? MPI_Isend(data, (int)nbytes, MPI_BYTE, (int)peer, tag, c->comm, request)
                     : MPI_Irecv(data, (int)nbytes, MPI_BYTE, (int)peer, tag, c->comm, request);
    count(c, sends, peer, nbytes);
    return code == MPI_SUCCESS ? 0 : comm_mpi_failed(c, code, operation, err);
}

int comm_mpi_words(struct mpi *c, const uint64_t *words, int n, uint64_t *from, const char *operation,
                   struct fsdpck_error *err)
{
    const uint32_t nranks = c->base.nranks;
    const size_t nbytes = (size_t)n * sizeof *words;
    int rc = 0;
    comm_mpi_clear_requests(c);
    for (uint32_t r = 0; r < nranks && !rc; r++) {
        if (r == c->base.rank)
            continue;
        rc = comm_mpi_start_block(c, false, r, COMM_MPI_TAG, from + (size_t)r * (size_t)n, nbytes,
                                  &c->requests[nranks + r], operation, err);
        c->wanted[r] = nbytes;
        if (!rc)
            rc = comm_mpi_start_block(c, true, r, COMM_MPI_TAG, (void *)words, nbytes, &c->requests[r], operation, err);
    }
    return rc ? rc : comm_mpi_wait_all(c, operation, err);
}

int comm_mpi_barrier(struct comm *base, const char *operation, struct fsdpck_error *err)
{
    return comm_mpi_words((struct mpi *)base, NULL, 0, NULL, operation, err);
}

int comm_mpi_sum(struct comm *base, uint64_t *values, size_t n, struct fsdpck_error *err)
{
    struct mpi *c = (struct mpi *)base;
    int rc = comm_mpi_words(c, values, (int)n, c->sums, "sum over ranks", err);
    for (uint32_t r = 0; r < base->nranks && !rc; r++) {
        for (size_t i = 0; i < n && r != base->rank; i++)
            values[i] += c->sums[r * n + i];
    }
    return rc;
}

/* The message to or from a peer; none of its own parts: no message. */
static int start_parts(struct mpi *c, uint32_t peer, bool sends, void *memory, const struct comm_part *parts,
                       size_t nparts, const char *operation, struct fsdpck_error *err)
{
    size_t n = 0;
    for (size_t i = 0; i < nparts; i++) {
        if (parts[i].peer == peer && parts[i].sends == sends)
            n = comm_mpi_add_span(c, n, parts[i].at, parts[i].nbytes);
    }
    return comm_mpi_start_message(c, sends, peer, memory, n, operation, err);
}

int comm_mpi_transfer(struct comm *base, void *memory, const struct comm_part *parts, size_t nparts,
                      const char *operation, struct fsdpck_error *err)
{
    struct mpi *c = (struct mpi *)base;
    bool talks[2][COMM_MAX_SUM] = { 0 };
    size_t nbytes = 0;
    for (size_t i = 0; i < nparts; i++) {
        talks[parts[i].sends][parts[i].peer] = true;
        nbytes += parts[i].nbytes;
    }
    comm_mpi_clear_requests(c);
    int rc = comm_mpi_reserve_spans(c, nparts, nbytes, err);
    for (uint32_t peer = 0; peer < base->nranks && !rc; peer++) {
        for (int sends = 0; sends < 2 && !rc; sends++)
            rc = talks[sends][peer] ? start_parts(c, peer, sends, memory, parts, nparts, operation, err) : 0;
    }
    return rc ? rc : comm_mpi_wait_all(c, operation, err);
}

static size_t trade_nbytes(const struct trade_span *spans, size_t n)
{
    size_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += spans[i].nbytes;
    return sum;
}

/* The spans are at addresses: the message has no base. */
static int start_trade(struct mpi *c, bool sends, uint32_t peer, const struct trade_span *spans, size_t nspans,
                       struct fsdpck_error *err)
{
    size_t n = 0;
    for (size_t i = 0; i < nspans; i++)
        n = comm_mpi_add_span(c, n, (size_t)spans[i].data, spans[i].nbytes);
    return comm_mpi_start_message(c, sends, peer, MPI_BOTTOM, n, COMM_TOKENS_OPERATION, err);
}

int comm_mpi_trade(struct comm *base, const struct comm_trade *t, struct fsdpck_error *err)
{
    struct mpi *c = (struct mpi *)base;
    comm_mpi_clear_requests(c);
    int rc = comm_mpi_reserve_spans(c, TRADE_SPANS, trade_nbytes(t->out, t->nout) + trade_nbytes(t->in, t->nin), err);
    if (!rc)
        rc = start_trade(c, false, t->from, t->in, t->nin, err);
    if (!rc)
        rc = start_trade(c, true, t->to, t->out, t->nout, err);
    return rc ? rc : comm_mpi_wait_all(c, COMM_TOKENS_OPERATION, err);
}
