/* SPDX-License-Identifier: Apache-2.0 */
/* The status that ranks and their supervisor share without messages: the position of each rank, its heartbeat, the
 * first error, requests to stop or save. The supervisor maps it before it forks its ranks, and it outlives them. Knows
 * nothing of how ranks communicate. */
#ifndef TRAIN_JOB_STATUS_H
#define TRAIN_JOB_STATUS_H

#include <fsdpck/error.h>

struct job_status;

enum { JOB_STATUS_NRESULTS = 10 };

/* The supervisor's ranks, first … first+nlocal-1 of nranks, get a slot each. */
int job_status_new(uint32_t first, uint32_t nlocal, uint32_t nranks, double patience_seconds, struct job_status **out,
                   struct fsdpck_error *err);
void job_status_free(struct job_status *b); /* NULL does nothing */
double job_status_patience(const struct job_status *b);

/* Sets the position of a rank, which is reported if the rank is lost. Cheap; counts as a heartbeat. operation: static
 * text. */
void job_status_at(struct job_status *b, uint32_t rank, uint64_t step, const char *operation);
void job_status_operation(struct job_status *b, uint32_t rank, const char *operation); /* in the same step */
void job_status_heartbeat(struct job_status *b, uint32_t rank); /* heartbeat, from any thread of the rank */
uint64_t job_status_heartbeats(const struct job_status *b, uint32_t rank);
/* The host of a rank of another supervisor, once it is known. name: truncated to 64 bytes. */
void job_status_set_host(struct job_status *b, uint32_t rank, const char *name);
const char *job_status_host(const struct job_status *b, uint32_t rank); /* "": not known */
/* "in step 3, forward and backward"; of a rank of another supervisor, "on host 'node2'" */
void job_status_describe(const struct job_status *b, uint32_t rank, char *text, size_t nbytes);

/* Records the error of a failed rank. The first one wins; FSDPCK_ERR_PEER is ignored. Waiting ranks poll
 * job_status_failed(). */
void job_status_fail(struct job_status *b, const struct fsdpck_error *err);
bool job_status_failed(const struct job_status *b);
/* For the supervisor: rank `rank` has died (how: "was killed by signal 9") or stalls; then the error has ETIMEDOUT. */
void job_status_lost(struct job_status *b, uint32_t rank, bool stalls, const char *how);
/* For a rank that has waited longer than patience for rank `rank`, before it records the error: the supervisor may
 * count that rank as lost. */
void job_status_set_late(struct job_status *b, uint32_t rank);
/* Returns whether `rank` is the first rank of job_status_set_late(). */
bool job_status_is_late(const struct job_status *b, uint32_t rank);
/* Records the error of a rank of another supervisor, which prints it. Returns whether it is the first error here. */
bool job_status_adopt(struct job_status *b, const struct fsdpck_error *err);
void job_status_mute(struct job_status *b); /* another supervisor prints an error for both */
bool job_status_is_muted(
    const struct job_status *b); /* one of these two was called: this supervisor does not print the error */
bool job_status_has_lost(const struct job_status *b); /* whether the error comes from job_status_lost() */
/* For the supervisor: the first error; false if there is none. */
bool job_status_error(const struct job_status *b, struct fsdpck_error *err);

void job_status_stop(struct job_status *b);
bool job_status_stopping(const struct job_status *b);
/* Number of saves requested since the run began. The supervisor sets the count of its own requests; a rank adds one. */
void job_status_set_requested_saves(struct job_status *b, uint64_t count);
void job_status_request_save(struct job_status *b);
uint64_t job_status_requested_saves(const struct job_status *b);
/* (JOB_STATUS_NRESULTS) values for the supervisor, which outlive the rank */
uint64_t *job_status_results(struct job_status *b);

#endif
