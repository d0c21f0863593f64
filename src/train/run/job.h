/* What a run needs before its ranks part: everything that can be refused is refused here. */
#ifndef TRAIN_JOB_H
#define TRAIN_JOB_H

#include "comm/comm_local.h"
#include "run/rank.h"

/* note: where notes of libfsdpck go; NULL for none. */
int job_open(const struct train_config *config, const struct train_options *opt, struct job *out, struct fsdpck_error *err);
void job_close(struct job *job);
struct memory_sizes;
/* train_plan of an open job that computes so. device: what it has there where memory is the device's own; else NULL. */
int job_plan(const struct job *job, const struct compute *c, const struct memory_sizes *device, struct train_plan *out, struct fsdpck_error *err);
/* Whether ranks compute on devices whose memory is their own. */
bool job_is_apart(const struct job *job);
/* Whether parameters are gathered into buffers; else all ranks see all of them. */
bool job_copies(const struct job *job);
/* The same of the communicator between hosts' memories: its ranks see their own rows only. */
bool job_copies_on_host(const struct job *job);
/* What its ranks share. */
struct comm_sizes job_comm_sizes(const struct job *job);

#endif
