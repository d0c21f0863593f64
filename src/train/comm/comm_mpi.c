/* SPDX-License-Identifier: Apache-2.0 */
/* The MPI implementation. All operations consist of messages between two ranks, so that a wait knows which rank it
 * waits for. No call blocks inside MPI, so that a lost or stalled rank is named after a timeout. Each lane has its own
 * communicator and its own thread (MPI_THREAD_MULTIPLE). */
#include "comm/comm_mpi.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "arrays/grow.h"
#include "comm/mpi_alarm.h"
#include "comm/one_host.h"

enum { TAG = 1, LARGEST_BLOCK = 1 << 30, SPINS = 200, NAP_NS = 50000, MERCY_MS = 2000 };

/* A range of bytes; a message is a list of spans. */
struct span {
    MPI_Aint at; /* offset from the message's base */
    size_t nbytes;
};

struct mpi {
    struct comm base;
    MPI_Comm comm;
    struct mpi_alarm *alarm; /* shared by all lanes; COMM_MAIN frees it */
    MPI_Request *requests;   /* (2·nranks) sends to rank r, then receives from rank r */
    struct span *spans;      /* (nspans) */
    size_t nspans;
    char *staging;         /* two ranks' contributions to this rank's slices */
    size_t staging_nbytes; /* of one contribution */
    uint64_t *sums;        /* (nranks, COMM_MAX_SUM) */
    size_t values_nbytes;
};

bool comm_mpi_is_built(void)
{
    return true;
}

static void nap(long ns)
{
    const struct timespec t = { ns / 1000000000, ns % 1000000000 };
    nanosleep(&t, NULL);
}

/* If an MPI call fails, another rank has probably died, and the rank that detects this reports it. Waits, so that this
 * rank is ended before it reports a vaguer error. */
static int mpi_failed(const struct mpi *c, int code, const char *operation, struct fsdpck_error *err)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n;
    for (int ms = 0; ms < MERCY_MS; ms += 10)
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

/* Waits until c->requests[first … first+n) have completed. */
static int wait_for(struct mpi *c, uint32_t first, uint32_t n, const char *operation, struct fsdpck_error *err)
{
    uint64_t started = comm_now_ns();
    if (c->base.lane == COMM_MAIN) {
        job_status_operation(c->base.job_status, c->base.rank, operation);
        mpi_alarm_waiting(c->alarm, true);
    }
    for (uint64_t turn = 0;; turn++) {
        int done = 0, code = MPI_Testall((int)n, c->requests + first, &done, MPI_STATUSES_IGNORE);
        if (code != MPI_SUCCESS)
            return mpi_failed(c, code, operation, err);
        if (done)
            break;
        if (job_status_failed(c->base.job_status))
            return comm_other_failed(&c->base, operation, err);
        if ((double)(comm_now_ns() - started) > 1e9 * job_status_patience(c->base.job_status))
            return comm_timed_out(&c->base, mpi_alarm_find_late(c->alarm, pending_peer(c)), operation, err);
        comm_heartbeat(&c->base);
        if (c->base.lane != COMM_MAIN || turn > SPINS)
            nap(NAP_NS);
    }
    if (c->base.lane == COMM_MAIN)
        mpi_alarm_waiting(c->alarm, false);
    return 0;
}

static int wait_all(struct mpi *c, const char *operation, struct fsdpck_error *err)
{
    uint64_t started = comm_now_ns();
    int rc = wait_for(c, 0, 2 * c->base.nranks, operation, err);
    c->base.wait_ns += comm_now_ns() - started;
    return rc;
}

/* Reserves spans for a message of `n` parts with nbytes in total. */
static int reserve_spans(struct mpi *c, size_t n, size_t nbytes, struct fsdpck_error *err)
{
    n += nbytes / LARGEST_BLOCK + 1;
    return grow((void **)&c->spans, &c->nspans, n, sizeof *c->spans) ? 0
                                                                     : fsdpck_error_nomem(err, n * sizeof *c->spans);
}

static size_t add_span(struct mpi *c, size_t n, size_t at, size_t nbytes)
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

/* Starts a message of the first n spans, from or into base, unless it is empty. MPI keeps the freed type until the
 * message has completed. */
static int start_message(struct mpi *c, bool sends, uint32_t peer, void *base, size_t n, const char *operation,
                         struct fsdpck_error *err)
{
    MPI_Request *request = &c->requests[sends ? peer : c->base.nranks + peer];
    MPI_Datatype type;
    *request = MPI_REQUEST_NULL;
    if (n == 0 || peer == c->base.rank)
        return 0;
    int code = type_of(c, n, &type);
    if (code != MPI_SUCCESS)
        return mpi_failed(c, code, operation, err);
    code = sends ? MPI_Isend(base, 1, type, (int)peer, TAG, c->comm, request)
                 : MPI_Irecv(base, 1, type, (int)peer, TAG, c->comm, request);
    MPI_Type_free(&type);
    return code == MPI_SUCCESS ? 0 : mpi_failed(c, code, operation, err);
}

