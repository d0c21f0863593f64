/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between two ranks, separate from those of the lanes. ALARM carries an error; ACK answers it and says whether
 * the receiver has failed by itself; QUERY asks a rank whether it works or waits, and REPLY answers. Every wait is
 * bounded: a stopped rank never answers. */
#include "comm/mpi_alarm.h"

#include <errno.h>
#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "comm/comm.h"

enum { ALARM = 2, ACK, QUERY, REPLY }; /* tags in MPI_COMM_WORLD */
enum { POLL_MS = 10, ANSWER_MS = 4000 };

struct mpi_alarm {
    struct job_status *job_status;
    uint32_t rank, nranks;
    pthread_t thread;
    pthread_mutex_t query_lock; /* serialises queries */
    _Atomic bool ending, done, waiting;
    bool adopted;               /* the error of this rank is another's: it has not failed by itself */
    struct fsdpck_error error;  /* the error to send */
    MPI_Request *_Atomic acks;  /* (nranks); NULL: nothing has been sent */
    uint32_t *failed_too;       /* (nranks) */
    _Atomic bool *unresponsive; /* (nranks) did not answer a query; not asked again */
    long sent_ms;               /* time since the alarm was sent */
};

static void sleep_poll(void)
{
    const struct timespec t = { .tv_nsec = POLL_MS * 1000000L };
    nanosleep(&t, NULL);
}

/* Does not wait: the message is short, and the process may end before it is sent. */
static void send(const void *data, size_t nbytes, uint32_t to, int tag)
{
    MPI_Request request;
    if (MPI_Isend(data, (int)nbytes, MPI_BYTE, (int)to, tag, MPI_COMM_WORLD, &request) == MPI_SUCCESS)
        MPI_Request_free(&request);
}

static bool receive(int tag, void *data, size_t nbytes, uint32_t *from)
{
    MPI_Message message;
    MPI_Status status;
    int arrived = 0;
    if (MPI_Improbe(MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &arrived, &message, &status) != MPI_SUCCESS || !arrived)
        return false;
    *from = (uint32_t)status.MPI_SOURCE;
    return MPI_Mrecv(data, (int)nbytes, MPI_BYTE, &message, MPI_STATUS_IGNORE) == MPI_SUCCESS;
}

static void receive_alarms(struct mpi_alarm *a)
{
    static const uint32_t answers[] = { 0, 1 }; /* static, because send() does not copy them */
    struct fsdpck_error err;
    uint32_t from;
    while (receive(ALARM, &err, sizeof err, &from)) {
        a->adopted |= job_status_adopt(a->job_status, &err);
        send(&answers[!a->adopted], sizeof answers[0], from, ACK);
    }
}

static void answer_queries(struct mpi_alarm *a)
{
    static const uint32_t states[] = { 0, 1 };
    uint32_t from;
    while (receive(QUERY, NULL, 0, &from))
        send(&states[atomic_load(&a->waiting)], sizeof states[0], from, REPLY);
}

static void raise_alarm(struct mpi_alarm *a)
{
    MPI_Request *acks = malloc(a->nranks * sizeof *acks);
    for (uint32_t r = 0; r < a->nranks && acks; r++) {
        acks[r] = MPI_REQUEST_NULL;
        if (r == a->rank)
            continue;
        MPI_Irecv(&a->failed_too[r], sizeof a->failed_too[r], MPI_BYTE, (int)r, ACK, MPI_COMM_WORLD, &acks[r]);
        send(&a->error, sizeof a->error, r, ALARM);
    }
    a->acks = acks;
    atomic_store(&a->done, !acks);
}

static bool all_answered(struct mpi_alarm *a)
{
    for (uint32_t r = 0; r < a->nranks; r++) {
        int arrived = 0;
        if (!atomic_load(&a->unresponsive[r]) && MPI_Test(&a->acks[r], &arrived, MPI_STATUS_IGNORE) == MPI_SUCCESS &&
            !arrived)
            return false;
    }
    return true;
}

/* Waits for the answers. If a lower rank has failed by itself, it reports for both. */
static void check_acks(struct mpi_alarm *a)
{
    a->sent_ms += POLL_MS;
    if (!all_answered(a) && a->sent_ms < ANSWER_MS)
        return;
    for (uint32_t r = 0; r < a->rank; r++) {
        if (a->failed_too[r] == 1)
            job_status_mute(a->job_status);
    }
    atomic_store(&a->done, true);
}

static void *run(void *arg)
{
    struct mpi_alarm *a = arg;
    while (!atomic_load(&a->ending)) {
        receive_alarms(a);
        answer_queries(a);
        if (a->acks && !atomic_load(&a->done))
            check_acks(a);
        else if (!a->acks && !job_status_is_muted(a->job_status) && job_status_error(a->job_status, &a->error))
            raise_alarm(a);
        sleep_poll();
    }
    return NULL;
}