/* Exchanges a few words with all ranks: from (nranks, n) by rank. */
static int swap_words(struct mpi *c, const uint64_t *words, int n, uint64_t *from, const char *operation,
                      struct fsdpck_error *err)
{
    uint32_t nranks = c->base.nranks;
    int code = MPI_SUCCESS;
    for (uint32_t r = 0; r < nranks && code == MPI_SUCCESS; r++) {
        c->requests[r] = c->requests[nranks + r] = MPI_REQUEST_NULL;
        if (r == c->base.rank)
            continue;
        code = MPI_Irecv(from + (size_t)r * (size_t)n, n, MPI_UINT64_T, (int)r, TAG, c->comm, &c->requests[nranks + r]);
        if (code == MPI_SUCCESS)
            code = MPI_Isend(words, n, MPI_UINT64_T, (int)r, TAG, c->comm, &c->requests[r]);
    }
    return code == MPI_SUCCESS ? wait_all(c, operation, err) : mpi_failed(c, code, operation, err);
}

static int mpi_barrier(struct comm *base, const char *operation, struct fsdpck_error *err)
{
    return swap_words((struct mpi *)base, NULL, 0, NULL, operation, err);
}

static int mpi_sum(struct comm *base, uint64_t *values, size_t n, struct fsdpck_error *err)
{
    struct mpi *c = (struct mpi *)base;
    int rc = swap_words(c, values, (int)n, c->sums, "sum over ranks", err);
    for (uint32_t r = 0; r < base->nranks && !rc; r++) {
        for (size_t i = 0; i < n && r != base->rank; i++)
            values[i] += c->sums[r * n + i];
    }
    return rc;
}

/* The part of a piece that rank r owns. */
static size_t piece_part(const struct comm_piece *p, uint32_t r, size_t *begin)
{
    size_t all = p->nbytes;
    *begin = p->chunk * r < all ? p->chunk * r : all;
    return all - *begin < p->chunk ? all - *begin : p->chunk;
}

static size_t list_pieces(struct mpi *c, const struct comm_piece *pieces, size_t npieces, uint32_t rank, bool target)
{
    size_t n = 0, begin;
    for (size_t i = 0; i < npieces; i++) {
        size_t nbytes = piece_part(&pieces[i], rank, &begin);
        n = add_span(c, n, (target ? pieces[i].into : pieces[i].at) + begin, nbytes);
    }
    return n;
}

static void copy_own(const struct comm *base, const struct comm_piece *pieces, size_t npieces, char *into)
{
    for (size_t i = 0; i < npieces; i++) {
        size_t begin, nbytes = piece_part(&pieces[i], base->rank, &begin);
        memcpy(into + pieces[i].into + begin, base->values + pieces[i].at + begin, nbytes);
    }
}

static int mpi_gather(struct comm *base, const struct comm_piece *pieces, size_t npieces, char *into,
                      struct fsdpck_error *err)
{
    static const char operation[] = "gather of parameters";
    struct mpi *c = (struct mpi *)base;
    size_t total = 0;
    for (size_t i = 0; i < npieces; i++)
        total += pieces[i].nbytes;
    int rc = reserve_spans(c, npieces, total, err);
    for (uint32_t r = 0; r < base->nranks && !rc; r++)
        rc = start_message(c, false, r, into, list_pieces(c, pieces, npieces, r, true), operation, err);
    size_t mine = rc ? 0 : list_pieces(c, pieces, npieces, base->rank, false);
    for (uint32_t r = 0; r < base->nranks && !rc; r++)
        rc = start_message(c, true, r, base->values, mine, operation, err);
    if (!rc)
        copy_own(base, pieces, npieces, into);
    return rc ? rc : wait_all(c, operation, err);
}

static size_t list_slices(struct mpi *c, const struct comm_slice *slices, size_t nslices, uint32_t owner)
{
    size_t n = 0;
    for (size_t i = 0; i < nslices; i++) {
        int64_t begin, nelem = comm_slice_part(&slices[i], owner, &begin);
        if (nelem > 0)
            n = add_span(c, n, comm_slice_at(&c->base, &slices[i], begin),
                         (size_t)nelem * comm_element_nbytes(&c->base));
    }
    return n;
}

static size_t own_nbytes(const struct comm *base, const struct comm_slice *slices, size_t nslices)
{
    size_t sum = 0;
    for (size_t i = 0; i < nslices; i++) {
        int64_t begin, nelem = comm_slice_part(&slices[i], base->rank, &begin);
        sum += nelem > 0 ? (size_t)nelem : 0;
    }
    return sum * comm_element_nbytes(base);
}

/* from: rank q's parts of this rank's slices, concatenated; or NULL: this rank's own contribution. */
static void fold_slices(const struct comm *base, const struct comm_slice *slices, size_t nslices, const char *from,
                        bool assign)
{
    for (size_t i = 0; i < nslices; i++) {
        int64_t begin, nelem = comm_slice_part(&slices[i], base->rank, &begin);
        if (nelem <= 0)
            continue;
        comm_fold(base, slices[i].into,
                  from ? from : (const char *)base->contribution + comm_slice_at(base, &slices[i], begin), nelem,
                  assign);
        from = from ? from + (size_t)nelem * comm_element_nbytes(base) : NULL;
    }
}

static int make_staging(struct mpi *c, size_t nbytes, struct fsdpck_error *err)
{
    if (nbytes <= c->staging_nbytes)
        return 0;
    free(c->staging);
    c->staging = malloc(2 * nbytes);
    c->staging_nbytes = c->staging ? nbytes : 0;
    return c->staging ? 0 : fsdpck_error_nomem(err, 2 * nbytes);
}

static int start_receiving(struct mpi *c, uint32_t q, uint32_t ncontributions, size_t nbytes, struct fsdpck_error *err)
{
    if (q >= ncontributions)
        return 0;
    return start_message(c, false, q, c->staging + (q % 2) * nbytes, add_span(c, 0, 0, nbytes), "exchange of gradients",
                         err);
}

/* Receives rank q's parts while folding those of rank q-1. */
static int mpi_exchange(struct comm *base, const struct comm_slice *slices, size_t nslices, uint32_t ncontributions,
                        bool first, struct fsdpck_error *err)
{
    static const char operation[] = "exchange of gradients";
    struct mpi *c = (struct mpi *)base;
    size_t nbytes = own_nbytes(base, slices, nslices), total = nbytes;
    uint64_t started = comm_now_ns();
    for (size_t i = 0; i < nslices; i++)
        total += (size_t)slices[i].nelem * comm_element_nbytes(base);
    if (base->rank < ncontributions)
        comm_round(base, slices, nslices);
    int rc = reserve_spans(c, nslices, total, err);
    if (!rc)
        rc = make_staging(c, nbytes, err);
    for (uint32_t r = 0; r < base->nranks && !rc; r++) {
        size_t n = base->rank < ncontributions ? list_slices(c, slices, nslices, r) : 0;
        rc = start_message(c, true, r, base->contribution, n, operation, err);
        c->requests[base->nranks + r] = MPI_REQUEST_NULL;
    }
    if (!rc)
        rc = start_receiving(c, 0, ncontributions, nbytes, err);
    for (uint32_t q = 0; q < ncontributions && !rc; q++) {
        rc = start_receiving(c, q + 1, ncontributions, nbytes, err);
        if (!rc)
            rc = wait_for(c, base->nranks + q, 1, operation, err);
        if (!rc)
            fold_slices(base, slices, nslices, q == base->rank ? NULL : c->staging + (q % 2) * nbytes, first && q == 0);
    }
    base->wait_ns += comm_now_ns() - started;
    return rc ? rc : wait_all(c, operation, err);
}

static void free_lane(struct mpi *c)
{
    if (!c)
        return;
    free(c->requests);
    free(c->spans);
    free(c->staging);
    free(c->sums);
    free(c);
}

static void mpi_free(struct comm *base)
{
    struct mpi *c = (struct mpi *)base;
    mpi_alarm_end(c->alarm);
    free(base->contribution);
    munmap(base->values, c->values_nbytes);
    for (int lane = COMM_MAIN + 1; lane < COMM_NLANES; lane++) {
        MPI_Comm_free(&((struct mpi *)base->lanes[lane])->comm);
        free_lane((struct mpi *)base->lanes[lane]);
    }
    MPI_Comm_free(&c->comm);
    free_lane(c);
    MPI_Finalize();
}

static const struct comm_ops mpi_ops = { "mpi", mpi_barrier, mpi_exchange, mpi_gather, NULL, mpi_sum, mpi_free };