static void free_alarm(struct mpi_alarm *a)
{
    pthread_mutex_destroy(&a->query_lock);
    free(a->failed_too);
    free(a->unresponsive);
    free(a->acks);
    free(a);
}

int mpi_alarm_start(struct job_status *job_status, uint32_t rank, uint32_t nranks, struct mpi_alarm **out,
                    struct fsdpck_error *err)
{
    struct mpi_alarm *a = calloc(1, sizeof *a);
    *out = NULL;
    if (!a)
        return fsdpck_error_nomem(err, sizeof *a);
    a->failed_too = calloc(nranks, sizeof *a->failed_too);
    a->unresponsive = calloc(nranks, sizeof *a->unresponsive);
    a->job_status = job_status;
    a->rank = rank;
    a->nranks = nranks;
    pthread_mutex_init(&a->query_lock, NULL);
    int failed = !a->failed_too || !a->unresponsive ? ENOMEM : pthread_create(&a->thread, NULL, run, a);
    if (failed)
        free_alarm(a);
    else
        *out = a;
    return failed ? fsdpck_error_sys(err, failed, NULL, "pthread_create") : 0;
}

void mpi_alarm_end(struct mpi_alarm *a)
{
    if (!a)
        return;
    atomic_store(&a->ending, true);
    pthread_join(a->thread, NULL);
    free_alarm(a);
}

void mpi_alarm_wait(struct mpi_alarm *a)
{
    for (long ms = 0; ms < 2 * ANSWER_MS && !atomic_load(&a->done) && !(job_status_is_muted(a->job_status) && !a->acks);
         ms += POLL_MS)
        sleep_poll();
}

void mpi_alarm_waiting(struct mpi_alarm *a, bool waiting)
{
    atomic_store(&a->waiting, waiting);
}

/* Asks every rank for its state. states: (nranks) 0: works, 1: waits, 2: no answer. */
static void query_all_ranks(struct mpi_alarm *a, uint32_t *states, MPI_Request *requests)
{
    int all = 0;
    uint32_t stale, from;
    while (receive(REPLY, &stale, sizeof stale, &from)) /* late answers to an earlier query */
        continue;
    for (uint32_t r = 0; r < a->nranks; r++) {
        states[r] = r == a->rank ? 1 : 2;
        requests[r] = MPI_REQUEST_NULL;
        if (r == a->rank)
            continue;
        MPI_Irecv(&states[r], sizeof states[r], MPI_BYTE, (int)r, REPLY, MPI_COMM_WORLD, &requests[r]);
        send(NULL, 0, r, QUERY);
    }
    for (long ms = 0; ms < ANSWER_MS && !all; ms += POLL_MS) {
        if (MPI_Testall((int)a->nranks, requests, &all, MPI_STATUSES_IGNORE) != MPI_SUCCESS)
            return;
        sleep_poll();
    }
    for (uint32_t r = 0; r < a->nranks; r++) {
        atomic_store(&a->unresponsive[r], states[r] == 2);
        if (requests[r] != MPI_REQUEST_NULL && !all)
            MPI_Cancel(&requests[r]);
    }
}

static uint32_t first_rank_in_state(const struct mpi_alarm *a, const uint32_t *states, uint32_t is)
{
    uint32_t r = 0;
    while (r < a->nranks && states[r] != is)
        r++;
    return r;
}

static void find_late(struct mpi_alarm *a, uint32_t pending, struct mpi_patience *p)
{
    uint32_t *states = calloc(a->nranks, sizeof *states);
    MPI_Request *requests = calloc(a->nranks, sizeof *requests);
    p->late = pending;
    p->asked = true;
    pthread_mutex_lock(&a->query_lock);
    if (states && requests) {
        query_all_ranks(a, states, requests);
        const uint32_t silent = first_rank_in_state(a, states, 2), busy = first_rank_in_state(a, states, 0);
        p->unresponsive = silent < a->nranks;
        p->late = p->unresponsive ? silent : busy < a->nranks ? busy : pending;
    }
    pthread_mutex_unlock(&a->query_lock);
    free(requests);
    if (!p->unresponsive)
        free(states); /* otherwise leaked: a late answer may still write to it */
}

bool mpi_alarm_timed_out(struct mpi_alarm *a, struct mpi_patience *p, uint32_t pending, uint32_t *late)
{
    const double patience_ms = 1e3 * job_status_patience(a->job_status),
                 first_ms = patience_ms > 2 * ANSWER_MS ? patience_ms - ANSWER_MS : patience_ms / 2,
                 waited_ms = 1e-6 * (double)(comm_now_ns() - p->started_ns);
    if (waited_ms > first_ms && (!p->asked || (waited_ms > patience_ms && !p->unresponsive)))
        find_late(a, pending, p);
    *late = p->late;
    return waited_ms > patience_ms;
}