static struct mpi *new_lane(struct job_status *job_status, uint32_t rank, uint32_t nranks, enum comm_lane lane)
{
    struct mpi *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->base = (struct comm){ .ops = &mpi_ops, .job_status = job_status, .lane = lane, .rank = rank, .nranks = nranks };
    c->requests = calloc(2 * (size_t)nranks, sizeof(MPI_Request));
    c->sums = calloc((size_t)nranks * COMM_MAX_SUM, sizeof *c->sums);
    if (c->requests && c->sums && MPI_Comm_dup(MPI_COMM_WORLD, &c->comm) == MPI_SUCCESS) {
        MPI_Comm_set_errhandler(c->comm, MPI_ERRORS_RETURN);
        return c;
    }
    free_lane(c);
    return NULL;
}

/* Maps memory for all parameters. Without sharing, holds this rank's rows at their place in the whole; untouched pages
 * take no memory. */
static int map_values(struct comm *base, const struct comm_sizes *sizes, unsigned char **out, struct fsdpck_error *err)
{
    struct mpi *c = (struct mpi *)base;
    c->values_nbytes = sizes->value_nbytes > 64 ? sizes->value_nbytes : 64;
    if (!sizes->copies)
        return one_host_map(base, c->values_nbytes, out, err);
    void *values =
        mmap(NULL, c->values_nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *out = values == MAP_FAILED ? NULL : values;
    return *out ? 0 : fsdpck_error_nomem(err, c->values_nbytes);
}

static int make_memory(struct comm *base, struct comm_sizes sizes, struct fsdpck_error *err)
{
    unsigned char *values = NULL;
    float *contribution = calloc((size_t)sizes.grad_nelem + 1, sizeof(float));
    int rc = contribution ? 0 : fsdpck_error_nomem(err, (size_t)sizes.grad_nelem * sizeof(float));
    if (!rc)
        rc = map_values(base, &sizes, &values, err);
    for (int lane = 0; lane < COMM_NLANES; lane++) {
        base->lanes[lane]->values = values;
        base->lanes[lane]->contribution = contribution;
        base->lanes[lane]->views = !sizes.copies;
        base->lanes[lane]->reduce = sizes.reduce;
    }
    return rc; /* no cleanup: after a failure the process ends */
}

static int start_mpi(uint32_t rank, uint32_t nranks, struct fsdpck_error *err)
{
    int provided = 0, mine = -1, all = -1;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS)
        return fsdpck_error_set(err, FSDPCK_ERR_IO, NULL, "MPI does not start");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &mine);
    MPI_Comm_size(MPI_COMM_WORLD, &all);
    if (provided < MPI_THREAD_MULTIPLE)
        return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, NULL,
                                "this MPI cannot be called by several threads (MPI_THREAD_MULTIPLE)");
    if ((uint32_t)mine != rank || (uint32_t)all != nranks)
        return fsdpck_error_set(
            err, FSDPCK_ERR_UNSUPPORTED, NULL,
            "the launcher says rank %u of %u, MPI says %d of %d: it is not the launcher of the MPI that fsdptrain is "
            "built with",
            rank, nranks, mine, all);
    return 0;
}

int comm_mpi_join(struct job_status *job_status, uint32_t rank, uint32_t nranks, struct comm_sizes sizes,
                  struct comm **out, struct fsdpck_error *err)
{
    struct comm *lanes[COMM_NLANES];
    *out = NULL;
    struct mpi_alarm *alarm = NULL;
    int rc = start_mpi(rank, nranks, err);
    if (!rc)
        rc = mpi_alarm_start(job_status, rank, nranks, &alarm, err);
    for (int lane = 0; lane < COMM_NLANES && !rc; lane++) {
        struct mpi *c = new_lane(job_status, rank, nranks, (enum comm_lane)lane);
        lanes[lane] = c ? &c->base : NULL;
        if (c)
            c->alarm = alarm;
        rc = c ? 0 : fsdpck_error_set(err, FSDPCK_ERR_IO, NULL, "MPI gives no communicator");
    }
    if (rc)
        return rc; /* no cleanup: the process ends */
    memcpy(lanes[COMM_MAIN]->lanes, lanes, sizeof lanes);
    *out = lanes[COMM_MAIN];
    return make_memory(*out, sizes, err);
}

void comm_mpi_abandon(struct comm *comm)
{
    mpi_alarm_wait(((struct mpi *)comm)->alarm);
}

void comm_mpi_tell(struct job_status *job_status, uint32_t rank, uint32_t nranks)
{
    struct fsdpck_error ignored = { 0 };
    struct mpi_alarm *alarm = NULL;
    if (start_mpi(rank, nranks, &ignored) == 0 && mpi_alarm_start(job_status, rank, nranks, &alarm, &ignored) == 0)
        mpi_alarm_wait(alarm);
}
